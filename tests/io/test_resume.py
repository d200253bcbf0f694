"""A run that ends anywhere, and the next one: the same bytes, and nothing done twice."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.io.films import DATA as VIDEOS
from tests.io.films import film, greys
from tests.io.pictures import DATA as PICTURES
from tests.io.pictures import grey, save
from tests.io.runs import RUN, Model, Once, array, contents, mean, picture
from trtfuse.core.errors import UsageError
from trtfuse.core.flow import Answer, Picture
from trtfuse.core.options import OnError, WritingOptions
from trtfuse.io.folder import FolderSource
from trtfuse.io.sink import FolderSink, Run


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Stills, an animation, a video and what cannot be read."""
    folder = tmp_path / "in"
    for n in range(4):
        save(folder / f"a{n}.png", grey(10 * n))
    shutil.copy(PICTURES / "animated/a.gif", folder / "b.gif")
    film(folder / "c.mkv", greys(20))
    (folder / "d.png").touch()
    save(folder / "e.png", grey(200))
    return folder


@pytest.mark.parametrize("model", [picture, array, mean])
@pytest.mark.parametrize("stop", [0, 1, 3, 6, 9, 10, 15, 21, 28, 29, 30])
def test_a_run_that_was_cut_off_anywhere_ends_in_the_same_bytes(
    mixed: Path, tmp_path: Path, model: Model, stop: int
) -> None:
    quiet = Once(mixed, tmp_path / "quiet", model=model)
    quiet.run()
    cut = Once(mixed, tmp_path / "cut", model=model)
    cut.run(stop_after=stop)
    cut.run()
    assert contents(cut.output) == contents(quiet.output)
    assert cut.failed == ["d.png"]


