"""What `trtfuse verify` proves of a run, and what it finds and names where something is wrong."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest

from tests.io.films import DATA as VIDEOS
from tests.io.films import film
from tests.io.pictures import DATA as PICTURES
from tests.io.pictures import grey, save
from tests.io.runs import RUN, Once
from trtfuse.core.errors import UsageError
from trtfuse.core.options import WritingOptions
from trtfuse.core.specs import Array
from trtfuse.io.sink import FolderSink
from trtfuse.verify import verify

# Every frame another one: equal frames have equal packets, and may be swapped.
FRAMES = [np.random.default_rng(n).integers(0, 256, (36, 64, 3), dtype=np.uint8) for n in range(14)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a source and its results: stills, an animation, a video, a broken file."""
    home = tmp_path_factory.mktemp("whole")
    for n in range(4):
        save(home / f"in/a{n}.png", grey(10 * n))
    shutil.copy(PICTURES / "animated/a.gif", home / "in/b.gif")
    film(home / "in/c.mkv", FRAMES, times=[50 * n + 7 * (n % 3) for n in range(14)])
    (home / "in/d.png").touch()
    save(home / "in/e.png", grey(200))
    Once(home / "in", home / "out").run()
    return home


@pytest.fixture
def home(whole: Path, tmp_path: Path) -> Path:
    """A copy, to spoil."""
    shutil.copytree(whole, tmp_path / "home")
    return tmp_path / "home"


def faults(home: Path, output: str = "out") -> list[tuple[str, str]]:
    return [(fault.key, fault.what) for fault in verify(home / output, source=home / "in").faults]


def test_a_run_that_was_left_alone_is_proven(home: Path) -> None:
    proof = verify(home / "out", source=home / "in")
    assert proof.faults == ()
    assert (proof.items, proof.failed, proof.files, proof.frames) == (25, 1, 7, 14)
    assert proof.items_by_engine == (("cpu-1234", 24),)


@pytest.mark.parametrize("stop", [3, 9, 15, 22])
def test_a_run_that_was_cut_off_and_went_on_is_proven(home: Path, stop: int) -> None:
    once = Once(home / "in", home / "again")
    once.run(stop_after=stop)
    assert faults(home, "again") == [
        ("results.jsonl", "is missing: the run has not come to its end.")
    ]
    once.run()
    assert faults(home, "again") == []


def test_a_run_that_went_on_after_files_came_and_went_is_proven_but_for_what_is_left(
    home: Path,
) -> None:
    save(home / "in/a.png", grey(99))
    (home / "in/a2.png").unlink()
    Once(home / "in", home / "out").run()
    assert faults(home) == [("a2.png", "is there, and no item of the run has it.")]


def test_videos_of_every_container_are_proven_with_their_times(tmp_path: Path) -> None:
    shutil.copytree(VIDEOS, tmp_path / "in")
    film(tmp_path / "in/a.ts", FRAMES)
    film(tmp_path / "in/b.avi", FRAMES, codec="mpeg4", options={})
    film(tmp_path / "in/c.webm", FRAMES, codec="libvpx-vp9", options={"deadline": "realtime"})
    film(tmp_path / "in/d.mov", FRAMES)
    Once(tmp_path / "in", tmp_path / "out", writing=WritingOptions(segment=8)).run()
    proof = verify(tmp_path / "out", source=tmp_path / "in")
    assert proof.faults == ()
    # One has no index; of another, two frames are damaged, and shown.
    assert (proof.failed, proof.frames) == (3, 4 * 20 + 2 * 60 + 100 + 4 * 14)


# Files


def swap(one: Path, two: Path) -> None:
    kept = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(kept)


