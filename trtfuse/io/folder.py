"""A folder of pictures and videos, or one of them, as a source."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path, PurePosixPath

from trtfuse.core.errors import UsageError
from trtfuse.core.flow import Item, Stamp
from trtfuse.core.options import ReadingOptions
from trtfuse.io import animation, decode, suffixes, video
from trtfuse.io.keys import key_of


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One file of a source: a picture, or a clip."""

    path: str
    """Below the source's root."""
    key: str
    stamp: Stamp


class FolderSource:
    """All pictures and videos below `root`, in the order of their paths' bytes; or `root` itself.

    The folder is listed once, here; no file is opened before it is its turn. Every frame of an
    animation or a video is an item. Links are followed, but not to a folder that they lie in.
    Raises UsageError where nothing is found.
    """

    def __init__(
        self,
        root: Path,
        reading: ReadingOptions = ReadingOptions(),  # noqa: B008 - frozen
    ) -> None:
        self._root = root
        self._reading = reading
        self._further_frames = 0
        self._skipped: Counter[str] = Counter()
        if root.is_dir():
            self._paths = sorted(self._walk(), key=os.fsencode)
        elif root.is_file():
            # A file that is named outright is always tried, whatever its suffix.
            self._root, self._paths = root.parent, [root.name]
        else:
            state = "not a folder or a regular file" if root.exists() else "does not exist"
            raise UsageError(
                f"{root}: {state}. Give a folder of pictures and videos, or one of them."
            )
        if not self._paths:
            raise UsageError(
                f"{root}: no pictures or videos in it (looked for {' '.join(sorted(suffixes.ALL))}"
                f"{'; skipped: ' + self._reasons() if self._skipped else ''})."
            )

    @property
    def count(self) -> int:
        """How many items there are; of a clip that has not come yet, one."""
        return len(self._paths) + self._further_frames

    @property
    def skipped(self) -> Mapping[str, int]:
        """How many entries were passed over, by reason."""
        return self._skipped

    def __iter__(self) -> Iterator[Item]:
        numbers = count()
        for file in self.files():
            for item in self.items(file):
                yield replace(item, seq=next(numbers))

    def files(self) -> Iterator[File]:
        """The files in order, as they are now."""
        for path in self._paths:
            yield File(path=path, key=key_of(path), stamp=_stamp(self._root / path))

    def path(self, file: File) -> Path:
        """Where it is."""
        return self._root / file.path

    def items(self, file: File) -> Iterator[Item]:
        """What one of the files holds, numbered from 0."""
        known = 1
        for item in self._inside(file.path, file.key):
            total = _frames_in_all(item)
            self._further_frames += total - known
            known = total
            yield replace(item, stamp=file.stamp)

    def _inside(self, path: str, key: str) -> Iterator[Item]:
        whole = self._root / path
        if PurePosixPath(path).suffix.lower() in suffixes.VIDEOS:
            yield from video.items(whole, key, self._reading)
        elif animation.is_animated(whole, self._reading):
            yield from animation.items(whole, key, self._reading)
        else:
            yield Item(seq=0, key=key, load=partial(decode.read, whole, self._reading))

    def _reasons(self) -> str:
        return ", ".join(f"{count} {reason}" for reason, count in sorted(self._skipped.items()))

    def _walk(self) -> Iterator[str]:
        """Relative paths of the pictures, in no order."""
        # A stack and not a recursion: a tree may be deeper than Python's frames. With each folder
        # goes the set of those it lies in, so that a link back up is seen.
        folders: list[tuple[str, frozenset[tuple[int, int]]]] = [("", frozenset())]
        while folders:
            below, above = folders.pop()
            try:
                here = (self._root / below).stat()
                entries = list(os.scandir(self._root / below))
            except OSError:
                self._skipped["folders that cannot be read"] += 1
                continue
            if (here.st_dev, here.st_ino) in above:
                self._skipped["links to a folder that they lie in"] += 1
                continue
            inside = above | {(here.st_dev, here.st_ino)}
            for entry in entries:
                path = f"{below}/{entry.name}" if below else entry.name
                if reason := _reason_to_skip(entry):
                    self._skipped[reason] += 1
                elif entry.is_dir():
                    folders.append((path, inside))
                else:
                    yield path


def _stamp(path: Path) -> Stamp:
    """Of a file that is gone, one that no file has."""
    try:
        status = path.stat()
    except OSError:
        return Stamp(size=-1, mtime_ns=0)
    return Stamp(size=status.st_size, mtime_ns=status.st_mtime_ns)


def _frames_in_all(item: Item) -> int:
    """How many items its file will give, as far as this one tells."""
    if item.frame is None:
        return 1
    came = item.frame.index + 1
    return came if item.frame.last else max(came, item.frame.clip.promised)


def _reason_to_skip(entry: os.DirEntry[str]) -> str | None:
    """Why the entry is neither a folder nor a picture; None where it is."""
    if entry.name.startswith("."):
        return "hidden"
    try:
        mode = entry.stat().st_mode
    except OSError:
        return "links to nothing"
    if stat.S_ISDIR(mode):
        return None
    if not stat.S_ISREG(mode):
        return "not regular files"
    if PurePosixPath(entry.name).suffix.lower() not in suffixes.ALL:
        return "of another kind"
    return None
