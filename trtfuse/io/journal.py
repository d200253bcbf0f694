"""What a run has done so far, for the next one to go on from.

journal.jsonl in the output folder: a line that says what the run is (model, engine, options), then
one line an item, in input order, appended when its files are written. Each line is handed to the
system at once, so that a killed process loses none; it is synced to disk every few seconds and at
the end, so that a power cut costs the lines since (the files themselves are synced one by one). A
line says what its files are, so that one that is missing, or cut, is made again. And it says what
they were made of, by whom, and for when, so that `verify` can prove it afterwards.

An item is done if it did not fail, its source has the size and time of change it had, and what was
written for it is there in its size. A clip's frames are done with the clip, or with their segment.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from trtfuse.core.errors import UsageError
from trtfuse.core.flow import Entry, Failure, Json, Known, Stamp
from trtfuse.io import names
from trtfuse.io.keys import path_of

Identity = Mapping[str, str]
"""What must be the same for two runs to be one: names and values as a reader knows them."""

# A sync of a small append takes 1 to 20 ms on a disk; this often it costs nothing that shows.
_SYNC_EVERY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A file of the output, by its path below it (as a key)."""

    path: str
    bytes: int
    sha256: str
    frames: tuple[str, ...] = ()
    """SHA-256 of a video's packets, one a frame, in the order of their times (`io.seals`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One item, done."""

    seq: int
    key: str
    stamp: Stamp
    line: Json
    """As in results.jsonl."""
    last: bool = True
    """Whether its file holds nothing after it."""
    shown: bool = False
    """Whether its clip shows something for it."""
    written: Written | None = None
    """Its file; of a clip's frames, the last one's is the clip."""
    worker: int = -1
    """The worker that computed it; -1: none did."""
    engine: str = ""
    """Folder name of the engine that it was computed with; empty: with none."""
    time: float | None = None
    """When its clip shows it, in seconds; None: it is in no clip."""
    source_sha256: str = ""
    """Of its file, packet or pixels, as `core.flow.Attached` says; empty: it was not read."""

    @property
    def known(self) -> Known:
        """What is known of the item from here."""
        error = self.line.get("error")
        entry = Failure(**error) if error else Entry(line=self.line)
        return Known(entry=entry, shown=self.shown)


@dataclass(frozen=True, slots=True)
class Left:
    """What a run has left in its journal."""

    identity: Identity
    records: dict[str, Record]
    """By key; the last line of a key counts."""
    cut: bool
    """Whether it ends in half a line, as a run leaves it that was killed there."""


class Journal:
    """The journal of one output folder, open for one run; to be closed.

    Raises UsageError where another run has it open, or where it is of a run that `identity`
    differs from; with `restart` the latter begins anew.
    """

    def __init__(self, output: Path, identity: Identity, *, restart: bool) -> None:
        self._output = output
        self._path = output / names.JOURNAL
        self._file: TextIO = self._path.open("a+", encoding="utf-8", newline="\n")
        try:
            self._lock()
            self.records = {} if restart else self._read(identity)
        except BaseException:
            self._file.close()
            raise
        if not self.records:
            self._begin(identity)
        self._synced = time.monotonic()

    def add(self, record: Record) -> None:
        """Append. Raises OSError."""
        self._append(asdict(record))
        if time.monotonic() - self._synced >= _SYNC_EVERY_S:
            self.sync()

    def sync(self) -> None:
        """Have the disk hold all that was added. Raises OSError."""
        os.fsync(self._file.fileno())
        self._synced = time.monotonic()

    def close(self) -> None:
        """Sync and let go. Raises OSError."""
        with self._file:
            self.sync()

    def path(self, below: str) -> Path:
        """Where a path below the output folder is."""
        return self._output / below

    def is_whole(self, written: Written | None) -> bool:
        """Whether the file is there in its size; True where there is none to be."""
        if written is None:
            return True
        try:
            return self.path(path_of(written.path)).stat().st_size == written.bytes
        except OSError:
            return False

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                f"--output {self._output}: another run is writing there. Wait for it, or choose "
                "another folder."
            ) from error

    def _read(self, identity: Identity) -> dict[str, Record]:
        """By key; the last line of a key counts. What is behind the last whole line is cut off."""
        self._file.seek(0)
        text = self._file.read()
        whole = _whole_lines(text)
        if whole != text:
            self._file.truncate(len(whole.encode()))
        if not whole:
            return {}
        try:
            before, records = _parsed(whole)
        except (ValueError, LookupError, TypeError) as error:
            raise UsageError(
                f"{self._path}: not a journal of this version ({error!r}). Begin anew with "
                "--restart, or choose another --output."
            ) from error
        _check_same(before, identity, self._output)
        return records

    def _begin(self, identity: Identity) -> None:
        self._file.truncate(0)
        shutil.rmtree(self._output / names.SEGMENTS, ignore_errors=True)
        self._append({"run": dict(identity)})

    def _append(self, data: Json) -> None:
        self._file.write(json.dumps(data, ensure_ascii=True) + "\n")
        self._file.flush()


def read(output: Path) -> Left:
    """What the run in the folder has left. Raises UsageError where nothing says what that is."""
    path = output / names.JOURNAL
    try:
        text = path.read_text(encoding="utf-8")
        if not (whole := _whole_lines(text)):
            raise UsageError(
                f"{path}: its run was stopped before it had recorded anything. Run trtfuse infer "
                "with this --output again."
            )
        identity, records = _parsed(whole)
        return Left(identity, records, cut=whole != text)
    except FileNotFoundError as error:
        raise UsageError(
            f"{output}: holds no {names.JOURNAL}, so nothing says what a run wrote there. Give the "
            "output folder of trtfuse infer."
        ) from error
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UsageError(f"{path}: not a journal of this version ({error!r}).") from error


def _whole_lines(text: str) -> str:
    """Without what a run has begun to write behind its last whole line."""
    return text[: text.rfind("\n") + 1]


def _parsed(text: str) -> tuple[Identity, dict[str, Record]]:
    """By key; the last line of a key counts. Raises ValueError, LookupError or TypeError."""
    first, *lines = text.splitlines()
    identity: Identity = json.loads(first)["run"]
    records = (_record(json.loads(line)) for line in lines)
    return identity, {record.key: record for record in records}


def _record(data: Json) -> Record:
    written = data.pop("written")
    if written is not None:
        written = Written(**(written | {"frames": tuple(written.get("frames", ()))}))
    return Record(**(data | {"stamp": Stamp(**data["stamp"])}), written=written)


def _check_same(before: Identity, now: Identity, output: Path) -> None:
    both = {**before, **now}
    differences = [
        f"{name} was {before.get(name, 'not given')}, is {now.get(name, 'not given')}"
        for name in both
        if before.get(name) != now.get(name)
    ]
    if differences:
        raise UsageError(
            f"--output {output}: holds another run ({'; '.join(differences)}). Choose another "
            "folder; or begin anew there, with --restart."
        )
