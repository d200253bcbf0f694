from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from trtfuse.core.files import replacing, sha256


def test_the_file_appears_only_when_the_block_has_succeeded(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.txt"
    with replacing(path) as part:
        part.write_text("whole")
        assert not path.exists()
        assert part.suffix == ".txt"
    assert path.read_text() == "whole"
    assert list(path.parent.iterdir()) == [path]


def test_a_failed_block_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def fail() -> None:
        with replacing(path) as part:
            part.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_name_as_long_as_the_disk_allows_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("a" * 251 + ".png")
    with replacing(path) as part:
        part.write_bytes(b"x")
    assert path.read_bytes() == b"x"


def test_the_hash_is_over_all_files_in_order(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    first.write_bytes(b"a" * 3_000_000)
    second.write_bytes(b"b")
    assert sha256(first, second) == hashlib.sha256(b"a" * 3_000_000 + b"b").hexdigest()
    assert sha256(second, first) != sha256(first, second)
