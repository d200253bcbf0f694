"""Files that appear whole or not at all, and their fingerprints."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

# 1 MiB: large enough that hashing is bound by SHA-256 itself, small enough to stay in L2.
_CHUNK_BYTES = 1 << 20


def sha256(*paths: Path) -> str:
    """Hex SHA-256 over the bytes of `paths`, one after the other. Memory use is flat."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            _read_into(digest, file)
    return digest.hexdigest()


def sha256_of(file: BinaryIO) -> str:
    """Hex SHA-256 of an open file, read from here to its end and set back to its start."""
    digest = hashlib.sha256()
    _read_into(digest, file)
    file.seek(0)
    return digest.hexdigest()


def _read_into(digest: hashlib._Hash, file: BinaryIO) -> None:
    while chunk := file.read(_CHUNK_BYTES):
        digest.update(chunk)


# What `replacing` calls a file that is not whole yet.
_PART = re.compile(r"\.[0-9a-f]{12}\.part")


def sweep(folder: Path) -> None:
    """Remove what killed writers left of `replacing` below `folder`, where nobody writes now."""
    for where, _, names in os.walk(folder):
        for name in filter(_PART.match, names):
            Path(where, name).unlink(missing_ok=True)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`: renamed over it if the block succeeds, removed if not.

    The temporary name is hidden, unique and ends in the suffix of `path`, so that writers which
    look at suffixes behave. Data is synced to disk before the rename: after a power cut the file
    is the old one or the new one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # The stem is left out: a name of 250 bytes must still find room for the temporary one.
    part = path.with_name(f".{secrets.token_hex(6)}.part{path.suffix[:16]}")
    try:
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