def test_every_cut_of_a_video_ends_in_the_same_bytes_and_costs_a_segment_at_most(
    tmp_path: Path,
) -> None:
    film(tmp_path / "a.mkv", greys(20))
    quiet = Once(tmp_path / "a.mkv", tmp_path / "quiet")
    quiet.run()
    for stop in range(20):
        cut = Once(tmp_path / "a.mkv", tmp_path / f"cut{stop}")
        cut.run(stop_after=stop)
        cut.run()
        assert contents(cut.output) == contents(quiet.output)
        # Six frames a segment; the last one closes with the first frame after it.
        assert cut.asked == [f"a.mkv/{n:06d}" for n in range(max(0, (stop - 1) // 6 * 6), 20)]


@pytest.mark.parametrize("policy", ["keep", "skip"])
def test_failed_frames_at_a_segments_border_are_the_same_after_a_cut(
    tmp_path: Path, policy: OnError
) -> None:
    film(tmp_path / "a.mkv", greys(20))
    bad = ("a.mkv/000005", "a.mkv/000006", "a.mkv/000007", "a.mkv/000012")
    writing = WritingOptions(segment=6, on_error=policy)
    runs = [
        Once(tmp_path / "a.mkv", tmp_path / name, writing=writing, bad=bad)
        for name in ("quiet", "cut")
    ]
    runs[0].run()
    runs[1].run(stop_after=9)
    runs[1].run()
    assert contents(runs[0].output) == contents(runs[1].output)
    assert runs[1].failed == list(bad)
    assert "a.mkv/000005" not in runs[1].asked


def test_damage_in_a_video_is_the_same_after_a_cut(tmp_path: Path) -> None:
    writing = WritingOptions(segment=25)
    runs = [
        Once(VIDEOS / "zeros_mid.mp4", tmp_path / name, writing=writing) for name in ("one", "two")
    ]
    runs[0].run()
    # Frames 50 and 51 are damaged, and 50 is the first of a segment.
    for stop in (50, 51, 52, 76):
        runs[1].run(stop_after=stop)
    runs[1].run()
    assert contents(runs[0].output) == contents(runs[1].output)


def test_a_second_run_does_nothing_again(mixed: Path, tmp_path: Path) -> None:
    once = Once(mixed, tmp_path / "out")
    once.run()
    before = contents(once.output)
    once.run()
    # What failed is tried again: it may have been the disk.
    assert once.asked == ["d.png"]
    assert contents(once.output) == before


def test_what_is_new_changed_or_gone_is_done_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    for n in range(4):
        save(folder / f"{n}.png", grey(n))
    once = Once(folder, tmp_path / "out")
    once.run()
    save(folder / "1.png", grey(77, (9, 9)))
    save(folder / "9.png", grey(9))
    (folder / "0.png").unlink()
    (once.output / "2.png").unlink()
    (once.output / "3.png").write_bytes(b"")
    once.run()
    assert once.asked == ["1.png", "2.png", "3.png", "9.png"]
    fresh = Once(folder, tmp_path / "fresh")
    fresh.run()
    assert contents(fresh.output).items() <= contents(once.output).items()


def test_a_touched_file_is_done_again(tmp_path: Path) -> None:
    path = save(tmp_path / "in/a.png")
    once = Once(tmp_path / "in", tmp_path / "out")
    once.run()
    os.utime(path, (1, 1))
    once.run()
    assert once.asked == ["a.png"]


def test_a_journal_of_another_run_is_refused_and_says_what_differs(tmp_path: Path) -> None:
    save(tmp_path / "in/a.png")
    once = Once(tmp_path / "in", tmp_path / "out")
    once.run()
    before = contents(once.output)
    with pytest.raises(UsageError, match=r"engine was cpu-1234, is cpu-9.*--restart"):
        once.run(identity=RUN | {"engine": "cpu-9"})
    with pytest.raises(UsageError, match=r"--crf was not given, is 3"):
        once.run(identity=RUN | {"--crf": "3"})
    assert contents(once.output) == before


@pytest.mark.parametrize("text", ["not json\n", "{}\n", '{"run": {}}\n{"key": 1}\n', "[]\n"])
def test_a_journal_that_nobody_here_wrote_is_refused(tmp_path: Path, text: str) -> None:
    save(tmp_path / "in/a.png")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/journal.jsonl").write_text(text)
    with pytest.raises(UsageError, match=r"not a journal of this version.*--restart"):
        Once(tmp_path / "in", tmp_path / "out").run()
    assert (tmp_path / "out/journal.jsonl").read_text() == text


def test_restart_does_all_again(tmp_path: Path) -> None:
    save(tmp_path / "in/a.png")
    once = Once(tmp_path / "in", tmp_path / "out")
    once.run()
    other = Run(identity=RUN | {"engine": "cpu-9"}, restart=True)
    with FolderSink(once.output, run=other) as sink:
        assert [item.known for item in sink.remaining(FolderSource(once.source))] == [None]
    once.run(identity=other.identity)
    assert once.asked == ["a.png"]


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_a_journal_that_ends_in_half_a_line_loses_that_item_only(tmp_path: Path, cut: int) -> None:
    for n in range(3):
        save(tmp_path / f"in/{n}.png", grey(n))
    once = Once(tmp_path / "in", tmp_path / "out")
    once.run()
    journal = once.output / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-cut])
    once.run()
    assert once.asked == ["2.png"]
    once.run()
    assert once.asked == []


def test_what_a_killed_run_left_half_written_is_removed_and_nothing_else(tmp_path: Path) -> None:
    save(tmp_path / "in/sub/a.png")
    once = Once(tmp_path / "in", tmp_path / "out")
    once.run(stop_after=0)
    (once.output / "sub").mkdir()
    (once.output / "sub/.0123456789ab.part.png").touch()
    (once.output / "sub/.mine.part").touch()
    once.run()
    assert set(contents(once.output)) == {"sub/a.png", "sub/.mine.part", "results.jsonl"}


def test_two_runs_cannot_write_to_one_folder(tmp_path: Path) -> None:
    with (
        FolderSink(tmp_path / "out", run=Run(identity=RUN)),
        pytest.raises(UsageError, match="another run is writing there"),
        FolderSink(tmp_path / "out", run=Run(identity=RUN)),
    ):
        pass


def test_the_journal_says_of_every_item_what_was_made_of_it(mixed: Path, tmp_path: Path) -> None:
    once = Once(mixed, tmp_path / "out")
    once.run()
    first, *records = map(json.loads, (once.output / "journal.jsonl").read_text().splitlines())
    assert first == {"run": RUN}
    assert [record["seq"] for record in records] == list(range(31))
    for record in records:
        if (written := record["written"]) is not None:
            data = (once.output / written["path"]).read_bytes()
            assert len(data) == written["bytes"]
    assert [r["key"] for r in records if r["written"]] == [
        *(f"a{n}.png" for n in range(4)),
        "b.gif/000004",
        "c.mkv/000019",
        "e.png",
    ]


def test_an_output_folder_that_is_removed_under_way_ends_the_run(tmp_path: Path) -> None:
    for n in range(3):
        save(tmp_path / f"in/{n}.png")
    once = Once(tmp_path / "in", tmp_path / "out")

    def remover(given: Picture) -> Answer:
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        return mean(given)

    once.model = remover
    with pytest.raises(UsageError, match="cannot be written"):
        once.run()


def test_means_of_known_items_are_the_journals(tmp_path: Path) -> None:
    save(tmp_path / "in/a.png", np.full((4, 4, 3), 9, np.uint8))
    once = Once(tmp_path / "in", tmp_path / "out", model=mean)
    once.run()
    once.run()
    line = json.loads((once.output / "results.jsonl").read_text())
    assert (line, once.asked) == ({"key": "a.png", "mean": 9.0}, [])
