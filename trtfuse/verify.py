"""What a run has left, held against what it has recorded: the proof of a night.

    results.jsonl ─► order ──┐
    journal.jsonl ─► records ┼─► files, frames ─► source ─► faults
    the files     ─► hashes ─┘

Nothing is computed again: the journal says of each item what it was made of, by which engine, and
what was written. What is proven is that all of it is still there, whole, once, in its order and for
its time; and, with the source, that it was made of what lies there now.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path

from trtfuse.core.errors import ItemError, UsageError
from trtfuse.core.files import sha256
from trtfuse.core.flow import Json
from trtfuse.core.options import ReadingOptions
from trtfuse.io import journal, names, suffixes
from trtfuse.io.folder import File, FolderSource
from trtfuse.io.journal import Record, Written
from trtfuse.io.keys import file_of, key_of, path_of
from trtfuse.io.seals import Seal, differences, played, seals

Records = Sequence[Record]

# Matroska keeps times in milliseconds; the rounding of both ends may add up.
_TOLERANCE_S = 0.0011
# Whatever the run was allowed to read.
_ANY_SIZE = ReadingOptions(max_pixels=1 << 62)


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong, with the item (or the file of the output) that `key` names."""

    key: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What was looked at, and what is wrong."""

    items: int
    failed: int
    """Items that the run itself has reported as failed; no fault."""
    files: int
    frames: int
    """Of videos, held against their packets' hashes, and decoded."""
    source: str
    """Where the source was read again; empty: it was not."""
    items_by_engine: tuple[tuple[str, int], ...]
    faults: tuple[Fault, ...]


def verify(output: Path, *, source: Path | None = None, reads_source: bool = True) -> Proof:
    """Hold the output folder of a run against its journal, and the source too.

    `source` is where it lies now; None: where it was. Raises UsageError where there is no journal,
    or no source and it is to be read.
    """
    left = journal.read(output)
    records = left.records
    root = source or Path(left.identity.get("source", ""))
    if reads_source and not root.exists():
        raise UsageError(
            f"{root}: the source is not there any more. Say where it is with --source, or leave "
            "it out with --no-source."
        )
    lines, faults = _results(output)
    if left.cut:
        what = "ends in half a line: the run was cut off. Run trtfuse infer again, to go on."
        faults.append(Fault(names.JOURNAL, what))
    done = [records[key] for line in lines if (key := line["key"]) in records]
    if lines:
        faults += _order(lines, records)
        faults += _files(output, done)
        faults += _strangers(output, done)
    if lines and reads_source:
        faults += _source(FolderSource(root, _ANY_SIZE), done)
    return Proof(
        items=len(lines),
        failed=sum("error" in line for line in lines),
        files=sum(one.written is not None for one in done),
        frames=sum(len(one.written.frames) for one in done if one.written is not None),
        source=str(root) if reads_source else "",
        items_by_engine=tuple(sorted(Counter(one.engine for one in done if one.engine).items())),
        faults=tuple(faults),
    )


def _results(output: Path) -> tuple[list[Json], list[Fault]]:
    """The lines of results.jsonl, and what cannot be read of it."""
    path = output / names.RESULTS
    if not path.exists():
        return [], [Fault(names.RESULTS, "is missing: the run has not come to its end.")]
    lines, faults = [], []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            line = json.loads(text)
            line["key"]
        except (ValueError, LookupError, TypeError):
            faults.append(Fault(names.RESULTS, f"line {number} is not the result of an item."))
        else:
            lines.append(line)
    return lines, faults


# Order


def _order(lines: Sequence[Json], records: Mapping[str, Record]) -> Iterator[Fault]:
    """One result an item, as it was recorded, in the order of the source."""
    for line in lines:
        record = records.get(line["key"])
        if record is None:
            yield Fault(line["key"], "has a result, and the journal does not know it.")
        elif record.line != line:
            yield Fault(line["key"], "its result is not the one that was recorded.")
    known = [records[line["key"]] for line in lines if line["key"] in records]
    if known and known[0].seq:
        yield Fault(known[0].key, f"is the first result, and was item {known[0].seq}.")
    for before, after in pairwise(known):
        if (why := _out_of_order(before, after)) is not None:
            yield Fault(after.key, why)
    if known and not known[-1].last:
        yield Fault(known[-1].key, "is the last result, and not the last frame of its file.")


def _out_of_order(before: Record, after: Record) -> str | None:
    """What is wrong with `after` as the next of `before`; None: nothing."""
    (file, frame), (next_file, next_frame) = file_of(before.key), file_of(after.key)
    if after.key == before.key:
        return "has two results."
    if after.seq != before.seq + 1:
        return f"was item {after.seq}, and follows item {before.seq} ({before.key!r})."
    if file != next_file:
        rises = os.fsencode(path_of(file)) < os.fsencode(path_of(next_file))
        whole = before.last and next_frame in (None, 0)
        return None if rises and whole else f"does not follow {before.key!r} in the source."
    if frame is None or next_frame != frame + 1 or before.last:
        return f"does not follow {before.key!r} in its file."
    if before.time is None or after.time is None or after.time <= before.time:
        return f"is for {after.time} s, and {before.key!r} for {before.time} s."
    return None


