"""A source, less what an earlier run has done of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count

from trtfuse.core.errors import ItemError
from trtfuse.core.flow import Item, Picture
from trtfuse.io import names
from trtfuse.io.folder import File, FolderSource
from trtfuse.io.journal import Journal, Record
from trtfuse.io.keys import frame_key


class Remaining:
    """The items of `source` in their order; those that are done come with what is known of them.

    A picture or a clip that is done is not even opened. Of a video that is not, the frames of
    whole segments (`segment` frames each) are decoded, for those after them depend on them, and
    passed over.
    """

    def __init__(self, source: FolderSource, journal: Journal, *, segment: int) -> None:
        self._source = source
        self._journal = journal
        self._segment = segment
        self._further_frames = 0

    @property
    def count(self) -> int | None:
        """As the source's."""
        known = self._source.count
        return None if known is None else known + self._further_frames

    def __iter__(self) -> Iterator[Item]:
        numbers = count()
        for file in self._source.files():
            done = self._done(file)
            self._further_frames += max(len(done) - 1, 0)
            items = map(_passed, done) if done else self._open(file)
            for item in items:
                yield replace(item, seq=next(numbers))

    def _done(self, file: File) -> list[Record]:
        """The records of all that the file holds; empty where something is to be done."""
        still = self._record(file, file.key)
        if still is not None:
            return [still] if self._is_done(still) else []
        frames = list(self._frames(file))
        if not frames or not frames[-1].last:
            return []
        if _is_shown(frames):
            whole = frames[-1].written is not None and self._journal.is_whole(frames[-1].written)
            return frames if whole else []
        return frames if all(map(self._is_done, frames)) else []

    def _open(self, file: File) -> Iterator[Item]:
        frames = list(self._frames(file))
        known: Sequence[Record | None]
        if _is_shown(frames):
            known = frames[: self._in_whole_segments(file.key, len(frames))]
        else:
            known = [frame if self._is_done(frame) else None for frame in frames]
        for item in self._source.items(file):
            before = known[item.seq] if item.seq < len(known) else None
            if item.frame is not None and before is not None:
                yield replace(item, known=before.known)
            else:
                yield item

    def _is_done(self, record: Record) -> bool:
        return "error" not in record.line and self._journal.is_whole(record.written)

    def _frames(self, file: File) -> Iterator[Record]:
        """The records of the clip's frames, from the first on, as far as there are any."""
        for index in count():
            record = self._record(file, frame_key(file.key, index))
            if record is None:
                return
            yield record

    def _record(self, file: File, key: str) -> Record | None:
        record = self._journal.records.get(key)
        return record if record is not None and record.stamp == file.stamp else None

    def _in_whole_segments(self, key: str, recorded: int) -> int:
        """How many of a clip's first frames lie in segments; an animation has no such."""
        for number in count():
            frames = number * self._segment
            there = self._journal.path(names.segment_path(key, number)).exists()
            if not there or frames + self._segment > recorded:
                return frames
        raise AssertionError("unreachable")


def _is_shown(frames: Sequence[Record]) -> bool:
    """Whether the clip comes back as a clip; else each of its frames has an answer of its own."""
    return any(frame.shown for frame in frames)


def _passed(record: Record) -> Item:
    def load() -> Picture:
        raise ItemError("an earlier run has done it.")

    return Item(seq=0, key=record.key, load=load, known=record.known)
