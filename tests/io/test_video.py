"""Videos in and out, with the real decoders and encoders."""

from __future__ import annotations

import os
import shutil
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.io.films import DATA, failures, film, greys, play, through
from trtfuse.core.errors import DeviceError, ItemError, UnknownName, UsageError
from trtfuse.core.options import ReadingOptions, WritingOptions
from trtfuse.core.specs import Array
from trtfuse.io.encoder import encoder
from trtfuse.io.folder import FolderSource
from trtfuse.io.join import decode_times
from trtfuse.io.opening import open_source
from trtfuse.io.video import VideoClip, items


def twice(pixels: Array) -> Array:
    return pixels.repeat(2, axis=0).repeat(2, axis=1)


@pytest.mark.parametrize("name", ["vfr.mp4", "vfr.mkv"])
@pytest.mark.parametrize("segment", [7, 60, 250])
def test_every_frame_keeps_its_time_where_the_rate_varies(
    tmp_path: Path, name: str, segment: int
) -> None:
    outcomes = through(DATA / name, tmp_path, WritingOptions(segment=segment), model=twice)
    assert failures(outcomes) == {}
    before, after = play(DATA / name), play(tmp_path / name)
    assert len(after.times) == 60
    assert after.times == pytest.approx(before.times, abs=0.001)
    assert after.seconds == pytest.approx(before.seconds, abs=0.002)
    assert after.pixels[0].shape == (72, 128, 3)


@pytest.mark.parametrize("name", ["vfr.mp4", "vfr.mkv"])
def test_sound_is_copied_byte_for_byte_at_its_own_times(tmp_path: Path, name: str) -> None:
    through(DATA / name, tmp_path, WritingOptions())
    before, after = play(DATA / name), play(tmp_path / name)
    assert len(before.sound) == 250
    assert [data for _, data in after.sound] == [data for _, data in before.sound]
    assert [time for time, _ in after.sound] == pytest.approx(
        [time for time, _ in before.sound], abs=0.001
    )


def red_corner(pixels: Array) -> tuple[int, int]:
    """The (row, column) half, 0 or 1, in which the red block lies."""
    red = pixels[..., 0].astype(int) - pixels[..., 1]
    rows, columns = np.nonzero(red > 80)
    height, width = red.shape
    return int(rows.mean() > height / 2), int(columns.mean() > width / 2)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("r0.mp4", (36, 64)),
        ("r90.mp4", (64, 36)),
        ("r180.mp4", (36, 64)),
        ("r270.mp4", (64, 36)),
    ],
)
def test_a_turned_video_is_upright_for_the_model_and_has_no_turn_left(
    tmp_path: Path, name: str, shape: tuple[int, int]
) -> None:
    seen: list[Array] = []

    def model(pixels: Array) -> Array:
        seen.append(pixels)
        return pixels

    through(DATA / name, tmp_path, WritingOptions(), model=model)
    assert seen[0].shape[:2] == shape
    # The block is where a player shows it: top left of the file, turned clockwise.
    corners = {"r0.mp4": (0, 0), "r90.mp4": (0, 1), "r180.mp4": (1, 1), "r270.mp4": (1, 0)}
    assert red_corner(seen[0]) == corners[name]
    with av.open(str(tmp_path / name)) as container:
        frame = next(container.decode(video=0))
    assert frame.rotation == 0
    assert (frame.height, frame.width) == shape
    assert red_corner(frame.to_ndarray(format="rgb24")) == corners[name]


@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
@pytest.mark.parametrize(("name", "turn"), [("r90.mp4", -90), ("r180.mp4", 180), ("r270.mp4", 90)])
def test_a_turn_that_is_kept_reaches_the_player_and_not_the_model(
    tmp_path: Path, name: str, turn: int, suffix: str
) -> None:
    seen: list[Array] = []

    def model(pixels: Array) -> Array:
        seen.append(pixels)
        return pixels

    source = tmp_path / f"in{suffix}"
    turned_copy(DATA / name, source)
    out = tmp_path / "out"
    through(source, out, WritingOptions(), model=model, reading=ReadingOptions(keep_rotation=True))
    assert seen[0].shape == (36, 64, 3)
    assert red_corner(seen[0]) == (0, 0)
    with av.open(str(out / source.name)) as container:
        frame = next(container.decode(video=0))
    assert abs(frame.rotation) == 180 if turn == 180 else frame.rotation == turn
    assert (frame.height, frame.width) == (36, 64)
    assert red_corner(frame.to_ndarray(format="rgb24")) == (0, 0)