# Files


def _files(output: Path, done: Records) -> Iterator[Fault]:
    """Every file that was written, whole; and a video frame by frame."""
    whose = {one.sha256: one.path for record in done if (one := record.written) is not None}
    paths = Counter(one.path for record in done if (one := record.written) is not None)
    yield from (Fault(path, f"was written for {n} items.") for path, n in paths.items() if n > 1)
    for _, records in _by_file(done):
        for written in (record.written for record in records if record.written is not None):
            path = output / path_of(written.path)
            if not path.is_file():
                yield Fault(written.path, "is missing.")
                continue
            if (found := sha256(path)) != written.sha256:
                there = whose.get(found)
                what = f"holds what was written as {there!r}." if there else "was altered."
                yield Fault(written.path, what)
            if written.frames:
                yield from _video(path, written, [one for one in records if one.shown])


def _by_file(done: Records) -> Iterator[tuple[str, Records]]:
    """The records of each file of the source, in order."""
    for key, records in groupby(done, lambda one: file_of(one.key)[0]):
        yield key, list(records)


def _video(path: Path, written: Written, shown: Records) -> Iterator[Fault]:
    """The frames of a video that are not as they were written, or cannot be decoded."""
    if len(written.frames) != len(shown):
        what = f"{len(shown)} frames were recorded, and {len(written.frames)} written."
        yield Fault(written.path, what)
        return
    keys = [one.key for one in shown]
    wanted = [
        Seal(one.time or 0.0, one_hash) for one, one_hash in zip(shown, written.frames, strict=True)
    ]
    try:
        changed = list(differences(keys, wanted, seals(path), tolerance_s=_TOLERANCE_S))
        if changed:
            yield from (Fault(key, f"{what}.") for key, what in changed)
        else:
            yield from _plays(played(path), written, keys, wanted)
    except ItemError as error:
        yield Fault(written.path, str(error))


def _plays(
    frames: Sequence[tuple[float, str]], written: Written, keys: Sequence[str], wanted: list[Seal]
) -> Iterator[Fault]:
    if len(frames) != len(keys):
        yield Fault(written.path, f"shows {len(frames)} frames, and {len(keys)} were written.")
        return
    for key, want, (seconds, why) in zip(keys, wanted, frames, strict=True):
        if why or abs(seconds - want.seconds) > _TOLERANCE_S:
            yield Fault(key, why or f"is shown at {seconds:g} s, not at {want.seconds:g} s.")


def _strangers(output: Path, done: Records) -> Iterator[Fault]:
    """Pictures, videos and arrays in the folder that no item has: somebody would count them."""
    ours = {path_of(record.written.path) for record in done if record.written is not None}
    for folder, _, files in os.walk(output):
        for name in files:
            path = os.path.relpath(Path(folder, name), output)
            kind = Path(name).suffix.lower() in suffixes.ALL | {".npy", ".npz"}
            if kind and not name.startswith(".") and path not in ours:
                yield Fault(key_of(path), "is there, and no item of the run has it.")


# Source


def _source(source: FolderSource, done: Records) -> Iterator[Fault]:
    """Every item of the source, with the content it had."""
    made_of = {one.source_sha256: one.key for one in done if one.source_sha256}
    by_file = dict(_by_file(done))
    for file in source.files():
        records = by_file.pop(file.key, None)
        if records is None:
            yield Fault(file.key, "is in the source, and has no result.")
        elif file_of(records[0].key)[1] is None:
            yield from _still(source, file, records[0], made_of)
        else:
            yield from _clip(source, file, records, made_of)
    for key in by_file:
        yield Fault(key, "has results, and is not in the source.")


def _still(
    source: FolderSource, file: File, record: Record, made_of: Mapping[str, str]
) -> Iterator[Fault]:
    if record.source_sha256:
        found = sha256(source.path(file))
        if found != record.source_sha256:
            yield Fault(file.key, _now(found, made_of))


def _clip(
    source: FolderSource, file: File, records: Records, made_of: Mapping[str, str]
) -> Iterator[Fault]:
    count = 0
    for count, item in enumerate(source.items(file), 1):
        record = records[count - 1] if count <= len(records) else None
        if record is None or not record.source_sha256:
            continue
        try:
            found = item.load().attached.sha256
        except ItemError as error:
            yield Fault(record.key, f"of the source cannot be decoded any more: {error}")
            continue
        if found != record.source_sha256:
            yield Fault(record.key, _now(found, made_of))
        elif item.frame is not None and item.frame.seconds != record.time:
            yield Fault(record.key, f"of the source is for {item.frame.seconds:g} s now.")
    if count != len(records):
        yield Fault(file.key, f"of the source has {count} frames, and {len(records)} have results.")


def _now(found: str, known: Mapping[str, str]) -> str:
    there = known.get(found)
    if there is None:
        return "of the source is not what it was."
    return f"of the source is now what {there!r} was."
