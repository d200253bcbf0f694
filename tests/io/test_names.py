from __future__ import annotations

import os
from functools import partial
from itertools import chain

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trtfuse.io import names
from trtfuse.io.suffixes import ALL

KINDS = [
    *(partial(names.picture_path, kind=kind) for kind in (names.PNG, names.JPEG, names.WEBP)),
    *(partial(names.picture_path, kind=kind) for kind in (names.GIF, names.VIDEO)),
    names.annotated_path,
    lambda key: names.array_path(key, ".npy"),
    lambda key: names.array_path(key, ".npz"),
]

# Few letters and all suffixes, so that near misses are common.
ENDS = st.lists(st.sampled_from([*sorted(ALL), ".PNG", ".npy", ".jsonl", "_"]), max_size=3)
STEMS = st.sampled_from(["a", "b", "results", "run.json", "x" * 240])
WORDS = st.builds(lambda stem, ends: stem + "".join(ends), STEMS, ENDS)
FOLDERS = WORDS.filter(lambda name: len(name) <= 255)
PICTURES = st.builds(str.__add__, WORDS, st.sampled_from([*sorted(ALL), ".PNG"])).filter(
    lambda name: len(name) <= 255
)
KEYS = st.builds(
    lambda folders, name: "/".join((*folders, name)), st.lists(FOLDERS, max_size=2), PICTURES
)


def parents(path: str) -> set[str]:
    parts = path.split("/")
    return {"/".join(parts[:n]) for n in range(1, len(parts))}


def possible_together(keys: set[str]) -> bool:
    """Whether one input tree can hold them all: no file is another one's folder."""
    return not keys & set(chain.from_iterable(parents(key) for key in keys))


@given(st.sets(KEYS, min_size=2, max_size=12).filter(possible_together), st.sampled_from(KINDS))
@example(
    {"a.jpg", "a.jpg.png", "a.jpg.png.png", "a.png"}, partial(names.picture_path, kind=names.PNG)
)
@example(
    {"a.jpg", "a.jpg.png/b.png", "a.jpg.png_/b.png"}, partial(names.picture_path, kind=names.PNG)
)
@example(
    {"results.jsonl/a.png", "results.jsonl_/a.png", "run.json/a.png"},
    partial(names.picture_path, kind=names.PNG),
)
def test_no_two_keys_share_a_path_and_no_file_is_anothers_folder(
    keys: set[str], kind: object
) -> None:
    assert callable(kind)
    paths = [kind(key) for key in keys]
    folders = set(chain.from_iterable(parents(path) for path in paths))
    files = {*paths, names.RESULTS, names.PART, names.REPORT}
    assert len(set(paths)) == len(paths)
    assert not folders & files


@given(KEYS, st.sampled_from(KINDS))
def test_no_name_is_longer_than_a_file_system_takes(key: str, kind: object) -> None:
    assert callable(kind)
    assert all(len(os.fsencode(name)) <= 255 for name in kind(key).split("/"))


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("sub/a.png", "sub/a.png"),
        ("a.PNG", "a.PNG"),
        ("a.jpg", "a.jpg.png"),
        ("a.jpg.png", "a.jpg.png.png"),
        ("a.v2.png", "a.v2.png"),
        ("album.png/a.png", "album.png_/a.png"),
        ("-rf.png", "-rf.png"),
        ("é 中.png", "é 中.png"),
    ],
)
def test_a_picture_keeps_its_name_where_it_can(key: str, path: str) -> None:
    assert names.picture_path(key, names.PNG) == path


def test_an_annotated_copy_keeps_the_name_of_a_jpeg_too() -> None:
    assert names.annotated_path("sub/a.jpg") == "sub/a.jpg"
    assert names.annotated_path("sub/a.webp") == "sub/a.webp.png"


def test_an_array_is_named_after_the_whole_picture() -> None:
    assert names.array_path("sub/a.png", ".npy") == "sub/a.png.npy"


def test_a_name_too_long_for_its_suffix_ends_in_a_hash_and_stays_apart_from_its_like() -> None:
    long = "é" * 124
    first, second = (names.picture_path(f"{long}{n}.jpg", names.PNG) for n in "12")
    assert first.startswith("é" * 110 + "é")
    assert first.endswith(".png")
    assert first != second


def test_a_name_that_is_not_utf8_keeps_its_bytes() -> None:
    assert names.picture_path("./sub/\\xff.png", names.PNG) == os.fsdecode(b"sub/\xff.png")