def turned_copy(source: Path, path: Path) -> None:
    """The same packets, and the turn, in the container of this suffix."""
    with av.open(str(source)) as given, av.open(str(path), "w") as target:
        video = given.streams.video[0]
        turn = next(given.decode(video)).rotation
        given.seek(0)
        stream = target.add_stream_from_template(video)
        assert isinstance(stream, av.VideoStream)
        stream.set_display_rotation(turn)
        for packet in given.demux(video):
            if packet.dts is not None:
                packet.stream = stream
                target.mux(packet)


def test_a_decoder_on_a_device_that_is_not_here_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r"--hwaccel 'cudda': not known\. Did you mean cuda"):
        open_source(DATA, ReadingOptions(hwaccel="cudda"))
    # A number that no machine has.
    with pytest.raises(DeviceError, match="--hwaccel cuda:99: no such device can be opened"):
        open_source(DATA, ReadingOptions(hwaccel="cuda:99"))


def test_a_file_that_the_device_does_not_decode_fails_alone() -> None:
    """VDPAU is in no build of PyAV: no codec has it."""
    (item,) = items(DATA / "r0.mp4", "r0.mp4", ReadingOptions(hwaccel="vdpau"))
    with pytest.raises(ItemError, match=r"--hwaccel vdpau does not decode it .*Leave it out"):
        item.load()


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="a GPU is here")
def test_an_encoder_of_a_gpu_that_is_not_here_is_known_before_the_run() -> None:
    with pytest.raises(DeviceError, match="--codec h264_nvenc: encodes on a GPU, and none here"):
        encoder(WritingOptions(codec="h264_nvenc"), suffix=".mp4")


def test_damage_costs_frames_and_not_the_rest(tmp_path: Path) -> None:
    outcomes = through(DATA / "zeros_mid.mp4", tmp_path, WritingOptions())
    assert len(outcomes) == 100
    bad = failures(outcomes)
    assert set(bad) == {50, 51}
    assert "damaged" in bad[50]
    assert "cannot be decoded" in bad[51]
    after = play(tmp_path / "zeros_mid.mp4")
    assert len(after.times) == 100
    # The frame before is shown for both.
    assert abs(after.pixels[49].astype(int) - after.pixels[51]).max() < 40


