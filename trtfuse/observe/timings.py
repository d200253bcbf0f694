"""timings.jsonl: the stages of every item. Apart from the results, which hold no times."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trtfuse.core.errors import UsageError
from trtfuse.core.flow import Failure, Outcome

Note = Callable[[Outcome], None]


@contextmanager
def noting(path: Path | None) -> Iterator[Note]:
    """What to call with each outcome, in order, when it is committed; a line each, at `path`.

    The stages of a batch are those of each of its items. What an earlier run has done has no line.
    Raises UsageError where the file cannot be written.
    """
    if path is None:
        yield lambda _: None
        return
    with _translating(path):
        # By line, so that a full disk is known when it is full.
        file = path.open("w", buffering=1, encoding="utf-8")

    def note(outcome: Outcome) -> None:
        if outcome.item.known is None:
            with _translating(path):
                file.write(json.dumps(_line(outcome)) + "\n")

    try:
        yield note
    finally:
        with suppress(OSError):  # of a line that has been told of already
            file.close()


def _line(outcome: Outcome) -> dict[str, object]:
    times = outcome.times
    return {
        "seq": outcome.item.seq,
        "key": outcome.item.key,
        "worker": outcome.worker,
        "failed": isinstance(outcome.entry, Failure),
        "ms": {name: ns / 1e6 for name, ns in (*times.stages(), *times.in_batch()) if ns},
    }


@contextmanager
def _translating(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"--timings: {path} cannot be written ({error.strerror}).") from error
