from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.io.pictures import DATA, grey, save
from trtfuse.core.errors import ItemError, UsageError
from trtfuse.io.folder import FolderSource


def keys(source: FolderSource) -> list[str]:
    return [item.key for item in source]


def test_pictures_come_in_the_order_of_their_paths_bytes(tmp_path: Path) -> None:
    for name in ("b.png", "a/z.png", "a-1.png", "a.png", "B.png", "é.png", "a/b/c.JPG"):
        save(tmp_path / name)
    source = FolderSource(tmp_path)
    assert source.count == 7
    # "-" and "." sort before "/", capitals before small letters, and ASCII before the rest.
    assert keys(source) == ["B.png", "a-1.png", "a.png", "a/b/c.JPG", "a/z.png", "b.png", "é.png"]
    assert [item.seq for item in source] == list(range(7))


def test_an_item_loads_its_own_picture_as_often_as_asked(tmp_path: Path) -> None:
    for value in (10, 20):
        save(tmp_path / f"{value}.png", grey(value))
    for item, value in zip(FolderSource(tmp_path), (10, 20), strict=True):
        for _ in range(2):
            np.testing.assert_array_equal(item.load().pixels, grey(value))


def test_one_picture_is_a_source_of_one(tmp_path: Path) -> None:
    save(tmp_path / "other.png")
    source = FolderSource(save(tmp_path / "a.png", grey(50)))
    (item,) = source
    assert (source.count, item.key) == (1, "a.png")
    assert (item.load().pixels == 50).all()


def test_a_file_that_is_named_outright_is_tried_whatever_its_suffix(tmp_path: Path) -> None:
    (item,) = FolderSource(save(tmp_path / ".picture.dat"))
    assert item.load().pixels.shape == (6, 8, 3)


def test_bad_files_are_items_that_fail_and_the_rest_is_read(tmp_path: Path) -> None:
    shutil.copytree(DATA / "broken", tmp_path / "in")
    failed = []
    for item in FolderSource(tmp_path / "in"):
        try:
            item.load()
        except ItemError:
            failed.append(item.key)
    assert failed == ["cut.jpg", "empty.png"]


def test_side_files_are_passed_over_counted_and_never_opened(tmp_path: Path) -> None:
    save(tmp_path / "a.png")
    (tmp_path / "._a.png").write_bytes(b"\x00\x05\x16\x07")
    (tmp_path / ".DS_Store").touch()
    (tmp_path / "Thumbs.db").touch()
    (tmp_path / "note.txt").touch()
    save(tmp_path / ".cache/b.png")
    (tmp_path / "loop").symlink_to(".")
    (tmp_path / "gone.png").symlink_to("nowhere.png")
    (tmp_path / "self.png").symlink_to("self.png")
    os.mkfifo(tmp_path / "pipe.png")
    with socket.socket(socket.AF_UNIX) as server:
        # A socket's path has a limit of 108 bytes, which a long temporary folder passes.
        here = os.open(tmp_path, os.O_RDONLY)
        server.bind(f"/proc/self/fd/{here}/socket.png")
        os.close(here)
        source = FolderSource(tmp_path)
    assert keys(source) == ["a.png"]
    assert source.skipped == {
        "hidden": 3,
        "of another kind": 2,
        "links to a folder that they lie in": 1,
        "links to nothing": 2,
        "not regular files": 2,
    }


def test_a_folder_named_like_a_picture_is_a_folder(tmp_path: Path) -> None:
    save(tmp_path / "x.png/a.png")
    (tmp_path / "y.png").mkdir()
    assert keys(FolderSource(tmp_path)) == ["x.png/a.png"]


def test_links_are_followed_but_not_back_up(tmp_path: Path) -> None:
    save(tmp_path / "elsewhere/a.png")
    (tmp_path / "in/deep").mkdir(parents=True)
    (tmp_path / "in/link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in/b.png").symlink_to(tmp_path / "elsewhere/a.png")
    (tmp_path / "in/deep/up").symlink_to(tmp_path / "in")
    source = FolderSource(tmp_path / "in")
    assert keys(source) == ["b.png", "link/a.png"]
    assert source.skipped == {"links to a folder that they lie in": 1}


def test_a_folder_that_is_missing_empty_or_no_folder_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        FolderSource(tmp_path / "missing")
    (tmp_path / "note.txt").touch()
    with pytest.raises(
        UsageError, match=r"no pictures or videos in it .*\.png.*skipped: 1 of another kind"
    ):
        FolderSource(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="not a folder or a regular file"):
        FolderSource(tmp_path / "pipe")


NAMES = [
    "with space .png",
    "'quoted\" `$(x).png",
    "new\nline.png",
    "é中文 😀.png",
    "a[1]%d*.png",
    "-rf.png",
    "n" * 246 + ".png",
    os.fsdecode(b"\xff\\.png"),
    "\\xff\\\\.png",
]


def test_names_of_every_kind_are_read_under_keys_of_their_own(tmp_path: Path) -> None:
    for n, name in enumerate(NAMES):
        save(tmp_path / name, grey(n))
    read = {item.key: int(item.load().pixels[0, 0, 0]) for item in FolderSource(tmp_path)}
    assert sorted(read.values()) == list(range(len(NAMES)))
    assert set(NAMES) - set(read) == {os.fsdecode(b"\xff\\.png")}
    for key in read:
        key.encode()


BYTES = st.binary(min_size=1, max_size=6).filter(lambda raw: not set(raw) & set(b"\0/."))


@settings(max_examples=25)
@given(st.sets(BYTES, min_size=1, max_size=5))
def test_any_bytes_are_a_name(tmp_path_factory: pytest.TempPathFactory, raw: set[bytes]) -> None:
    root = tmp_path_factory.mktemp("names")
    for name in raw:
        save(root / os.fsdecode(name + b".png"))
    found = list(FolderSource(root))
    assert len({item.key for item in found}) == len(raw)
    for item in found:
        item.load()
