"""Events as lines of JSON, in bounded volume."""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TextIO

from trtfuse.core.errors import UsageError
from trtfuse.core.events import Event, Hear, RunEnded, deaf
from trtfuse.core.record import to_json

STDERR = Path("-")

# Of each kind. A run in which every item fails says so a thousand times, and how often at the end.
_MOST = 1000

_log = logging.getLogger(__name__)


class EventLog:
    """Writes events to `stream`, a line each. Any thread.

    A line that cannot be written is the last one tried: no run ends for its log.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._heard: Counter[str] = Counter()
        self._broken = False

    def hear(self, event: Event) -> None:
        """Write one of the run's events."""
        more = {}
        if isinstance(event, RunEnded):
            more["left_out"] = {k: n - _MOST for k, n in self._heard.items() if n > _MOST}
        self.write(_name(type(event).__name__), to_json(event) | more)

    def write(self, name: str, fields: dict[str, Any]) -> None:
        """Write an event of this name, unless it has been heard too often."""
        with self._lock:
            self._heard[name] += 1
            if self._broken or self._heard[name] > _MOST:
                return
            now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
            line = json.dumps({"time": now, "event": name, **fields})
            try:
                self._stream.write(line + "\n")
                self._stream.flush()
            except (OSError, ValueError) as error:  # ValueError: it was closed
                self._broken = True
                _log.warning("--log-json: cannot be written any more (%s)", error)


class _AsEvents(logging.Handler):
    """Log records among the events."""

    def __init__(self, events: EventLog) -> None:
        super().__init__()
        self._events = events

    def emit(self, record: logging.LogRecord) -> None:
        """Write it, unless it is of the log itself."""
        if record.name != __name__:
            self._events.write("log", {"level": record.levelname, "text": record.getMessage()})


@contextmanager
def telling(path: Path | None) -> Iterator[Hear]:
    """What to call with the events of a run that lasts as long as the context.

    They go to the file at `path`, which begins anew; "-" is stderr, and then what is logged goes
    there as events only. An exception that leaves the context is told as the run's end. Raises
    UsageError for a file that cannot be opened.
    """
    if path is None:
        yield deaf
        return
    with _opened(path) as stream:
        events = EventLog(stream)
        with _logged(events, alone=path == STDERR):
            try:
                yield events.hear
            except BaseException as error:
                events.hear(RunEnded(error=str(error) or type(error).__name__))
                raise


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    try:
        file = nullcontext(sys.stderr) if path == STDERR else path.open("w", encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"--log-json {path}: cannot be written ({error.strerror}). Choose another file, or -."
        ) from error
    with file as stream:
        yield stream


@contextmanager
def _logged(events: EventLog, *, alone: bool) -> Iterator[None]:
    logger, handler = logging.getLogger("trtfuse"), _AsEvents(events)
    before = logger.propagate
    logger.addHandler(handler)
    logger.propagate = before and not alone
    try:
        yield
    finally:
        logger.propagate = before
        logger.removeHandler(handler)


def _name(kind: str) -> str:
    """ "worker_died" for WorkerDied."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind).lower()
