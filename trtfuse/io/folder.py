"""A folder of pictures, or one picture, as a source."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path, PurePosixPath

from trtfuse.core.errors import UsageError
from trtfuse.core.flow import Item
from trtfuse.io import decode
from trtfuse.io.keys import key_of


class FolderSource:
    """All pictures below `root`, in the order of their relative paths' bytes; or `root` itself.

    The folder is listed once, here; no file is opened before its item is loaded. Links are
    followed, but not to a folder that they lie in. Raises UsageError where nothing is found.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._skipped: Counter[str] = Counter()
        if root.is_dir():
            self._paths = sorted(self._walk(), key=os.fsencode)
        elif root.is_file():
            # A file that is named outright is always tried, whatever its suffix.
            self._root, self._paths = root.parent, [root.name]
        else:
            state = "not a folder or a regular file" if root.exists() else "does not exist"
            raise UsageError(f"{root}: {state}. Give a folder of pictures, or one picture.")
        if not self._paths:
            raise UsageError(
                f"{root}: no pictures in it (looked for {' '.join(sorted(decode.SUFFIXES))}"
                f"{'; skipped: ' + self._reasons() if self._skipped else ''})."
            )

    @property
    def count(self) -> int:
        """How many pictures there are."""
        return len(self._paths)

    @property
    def skipped(self) -> Mapping[str, int]:
        """How many entries were passed over, by reason."""
        return self._skipped

    def __iter__(self) -> Iterator[Item]:
        for seq, path in enumerate(self._paths):
            load = partial(decode.read, self._root / path)
            yield Item(seq=seq, key=key_of(path), load=load)

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
    if PurePosixPath(entry.name).suffix.lower() not in decode.SUFFIXES:
        return "of another kind"
    return None