def test_a_file_without_an_index_is_one_failed_item_and_the_others_go_on(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    shutil.copy(DATA / "cut70_nomoov.mp4", tmp_path / "in/a.mp4")
    shutil.copy(DATA / "r0.mp4", tmp_path / "in/b.mp4")
    outcomes = through(tmp_path / "in", tmp_path / "out", WritingOptions())
    assert list(failures(outcomes)) == [0]
    assert "cannot be opened" in failures(outcomes)[0]
    assert len(play(tmp_path / "out/b.mp4").times) == 20
    assert not (tmp_path / "out/a.mp4").exists()


def test_a_file_that_ends_early_says_how_many_frames_are_missing(tmp_path: Path) -> None:
    whole = film(
        tmp_path / "whole.mp4", greys(100), options={"movflags": "", "crf": "10", "g": "10"}
    )
    # The index first, as cameras and downloads have it; then the end is cut off.
    with (
        av.open(str(whole)) as source,
        av.open(str(tmp_path / "fast.mp4"), "w", options={"movflags": "faststart"}) as target,
    ):
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                target.mux(packet)
    data = (tmp_path / "fast.mp4").read_bytes()
    (tmp_path / "in.mp4").write_bytes(data[: len(data) * 7 // 10])
    outcomes = through(tmp_path / "in.mp4", tmp_path / "out", WritingOptions())
    bad = failures(outcomes)
    assert bad
    assert "of 100 frames" in bad[max(bad)]
    assert len(play(tmp_path / "out/in.mp4").times) >= 20


@pytest.mark.parametrize("policy", ["keep", "skip", "fail"])
def test_a_frame_that_failed_is_kept_skipped_or_fails_its_video(
    tmp_path: Path, policy: str
) -> None:
    film(tmp_path / "a.mkv", greys(20), codec="ffv1", options={})
    writing = WritingOptions(codec="ffv1", on_error=policy, segment=6)  # type: ignore[arg-type]
    outcomes = through(
        tmp_path / "a.mkv", tmp_path / "out", writing, model=lambda p: 255 - twice(p), bad=[3, 12]
    )
    if policy == "fail":
        assert set(failures(outcomes)) == set(range(3, 20))
        assert not (tmp_path / "out/a.mkv").exists()
        return
    assert set(failures(outcomes)) == {3, 12}
    after = play(tmp_path / "out/a.mkv")
    expected = [255 - 2 * n if n not in (3, 12) else 2 * n for n in range(20)]
    times = [round(0.04 * n, 6) for n in range(20)]
    if policy == "skip":
        expected = [value for n, value in enumerate(expected) if n not in (3, 12)]
        times = [time for n, time in enumerate(times) if n not in (3, 12)]
    assert after.greys == pytest.approx(expected, abs=3)
    assert after.times == pytest.approx(times, abs=0.001)
    assert all(pixels.shape == (72, 128, 3) for pixels in after.pixels)


@pytest.mark.parametrize("size", [(35, 63), (36, 63), (35, 64), (1, 1)])
def test_an_odd_size_gets_its_last_row_or_column_twice(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    film(tmp_path / "a.mkv", greys(5, size), codec="ffv1", pixel_format="yuv444p", options={})
    through(tmp_path / "a.mkv", tmp_path / "out", WritingOptions())
    (height, width, _) = play(tmp_path / "out/a.mkv").pixels[0].shape
    assert (height, width) == (size[0] + size[0] % 2, size[1] + size[1] % 2)
    keep = WritingOptions(codec="ffv1", encoder_args=(("pix_fmt", "yuv444p"),))
    through(tmp_path / "a.mkv", tmp_path / "exact", keep)
    assert play(tmp_path / "exact/a.mkv").pixels[0].shape[:2] == size


# ITU-T H.273, equations of the matrix coefficients: (Kr, Kb) by number.
WEIGHTS = {1: (0.2126, 0.0722), 6: (0.299, 0.114), 9: (0.2627, 0.0593)}


def flat(rgb: tuple[int, int, int], matrix: int, *, full: bool, bits: int) -> av.VideoFrame:
    """A frame of one colour, its numbers computed by the standard's formula."""
    kr, kb = WEIGHTS[matrix]
    r, g, b = (value / 255 for value in rgb)
    y = kr * r + (1 - kr - kb) * g + kb * b
    u, v = (b - y) / (2 - 2 * kb), (r - y) / (2 - 2 * kr)
    values = (255 * y, 255 * u + 128, 255 * v + 128)
    if not full:
        values = (16 + 219 * y, 128 + 224 * u, 128 + 224 * v)
    frame = av.VideoFrame(64, 48, "yuv420p" if bits == 8 else "yuv420p10le")
    for plane, value in zip(frame.planes, values, strict=True):
        dtype = np.uint8 if bits == 8 else np.uint16
        count = plane.buffer_size // np.dtype(dtype).itemsize
        plane.update(np.full(count, round(value * 2 ** (bits - 8)), dtype).tobytes())
    frame.colorspace = matrix
    frame.color_range = 2 if full else 1
    return frame


@pytest.mark.parametrize("bits", [8, 10])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("matrix", list(WEIGHTS))
def test_colours_are_read_and_written_by_the_files_own_rule(
    tmp_path: Path, matrix: int, full: bool, bits: int
) -> None:
    rgb = (200, 60, 30)
    film(
        tmp_path / "a.mkv",
        [flat(rgb, matrix, full=full, bits=bits) for _ in range(3)],
        pixel_format="yuv420p" if bits == 8 else "yuv420p10le",
        options={"crf": "0"},
    )
    (first, *_) = items(tmp_path / "a.mkv", "a.mkv")
    assert np.abs(first.load().pixels.astype(int) - rgb).max() <= 3
    through(tmp_path / "a.mkv", tmp_path / "out", WritingOptions(crf=0))
    with av.open(str(tmp_path / "out/a.mkv")) as container:
        frame = next(container.decode(video=0))
    assert (frame.colorspace, frame.color_range) == (matrix, 2 if full else 1)
    (again, *_) = items(tmp_path / "out/a.mkv", "a.mkv")
    assert np.abs(again.load().pixels.astype(int) - rgb).max() <= 4


def test_a_video_that_says_nothing_of_its_colours_is_read_as_players_do(tmp_path: Path) -> None:
    film(tmp_path / "sd.mkv", greys(2))
    film(tmp_path / "hd.mkv", greys(2, (720, 32)))
    clips = [next(items(tmp_path / name, name)).frame for name in ("sd.mkv", "hd.mkv")]
    matrices = [one.clip.colours.matrix for one in clips if one and isinstance(one.clip, VideoClip)]
    assert matrices == [6, 1]


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["vfr.mp4", "vfr.mkv"])
def test_the_same_frames_give_the_same_bytes(tmp_path: Path, name: str) -> None:
    # More than two: x264's fastest code differs now and then only.
    for run in range(12):
        through(DATA / name, tmp_path / str(run), WritingOptions(segment=20))
        assert bytes_of(tmp_path / str(run)) == bytes_of(tmp_path / "0")
    assert not (tmp_path / "0/.segments").exists()


def test_a_container_that_cannot_hold_every_stream_becomes_matroska(tmp_path: Path) -> None:
    film(tmp_path / "a.avi", greys(10), codec="mpeg4", options={})
    through(tmp_path / "a.avi", tmp_path / "out", WritingOptions())
    assert len(play(tmp_path / "out/a.avi.mkv").times) == 10


def test_webm_is_written_as_vp9(tmp_path: Path) -> None:
    film(tmp_path / "a.webm", greys(6), codec="libvpx-vp9", options={"deadline": "realtime"})
    fast = WritingOptions(codec="libvpx-vp9", encoder_args=(("deadline", "realtime"),))
    through(tmp_path / "a.webm", tmp_path / "out", fast)
    with av.open(str(tmp_path / "out/a.webm")) as container:
        assert container.streams.video[0].codec_context.name == "vp9"


def test_a_picture_file_that_calls_itself_a_video_and_one_without_video_fail(
    tmp_path: Path,
) -> None:
    with av.open(str(tmp_path / "a.mkv"), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), layout="mono")
        frame.sample_rate = 8000
        frame.pts = 0
        container.mux(stream.encode(frame))
    (tmp_path / "b.mkv").write_text("not a video")
    for name, why in (("a.mkv", "holds no video"), ("b.mkv", "cannot be opened")):
        (item,) = items(tmp_path / name, name)
        with pytest.raises(ItemError, match=why):
            item.load()


def test_how_many_frames_there_are_is_known_from_the_header_at_the_first(tmp_path: Path) -> None:
    source = FolderSource(DATA / "vfr.mp4")
    assert source.count == 1
    frames = iter(source)
    next(frames)
    assert source.count == 60
    assert len(list(frames)) == 59
    assert source.count == 60


@pytest.mark.parametrize(
    ("writing", "sentence"),
    [
        (WritingOptions(codec="h999"), "no encoder of that name"),
        (WritingOptions(codec="aac"), "encodes audio"),
        (WritingOptions(codec="ffv1", crf=3), "ffv1 has no such scale"),
        (
            WritingOptions(codec="libx264", encoder_args=(("presett", "slow"),)),
            "Did you mean preset",
        ),
        (
            WritingOptions(codec="libx264", encoder_args=(("pix_fmt", "rgb24"),)),
            "does not take rgb24",
        ),
    ],
)
def test_an_encoder_that_does_not_exist_is_known_before_the_run(
    writing: WritingOptions, sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        encoder(writing, suffix=".mp4")


def test_options_reach_the_encoder(tmp_path: Path) -> None:
    film(tmp_path / "a.mkv", greys(30))
    sizes = []
    for crf in (5, 45):
        through(tmp_path / "a.mkv", tmp_path / str(crf), WritingOptions(crf=crf))
        sizes.append((tmp_path / str(crf) / "a.mkv").stat().st_size)
    assert sizes[0] > sizes[1]
    short = WritingOptions(codec="libx264", encoder_args=(("g", "5"),))
    through(tmp_path / "a.mkv", tmp_path / "g", short)
    with av.open(str(tmp_path / "g/a.mkv")) as container:
        assert sum(packet.is_keyframe for packet in container.demux(video=0) if packet.size) >= 6


@given(st.lists(st.integers(0, 10**6), unique=True, max_size=40))
def test_decoding_times_rise_and_never_come_after_their_frames(starts: list[int]) -> None:
    times = decode_times(starts)
    assert len(times) == len(starts)
    assert all(a < b for a, b in pairwise(times))
    assert all(time <= start for time, start in zip(times, starts, strict=True))


def test_packets_in_the_order_of_their_times_are_decoded_when_they_are_shown() -> None:
    assert decode_times([0, 33, 99]) == [0, 33, 99]
    assert decode_times([0, 99, 33, 66, 165, 132]) == [-1, 0, 33, 66, 99, 132]


def test_a_codec_that_the_container_does_not_hold_fails_before_anything_is_encoded(
    tmp_path: Path,
) -> None:
    film(tmp_path / "a.webm", greys(3), codec="libvpx-vp9", options={"deadline": "realtime"})
    outcomes = through(tmp_path / "a.webm", tmp_path / "out", WritingOptions(codec="libx264"))
    assert set(failures(outcomes)) == {0, 1, 2}
    assert ".webm files do not hold libx264. Choose another" in failures(outcomes)[0]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["results.jsonl"]


@pytest.mark.parametrize(
    "name",
    [
        "é中 😀.mp4",
        "concat:a.mp4",
        "a[1]%d.mp4",
        "-rf.mp4",
        "new\nline.mp4",
        os.fsdecode(b"\xff.mp4"),
    ],
)
def test_names_of_every_kind_are_only_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "in").mkdir()
    shutil.copy(DATA / "r0.mp4", tmp_path / "in" / name)
    monkeypatch.chdir(tmp_path / "in")
    # As a relative path a name may look like a protocol.
    for source in (Path(), Path(name)):
        outcomes = through(source, tmp_path / "out", WritingOptions())
        assert (len(outcomes), failures(outcomes)) == (20, {})
        assert (tmp_path / "out" / name).exists()
