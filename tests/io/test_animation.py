from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.io.pictures import DATA, grey
from trtfuse.core.errors import ItemError
from trtfuse.core.flow import Answer, Entry, Failure, Outcome, PictureFile
from trtfuse.core.options import ReadingOptions, WritingOptions
from trtfuse.core.specs import Array
from trtfuse.io.animation import is_animated, items
from trtfuse.io.folder import FolderSource
from trtfuse.io.sink import FolderSink

READING = ReadingOptions()
ANIMATED = ("a.gif", "a.webp", "a.png")
DURATIONS = [50, 100, 150, 200, 250]


def shown(path: Path) -> list[tuple[Array, int]]:
    """Every frame as a viewer shows it, RGBA, and its milliseconds."""
    frames = []
    with Image.open(path) as image:
        for n in range(getattr(image, "n_frames", 1)):
            image.seek(n)
            pixels = np.asarray(image.convert("RGBA"))
            frames.append((pixels, round(image.info["duration"])))
    return frames


def through(source: Path, output: Path, *, bad: int | None = None, scale: int = 1) -> list[Outcome]:
    """Each picture of `source` answered with itself, `scale` times as large; `bad` fails."""
    outcomes = []
    with FolderSink(output, WritingOptions(quality=100)) as sink:
        for item in FolderSource(source):
            picture = item.load()
            pixels = picture.pixels.repeat(scale, axis=0).repeat(scale, axis=1)
            entry: Entry | Failure = Failure(kind="ItemError", message="bad")
            if item.seq != bad:
                entry = sink.store(item, picture.attached, Answer(file=PictureFile(pixels=pixels)))
            outcomes.append(sink.commit(Outcome(item=item, entry=entry)))
    return outcomes


@pytest.mark.parametrize("name", ANIMATED)
def test_every_frame_of_an_animation_is_an_item_with_its_time(name: str) -> None:
    frames = list(items(DATA / "animated" / name, "sub/a", READING))
    assert [item.key for item in frames] == [f"sub/a/{n:06d}" for n in range(5)]
    places = [item.frame for item in frames if item.frame is not None]
    assert [place.duration for place in places] == DURATIONS
    assert [place.seconds for place in places] == [0, 0.05, 0.15, 0.3, 0.5]
    assert [place.last for place in places] == [False] * 4 + [True]
    assert all(item.held_bytes == 20 * 20 * 4 for item in frames)


@pytest.mark.parametrize("name", ANIMATED)
def test_frames_are_composited_and_not_the_bare_differences(name: str) -> None:
    expected = shown(DATA / "animated" / name)
    for item, (pixels, _) in zip(
        items(DATA / "animated" / name, "a", READING), expected, strict=True
    ):
        picture = item.load()
        assert np.array_equal(picture.pixels, pixels[..., :3])
        alpha = picture.attached.alpha
        assert (pixels[..., 3] == (255 if alpha is None else alpha)).all()


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.gif", "a.webp"])
def test_a_still_picture_is_no_animation_whatever_its_kind(tmp_path: Path, name: str) -> None:
    Image.fromarray(grey()).save(tmp_path / name)
    assert not is_animated(tmp_path / name, READING)


def test_a_file_that_cannot_be_read_is_no_animation(tmp_path: Path) -> None:
    (tmp_path / "a.gif").write_bytes(b"GIF89a")
    assert not is_animated(tmp_path / "a.gif", READING)
    assert not is_animated(tmp_path / "gone.gif", READING)


@pytest.mark.parametrize("name", ANIMATED)
@pytest.mark.parametrize("scale", [1, 3])
def test_an_animation_comes_back_in_its_container_with_its_times(
    tmp_path: Path, name: str, scale: int
) -> None:
    outcomes = through(DATA / "animated" / name, tmp_path, scale=scale)
    lines = [one.entry.line for one in outcomes if isinstance(one.entry, Entry)]
    assert lines[1] == {"key": f"{name}/000001", "time": 0.05, "output": name}
    before, after = shown(DATA / "animated" / name), shown(tmp_path / name)
    assert [ms for _, ms in after] == DURATIONS
    for (was, _), (now, _) in zip(before, after, strict=True):
        # At the middle of each source pixel: between them alpha is interpolated.
        same = now[scale // 2 :: scale, scale // 2 :: scale]
        visible = was[..., 3] > 0
        assert np.array_equal(same[..., 3], was[..., 3])
        assert np.array_equal(same[visible], was[visible])
    with Image.open(tmp_path / name) as image, Image.open(DATA / "animated" / name) as source:
        assert image.format == source.format
        assert image.info["loop"] == source.info["loop"] == 0


def test_an_animation_and_stills_share_a_folder(tmp_path: Path) -> None:
    shutil.copytree(DATA / "animated", tmp_path / "in")
    Image.fromarray(grey()).save(tmp_path / "in/b.png")
    source = FolderSource(tmp_path / "in")
    assert source.count == 4
    outcomes = through(tmp_path / "in", tmp_path / "out")
    assert [one.item.seq for one in outcomes] == list(range(16))
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {"a.gif", "a.png", "a.webp", "b.png", "results.jsonl"}


def test_what_an_animation_adds_is_counted_as_it_comes() -> None:
    source = FolderSource(DATA / "animated/a.gif")
    assert source.count == 1
    list(source)
    assert source.count == 5


def test_a_frame_that_failed_keeps_its_time_with_the_sources_own_in_its_place(
    tmp_path: Path,
) -> None:
    outcomes = through(DATA / "animated/a.gif", tmp_path, bad=2, scale=2)
    assert [isinstance(one.entry, Failure) for one in outcomes] == [
        False,
        False,
        True,
        False,
        False,
    ]
    after = shown(tmp_path / "a.gif")
    assert [ms for _, ms in after] == DURATIONS
    assert after[2][0].shape == (40, 40, 4)


def cut(tmp_path: Path) -> Path:
    """An animation of many noisy frames, without its second half."""
    dice = np.random.default_rng(0)
    frames = [Image.fromarray(dice.integers(0, 256, (40, 40, 3), dtype=np.uint8)) for _ in range(8)]
    first, *others = frames
    first.save(tmp_path / "whole.png", save_all=True, append_images=others, duration=40)
    whole = (tmp_path / "whole.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    return tmp_path / "cut.png"


def test_an_animation_cut_short_gives_the_frames_it_has_and_one_failure(tmp_path: Path) -> None:
    frames = list(items(cut(tmp_path), "cut.png", READING))
    *good, bad = frames
    assert 2 <= len(good) < 8
    for item in good:
        item.load()
    assert bad.key == f"cut.png/{len(good):06d}"
    assert bad.frame is not None
    assert bad.frame.last
    with pytest.raises(ItemError, match="cannot be decoded"):
        bad.load()


def test_the_picture_for_viewers_without_animation_is_not_a_frame(tmp_path: Path) -> None:
    first, *frames = (Image.fromarray(grey(value)) for value in (1, 100, 200))
    how: dict[str, Any] = {"save_all": True, "append_images": frames, "duration": 40}
    first.save(tmp_path / "a.png", default_image=True, **how)
    values = [int(one.load().pixels[0, 0, 0]) for one in items(tmp_path / "a.png", "a", READING)]
    assert values == [100, 200]
