"""A folder of results: one line an item, and the files that answers bring."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import numpy as np

from trtfuse.core.errors import ItemError, UsageError
from trtfuse.core.files import replacing, sha256, sweep
from trtfuse.core.flow import (
    Answer,
    ArrayFile,
    ArraysFile,
    Attached,
    Entry,
    Failure,
    Item,
    Json,
    Outcome,
    PictureFile,
    Source,
)
from trtfuse.core.options import WritingOptions
from trtfuse.core.specs import Array, Arrays
from trtfuse.io import encode, names
from trtfuse.io.clips import Clips
from trtfuse.io.folder import FolderSource
from trtfuse.io.journal import Identity, Journal, Record, Written
from trtfuse.io.keys import key_of
from trtfuse.io.resume import Remaining
from trtfuse.io.room import is_no_room

Annotate = Callable[[Array, Sequence[Mapping[str, Any]]], Array]
"""(pixels, detections as in results.jsonl) -> pixels of a copy."""

_log = logging.getLogger(__name__)

_KINDS = {"png": names.PNG, "jpeg": names.JPEG, "webp": names.WEBP}


def failed(key: str, failure: Failure) -> Json:
    """The line of an item that failed."""
    return {"key": key, "error": {"kind": failure.kind, "message": failure.message}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Which run the output folder is of, and whether it begins anew whatever is there."""

    identity: Identity
    engines: tuple[str, ...] = ()
    """Folder name of each worker's engine, for the journal."""
    restart: bool = False


@dataclass(frozen=True, slots=True)
class _Done:
    """An item after its turn: what goes into results and journal."""

    outcome: Outcome
    shown: bool
    written: Written | None


class FolderSink:
    """Writes below `output`. A context, used once.

    Lines go to results.jsonl.part; when the context closes without an error, that becomes
    results.jsonl. After an interruption it stays: whole lines of all items that were done, in
    order. An older results.jsonl goes with the first new line, from when on the files beside it
    are no longer its own.

    With `annotate`, a picture with detections is also kept with these drawn on it, under its own
    name where it is PNG or JPEG, else as PNG. The frames of a clip become one file again. Entering
    raises UsageError where `output` cannot be written or holds something else.

    With `run`, a journal is kept, and `remaining` says what an earlier run has left to do.
    """

    def __init__(
        self,
        output: Path,
        writing: WritingOptions = WritingOptions(),  # noqa: B008 - frozen
        annotate: Annotate | None = None,
        run: Run | None = None,
    ) -> None:
        self._output = output
        self._writing = writing
        self._annotate = annotate
        self._kind = names.COPY if annotate else _KINDS[writing.format]
        self._results = output / names.RESULTS
        self._part = output / names.PART
        self._clips = Clips(output, writing, self._kind)
        self._run = run
        self._journal: Journal | None = None
        self._lines: TextIO
        self._open_files = ExitStack()

    def __enter__(self) -> FolderSink:
        try:
            with ExitStack() as stack:
                self._open(stack)
                self._open_files = stack.pop_all()
        except OSError as error:
            raise self._unwritable(error) from error
        return self

    def _open(self, stack: ExitStack) -> None:
        self._output.mkdir(parents=True, exist_ok=True)
        _check_ours(self._output)
        if self._run is not None:
            self._journal = Journal(self._output, self._run.identity, restart=self._run.restart)
            stack.callback(self._journal.close)
            if self._part.exists():  # the last run has not come to its end
                sweep(self._output)
        # Buffered by line, so that a killed run leaves none of them half. A name in an error
        # message may hold what UTF-8 does not: as \udcxx it is still JSON.
        self._lines = stack.enter_context(
            self._part.open(
                "w", buffering=1, encoding="utf-8", errors="backslashreplace", newline="\n"
            )
        )
        stack.callback(self._clips.close)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        try:
            with self._open_files:
                if kind is None:
                    shutil.rmtree(self._output / names.SEGMENTS, ignore_errors=True)
                    os.fsync(self._lines.fileno())
                    self._part.replace(self._results)
        except OSError as failed:
            if kind is None:
                raise self._unwritable(failed) from failed
            _log.warning("%s", self._unwritable(failed))

    def remaining(self, source: FolderSource) -> Source:
        """`source`, less what the journal says is done. While the context is open."""
        if self._journal is None:
            return source
        return Remaining(source, self._journal, segment=self._writing.segment)

    def store(self, item: Item, attached: Attached, answer: Answer) -> Entry:
        """Write the answer's file, or the annotated copy; a clip's frames wait for their order.

        Raises ItemError for a file that cannot be written, UsageError where none can.
        """
        entry = self._stored(item, attached, answer)
        return replace(entry, source_sha256=attached.sha256)

    def _stored(self, item: Item, attached: Attached, answer: Answer) -> Entry:
        line: dict[str, Json] = {"key": item.key}
        if item.frame is not None:
            line["time"] = item.frame.seconds
        line |= answer.fields
        detections = answer.fields.get("detections")
        match answer.file:
            case PictureFile(pixels=pixels, shows=shows):
                attached = encode.fitted(attached, pixels.shape[:2], shows)
                return self._store_picture(item, pixels, attached, line)
            case ArrayFile(array=array):
                path = names.array_path(item.key, ".npy")
                return self._write(line, path, lambda part: _write_array(part, array))
            case ArraysFile(arrays=arrays):
                path = names.array_path(item.key, ".npz")
                return self._write(line, path, lambda part: _write_arrays(part, arrays))
            case None if self._annotate is not None and detections is not None:
                pixels = self._annotate(item.load().pixels, detections)
                entry = self._store_picture(item, pixels, Attached(profile=attached.profile), line)
                return Entry(line=line, rest=entry.rest)
        return Entry(line=line)

    def commit(self, outcome: Outcome) -> Outcome:
        """Add the next line. Raises UsageError where it cannot be written."""
        try:
            self._check_still_there()
            done = self._done(outcome)
            self._results.unlink(missing_ok=True)
            self._lines.write(json.dumps(_line(done.outcome), ensure_ascii=False) + "\n")
            if self._journal is not None:
                self._note(self._journal, done)
            if outcome.item.frame is not None and done.written is not None:
                self._clips.sweep(outcome.item.frame.clip)
        except OSError as error:
            raise self._unwritable(error) from error
        return done.outcome

    def _note(self, journal: Journal, done: _Done) -> None:
        """What is known is noted again where it has moved: files may have come before it."""
        item = done.outcome.item
        if item.known is None:
            assert self._run is not None
            journal.add(_record(done, self._run.engines))
        elif (before := journal.records[item.key]).seq != item.seq:
            journal.add(replace(before, seq=item.seq))

    def _done(self, outcome: Outcome) -> _Done:
        place = outcome.item.frame
        written = None
        if isinstance(outcome.entry, Entry) and isinstance(outcome.entry.rest, Written):
            written = outcome.entry.rest
        if place is None:
            return _Done(outcome, shown=False, written=written)
        in_clip = self._clips.commit(outcome, place)
        if in_clip.written is not None:
            path = self._output / in_clip.written
            written = replace(_written(in_clip.written, path), frames=in_clip.frames)
        return _Done(in_clip.outcome, shown=in_clip.shown, written=written)

    def _check_still_there(self) -> None:
        """Raise OSError where the folder has been removed, or replaced: lines would go nowhere."""
        if not os.path.samestat(self._part.stat(), os.fstat(self._lines.fileno())):
            raise FileNotFoundError(errno.ENOENT, "it was replaced under way")

    def _store_picture(self, item: Item, pixels: Array, attached: Attached, line: Json) -> Entry:
        if item.frame is not None:
            line = line | {"output": key_of(self._clips.path_of(item.frame.clip))}
            return Entry(line=line, rest=self._clips.ready(item.frame.clip, pixels, attached))
        path = names.picture_path(item.key, self._kind)
        png = path.lower().endswith(".png")
        writing = self._writing if self._annotate is None else _copy(self._writing, png=png)
        data = encode.picture(pixels, attached, writing)
        return self._write(line, path, lambda part: part.write_bytes(data))

    def _write(self, line: Json, path: str, write: Callable[[Path], object]) -> Entry:
        try:
            with replacing(self._output / path) as part:
                write(part)
                written = _written(path, part)
        except OSError as error:
            if is_no_room(error):
                raise self._unwritable(error) from error
            raise ItemError(f"{key_of(path)} cannot be written: {error.strerror}.") from error
        return Entry(line=line | {"output": written.path}, rest=written)

    def _unwritable(self, error: OSError) -> UsageError:
        return UsageError(
            f"--output {self._output}: cannot be written ({error.strerror}). "
            "Choose another folder, or make room and rights for it: the same command then goes on."
        )


