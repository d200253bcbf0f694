"""Where an item's files go below the output folder: pure functions from key to relative path.

The output tree mirrors the input tree, and no two keys share a path, whatever the order and the
number of threads. Three rules see to it:

- A name keeps its suffix where the file written is of that kind ("a.png" stays), and gets the new
  one added where not ("a.webp" becomes "a.webp.png", which "a.png" cannot meet).
- A name that the second half of the first rule could have made gets one more suffix.
- A folder named like a file that may be written ("a.png/", "run.json/") gets an underscore.

True of keys that end in a suffix of `decode.SUFFIXES`, which are those that a folder gives.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import PurePosixPath

from trtfuse.io.decode import SUFFIXES
from trtfuse.io.keys import path_of

RESULTS = "results.jsonl"
PART = "results.jsonl.part"
REPORT = "run.json"

PNG = frozenset({".png"})
JPEG = frozenset({".jpg", ".jpeg"})
_ARRAYS = frozenset({".npy", ".npz"})

# Of one name in a path, in bytes: ext4, XFS, btrfs and tmpfs agree on it.
_LONGEST = 255


def picture_path(key: str) -> str:
    """Path of the picture that is the item's answer; always PNG, which loses nothing."""
    return _picture_path(key, kept=PNG)


def annotated_path(key: str) -> str:
    """Path of the item's annotated copy; JPEG where the item is called so, else PNG."""
    return _picture_path(key, kept=PNG | JPEG)


def array_path(key: str, suffix: str) -> str:
    """Path of the item's array file; `suffix` is ".npy" or ".npz"."""
    *folders, name = path_of(key).split("/")
    return _join(folders, _with(name, suffix))


def _picture_path(key: str, *, kept: frozenset[str]) -> str:
    *folders, name = path_of(key).split("/")
    return _join(folders, name if _keeps(name, kept) else _with(name, ".png"))


def _keeps(name: str, kept: frozenset[str]) -> bool:
    if _suffix(name) not in kept:
        return False
    while _suffix(name) == ".png":
        name = name[:-4]
    return _suffix(name) not in SUFFIXES - kept


def _join(folders: list[str], name: str) -> str:
    return "/".join((*(_folder(folder) for folder in folders), name))


def _folder(name: str) -> str:
    plain = name.rstrip("_")
    if plain in (RESULTS, PART, REPORT) or _suffix(plain) in PNG | JPEG | _ARRAYS:
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