def spoil(path: Path) -> None:
    """Another bit, the same size."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_swapped_and_repeated_files_are_named_with_what_they_hold(home: Path) -> None:
    swap(home / "out/a0.png", home / "out/a1.png")
    shutil.copy(home / "out/a3.png", home / "out/a2.png")
    assert faults(home) == [
        ("a0.png", "holds what was written as 'a1.png'."),
        ("a1.png", "holds what was written as 'a0.png'."),
        ("a2.png", "holds what was written as 'a3.png'."),
    ]


def test_altered_missing_and_strange_files_are_named(home: Path) -> None:
    spoil(home / "out/a0.png")
    spoil(home / "out/b.gif")
    (home / "out/a1.png").unlink()
    save(home / "out/sub/z.png")
    assert faults(home) == [
        ("a0.png", "was altered."),
        ("a1.png", "is missing."),
        ("b.gif", "was altered."),
        ("sub/z.png", "is there, and no item of the run has it."),
    ]


# Results


def rewrite(home: Path, change: Callable[[list[str]], None]) -> None:
    path = home / "out/results.jsonl"
    lines = path.read_text().splitlines()
    change(lines)
    path.write_text("".join(line + "\n" for line in lines))


def test_a_result_that_is_missing_twice_there_or_moved_is_named(home: Path) -> None:
    rewrite(home, lambda lines: lines.__delitem__(1))
    found = faults(home)
    assert ("a2.png", "was item 2, and follows item 0 ('a0.png').") in found
    assert ("a1.png", "is in the source, and has no result.") in found
    rewrite(home, lambda lines: lines.insert(1, lines[0]))
    assert ("a0.png", "has two results.") in faults(home)


def test_swapped_results_of_frames_are_named(home: Path) -> None:
    def change(lines: list[str]) -> None:
        lines[12], lines[13] = lines[13], lines[12]

    rewrite(home, change)
    assert [key for key, _ in faults(home)][:3] == [
        "c.mkv/000004",
        "c.mkv/000003",
        "c.mkv/000005",
    ]


def test_an_altered_result_is_named(home: Path) -> None:
    rewrite(home, lambda lines: lines.__setitem__(0, lines[0].replace('"output"', '"outside"')))
    rewrite(home, lambda lines: lines.append("no result"))
    assert faults(home) == [
        ("results.jsonl", "line 26 is not the result of an item."),
        ("a0.png", "its result is not the one that was recorded."),
    ]


# Videos

Packets = list[tuple[int, bytes]]
"""Time and content."""


def remux(path: Path, change: Callable[[Packets], object]) -> None:
    """The same file with other packets."""
    with av.open(str(path)) as source, av.open(str(path.with_suffix(".x.mkv")), "w") as target:
        template = source.streams.video[0]
        stream = target.add_stream_from_template(template)
        packets = [(p.pts, bytes(p)) for p in source.demux(template) if p.pts is not None]
        change(packets)
        for pts, data in packets:
            packet = av.Packet(data)
            packet.stream, packet.time_base, packet.pts, packet.dts = stream, stream.time_base, 0, 0
            packet.time_base = template.time_base
            packet.pts = packet.dts = pts
            target.mux(packet)
    path.with_suffix(".x.mkv").rename(path)


def swapped(packets: Packets) -> None:
    (one, first), (two, second) = packets[5:7]
    packets[5:7] = [(one, second), (two, first)]


def repeated(packets: Packets) -> None:
    packets[5] = (packets[5][0], packets[4][1])


def doubled(packets: Packets) -> None:
    time, data = packets[5]
    packets.insert(6, (time + 10, data))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            swapped,
            [
                ("c.mkv/000005", "shows what was written as c.mkv/000006."),
                ("c.mkv/000006", "shows what was written as c.mkv/000005."),
            ],
        ),
        (repeated, [("c.mkv/000005", "shows what was written as c.mkv/000004.")]),
        (doubled, [("c.mkv/000005", "is there 2 times.")]),
        (lambda p: p.pop(5), [("c.mkv/000005", "is missing, or was altered.")]),
        (
            lambda p: p.__setitem__(5, (p[5][0], p[5][1][:-9] + b"something")),
            [("c.mkv/000005", "was altered.")],
        ),
        (
            lambda p: p.__setitem__(5, (p[5][0] + 20, p[5][1])),
            [("c.mkv/000005", "is shown at 0.284 s, and was written for 0.264 s.")],
        ),
        (lambda p: p.__delitem__(slice(12, None)), 2),
    ],
    ids=["swapped", "repeated", "doubled", "missing", "altered", "moved", "cut"],
)
def test_the_frame_of_a_video_that_is_not_as_it_was_written_is_named(
    home: Path, change: Callable[[Packets], object], expected: list[tuple[str, str]] | int
) -> None:
    once = Once(home / "in", home / "again", writing=WritingOptions(codec="ffv1", segment=6))
    once.run()
    assert faults(home, "again") == []
    remux(home / "again/c.mkv", change)
    whole, *frames = faults(home, "again")
    assert whole == ("c.mkv", "was altered.")
    assert frames == expected if isinstance(expected, list) else len(frames) == expected


def test_a_video_that_is_no_video_any_more_is_named(home: Path) -> None:
    (home / "out/c.mkv").write_bytes(b"nothing")
    assert faults(home) == [
        ("c.mkv", "was altered."),
        ("c.mkv", "cannot be read as a video: Invalid data found when processing input."),
    ]


# The source


def test_a_source_that_is_not_what_it_was_is_named(home: Path) -> None:
    before = (home / "in/a0.png").stat()
    save(home / "in/a0.png", grey(1))
    os.utime(home / "in/a0.png", ns=(before.st_atime_ns, before.st_mtime_ns))
    swap(home / "in/a1.png", home / "in/a2.png")
    (home / "in/a3.png").unlink()
    save(home / "in/z.png")
    assert faults(home) == [
        ("a0.png", "of the source is not what it was."),
        ("a1.png", "of the source is now what 'a2.png' was."),
        ("a2.png", "of the source is now what 'a1.png' was."),
        ("z.png", "is in the source, and has no result."),
        ("a3.png", "has results, and is not in the source."),
    ]


def test_swapped_frames_of_the_source_are_named(tmp_path: Path) -> None:
    def recorded(frames: list[Array]) -> None:
        film(tmp_path / "in/a.mkv", frames, codec="ffv1", options={"g": "1"})

    (tmp_path / "in").mkdir()
    recorded(FRAMES)
    Once(tmp_path / "in", tmp_path / "out").run()
    assert faults(tmp_path) == []
    recorded([*FRAMES[:5], FRAMES[6], FRAMES[5], *FRAMES[7:]])
    assert faults(tmp_path) == [
        ("a.mkv/000005", "of the source is now what 'a.mkv/000006' was."),
        ("a.mkv/000006", "of the source is now what 'a.mkv/000005' was."),
    ]
    recorded(FRAMES[:12])
    assert faults(tmp_path) == [("a.mkv", "of the source has 12 frames, and 14 have results.")]


def test_a_source_that_is_gone_is_asked_for_and_may_be_left_out(home: Path) -> None:
    run = RUN | {"source": str(home / "elsewhere")}
    Once(home / "in", home / "again").run(identity=run)
    with pytest.raises(UsageError, match=r"elsewhere: the source is not there.*--source.*--no-so"):
        verify(home / "again")
    assert verify(home / "again", reads_source=False).faults == ()
    assert verify(home / "again", source=home / "in").faults == ()


# The command


def command(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trtfuse", "verify", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_shows_a_table_and_the_faults_and_exits_by_them(home: Path) -> None:
    done = command(home / "out", "--source", home / "in")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "trtfuse verify: OK 25 items, 7 files, 0 faults"
    assert "14, by their packets' hashes and times" in done.stdout
    spoil(home / "out/a0.png")
    done = command(home / "out", "--no-source")
    assert (done.returncode, done.stderr) == (1, "")
    assert "'a0.png' was altered." in done.stdout
    assert "not read" in done.stdout
    assert done.stdout.splitlines()[-1] == "trtfuse verify: FAILED 25 items, 7 files, 1 faults"


def test_a_folder_without_a_journal_is_a_usage_error(tmp_path: Path) -> None:
    with FolderSink(tmp_path / "out"):
        pass
    done = command(tmp_path / "out")
    assert (done.returncode, done.stdout) == (2, "")
    assert "holds no journal.jsonl" in done.stderr
    (tmp_path / "out/journal.jsonl").write_text("nonsense\n")
    assert "not a journal of this version" in command(tmp_path / "out").stderr


def test_a_journal_that_ends_in_half_a_line_is_a_fault_that_the_next_run_mends(home: Path) -> None:
    journal = home / "out/journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-9])
    assert faults(home) == [
        (
            "journal.jsonl",
            "ends in half a line: the run was cut off. Run trtfuse infer again, to go on.",
        ),
        ("e.png", "has a result, and the journal does not know it."),
        ("e.png", "is there, and no item of the run has it."),
        ("e.png", "is in the source, and has no result."),
    ]
    Once(home / "in", home / "out").run()
    assert faults(home) == []


@pytest.mark.parametrize("kept", [0, 12])
def test_a_journal_without_a_whole_line_says_to_run_again(home: Path, kept: int) -> None:
    journal = home / "out/journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:kept])
    with pytest.raises(UsageError, match=r"stopped before it had recorded anything\. Run"):
        verify(home / "out")
    Once(home / "in", home / "out").run()
    assert faults(home) == []


def test_the_journal_says_who_made_each_item_of_what_and_for_when(home: Path) -> None:
    _, *lines = (home / "out/journal.jsonl").read_text().splitlines()
    records = {record["key"]: record for record in map(json.loads, lines)}
    frame = records["c.mkv/000005"]
    assert (frame["time"], frame["worker"], frame["engine"]) == (0.264, 0, "cpu-1234")
    assert len({record["source_sha256"] for record in records.values()}) == len(records)
    assert records["d.png"]["source_sha256"] == ""
