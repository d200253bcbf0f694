from __future__ import annotations

import json
import os

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trtfuse.io.keys import key_of, path_of

# What a path's bytes may be: anything but NUL; no component "." as no listing gives one.
PATHS = st.binary(min_size=1, max_size=12).filter(
    lambda raw: b"\0" not in raw and not raw.startswith((b"/", b"./"))
)


@given(PATHS)
@example(b"\xff.png")
@example(b"\\xff.png")
@example(b"a\\\\\xff")
def test_a_key_leads_back_to_its_file(raw: bytes) -> None:
    path = os.fsdecode(raw)
    assert path_of(key_of(path)) == path


@given(PATHS)
def test_a_key_is_text_that_utf8_and_json_can_hold(raw: bytes) -> None:
    key = key_of(os.fsdecode(raw))
    assert json.loads(json.dumps(key, ensure_ascii=False).encode()) == key


@pytest.mark.parametrize(
    "name", ["a b.png", "é中文 😀.png", "new\nline.png", '"q".png', "a\\b.png"]
)
def test_a_name_in_utf8_is_its_own_key(name: str) -> None:
    assert key_of(name) == name


def test_a_name_that_is_not_utf8_is_marked_and_escaped() -> None:
    assert key_of(os.fsdecode(b"sub/\xff\\\xc3\xa9.png")) == "./sub/\\xff\\\\é.png"


def test_a_name_that_looks_escaped_is_another_key_than_the_bytes() -> None:
    assert key_of(os.fsdecode(b"\xff.png")) != key_of("\\xff.png")