def _written(path: str, file: Path) -> Written:
    """What the journal says of `file`, which is or will be at `path` below the output."""
    return Written(path=key_of(path), bytes=file.stat().st_size, sha256=sha256(file))


def _record(done: _Done, engines: Sequence[str]) -> Record:
    item, entry, worker = done.outcome.item, done.outcome.entry, done.outcome.worker
    return Record(
        seq=item.seq,
        key=item.key,
        stamp=item.stamp,
        line=_line(done.outcome),
        last=item.frame is None or item.frame.last,
        shown=done.shown,
        written=done.written,
        worker=worker,
        engine=engines[worker] if 0 <= worker < len(engines) else "",
        time=None if item.frame is None else item.frame.seconds,
        source_sha256=entry.source_sha256 if isinstance(entry, Entry) else "",
    )


def _line(outcome: Outcome) -> Json:
    if isinstance(outcome.entry, Failure):
        return failed(outcome.item.key, outcome.entry)
    return outcome.entry.line


def _copy(writing: WritingOptions, *, png: bool) -> WritingOptions:
    """How an annotated copy is written, whose format is its name's."""
    return replace(writing, format="png" if png else "jpeg", depth=8)


def _check_ours(output: Path) -> None:
    """Raise UsageError for a folder with something in it that no run of trtfuse has left."""
    found = {entry.name for entry in output.iterdir() if not entry.name.startswith(".")}
    if found and not found & {names.RESULTS, names.PART, names.JOURNAL}:
        raise UsageError(
            f"--output {output}: holds {len(found)} entries ({min(found)!r}, ...) and no "
            f"{names.RESULTS}, so they are not results. Choose another folder, or empty it."
        )


def _write_array(part: Path, array: Array) -> None:
    np.save(part, array, allow_pickle=False)


def _write_arrays(part: Path, arrays: Arrays) -> None:
    # `np.savez` takes arrays as keywords beside its own, and an output may be called "file".
    with zipfile.ZipFile(part, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
