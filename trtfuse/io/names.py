"""Where an item's files go below the output folder: pure functions from key to relative path.

The output tree mirrors the input tree, and no two keys share a path, whatever the order and the
number of threads. Three rules see to it:

- A name keeps its suffix where the file written is of that kind ("a.png" stays), and gets the new
  one added where not ("a.webp" becomes "a.webp.png", which "a.png" cannot meet).
- A name that the second half of the first rule could have made gets one more suffix.
- A folder named like a file that may be written ("a.png/", "run.json/") gets an underscore.

True of keys that end in a suffix of `suffixes.ALL`, which are those that a folder gives, and of
kinds that share no suffix.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import PurePosixPath

from trtfuse.io import suffixes
from trtfuse.io.keys import path_of

RESULTS = "results.jsonl"
PART = "results.jsonl.part"
JOURNAL = "journal.jsonl"
REPORT = "run.json"
TIMINGS = "timings.jsonl"
PAGE = "report.html"
SEGMENTS = ".segments"
"""Folder of parts of videos that are not whole yet."""

_OURS = (RESULTS, PART, JOURNAL, REPORT, TIMINGS, PAGE)

# Of one name in a path, in bytes: ext4, XFS, btrfs and tmpfs agree on it.
_LONGEST = 255


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of file: the suffixes it may keep, and the one it gets where it has none of them."""

    kept: frozenset[str]
    added: str


PNG = Kind(frozenset({".png"}), ".png")
JPEG = Kind(frozenset({".jpg", ".jpeg"}), ".jpg")
WEBP = Kind(frozenset({".webp"}), ".webp")
GIF = Kind(frozenset({".gif"}), ".gif")
COPY = Kind(PNG.kept | JPEG.kept, ".png")
"""An annotated copy: JPEG where the item is called so, else PNG. Not beside PNG or JPEG."""

VIDEO = Kind(frozenset({".m4v", ".mkv", ".mov", ".mp4", ".webm"}), ".mkv")
"""Containers that hold any stream copied; what comes in another one goes out in Matroska."""

_ANSWERS = PNG.kept | JPEG.kept | WEBP.kept | GIF.kept | VIDEO.kept | {".npy", ".npz"}


def picture_path(key: str, kind: Kind) -> str:
    """Path of the picture of this kind that is the item's answer, or its copy."""
    *folders, name = path_of(key).split("/")
    return _join(folders, name if _keeps(name, kind) else _with(name, kind.added))


def segment_path(key: str, number: int) -> str:
    """Path of a part of this video; all of one video's are alone in their folder."""
    return f"{SEGMENTS}/{hashlib.sha256(key.encode()).hexdigest()[:16]}/{number:06d}.nut"


def annotated_path(key: str) -> str:
    """Path of the item's annotated copy."""
    return picture_path(key, COPY)


def array_path(key: str, suffix: str) -> str:
    """Path of the item's array file; `suffix` is ".npy" or ".npz"."""
    *folders, name = path_of(key).split("/")
    return _join(folders, _with(name, suffix))


def _keeps(name: str, kind: Kind) -> bool:
    if _suffix(name) not in kind.kept:
        return False
    while _suffix(name) == kind.added:
        name = name[: -len(kind.added)]
    return _suffix(name) not in suffixes.ALL - kind.kept


def _join(folders: list[str], name: str) -> str:
    return "/".join((*(_folder(folder) for folder in folders), name))


def _folder(name: str) -> str:
    plain = name.rstrip("_")
    if plain in _OURS or _suffix(plain) in _ANSWERS:
        return _with(name, "_")
    return name


def _suffix(name: str) -> str:
    return PurePosixPath(name).suffix.lower()


def _with(name: str, suffix: str) -> str:
    """`name` with `suffix`, which it ends in; its own end gives way to a hash where too long."""
    raw = os.fsencode(name)
    if len(raw) + len(suffix) <= _LONGEST:
        return name + suffix
    mark = f"~{hashlib.sha256(raw).hexdigest()[:16]}{suffix}"
    return raw[: _LONGEST - len(mark)].decode(errors="ignore") + mark
