from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.io.pictures import grey, item, save
from trtfuse.core.errors import UsageError
from trtfuse.core.flow import Answer, Attached
from trtfuse.core.options import WritingOptions
from trtfuse.io.opening import open_sink, open_source
from trtfuse.io.sink import FolderSink


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return save(tmp_path / "photos/sub/a.png").parents[1]


def test_a_folder_opens_as_its_pictures(photos: Path) -> None:
    assert [one.key for one in open_source(photos)] == ["sub/a.png"]


@pytest.mark.parametrize("output", [".", "out", "sub/out", "../photos", "../photos/new/out"])
def test_an_output_in_its_source_is_refused(photos: Path, output: str) -> None:
    with pytest.raises(UsageError, match=r"would take results for pictures.* photos-out"):
        open_sink(photos / output, source=photos)
    assert [path.name for path in photos.iterdir()] == ["sub"]


def test_a_link_does_not_hide_that_the_output_lies_in_its_source(photos: Path) -> None:
    (photos.parent / "link").symlink_to(photos)
    with pytest.raises(UsageError, match="would take results for pictures"):
        open_sink(photos.parent / "link/out", source=photos)


def test_a_source_in_its_output_is_refused(photos: Path) -> None:
    for source in (photos, photos / "sub/a.png"):
        with pytest.raises(UsageError, match="could replace their own pictures"):
            open_sink(photos.parent, source=source)


@pytest.mark.parametrize("output", ["photos-out", "photos2", "photos/.out"])
def test_an_output_beside_its_source_or_hidden_in_it_is_taken(photos: Path, output: str) -> None:
    with open_sink(photos.parent / output, source=photos) as sink:
        assert isinstance(sink, FolderSink)
    assert open_source(photos).count == 1


@pytest.mark.parametrize("annotate", [False, True])
def test_annotate_makes_copies(photos: Path, annotate: bool) -> None:
    output = photos.parent / "out"
    face = {"box": [10.0, 20.0, 60.0, 70.0], "score": 0.9, "label": "face"}
    with open_sink(output, source=photos, writing=WritingOptions(annotate=annotate)) as sink:
        sink.store(
            item("a.png", grey(size=(90, 90))), Attached(), Answer(fields={"detections": [face]})
        )
    assert (output / "a.png").exists() == annotate
    if annotate:
        (copy,) = open_source(output / "a.png")
        assert np.ptp(copy.load().pixels) > 50
