from __future__ import annotations

import struct
from pathlib import Path

import pytest

from trtfuse.calibrate import cache
from trtfuse.calibrate.thresholds import parse_method
from trtfuse.core.errors import CalibrationError

ENTROPY = parse_method("entropy")


def text(*lines: str, header: str = "TRT-8601-EntropyCalibration2") -> str:
    return "\n".join((header, *lines)) + "\n"


def written(tmp_path: Path, content: str) -> Path:
    path = tmp_path / "calibration.cache"
    path.write_text(content)
    return path


def test_a_line_is_the_scale_as_big_endian_bits() -> None:
    assert struct.pack(">f", 1 / 127).hex() == "3c010204"


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "calibration.cache"
    amax = {"x": 1.0, "layer: with a colon": 12.7, "y": 3e-6}
    cache.write(path, amax, ENTROPY)
    assert path.read_text().splitlines()[:2] == ["TRT-8601-EntropyCalibration2", "x: 3c010204"]
    assert cache.read(path).amax == pytest.approx(amax, rel=1e-6)


def test_minmax_is_named_as_tensorrt_names_it(tmp_path: Path) -> None:
    path = tmp_path / "calibration.cache"
    cache.write(path, {"x": 1.0}, parse_method("minmax"))
    assert cache.read(path).header == "TRT-8601-MinMaxCalibration"


def test_leading_zeros_may_be_missing(tmp_path: Path) -> None:
    found = cache.read(written(tmp_path, text("x: 0", "y: 800000")))
    assert found.amax["x"] == 0
    assert found.amax["y"] == pytest.approx(127 * 2.0**-126)


@pytest.mark.parametrize("header", ["TRT-8601-Entropy", "ranges", "", '{"schema": 1}'])
def test_another_first_line_is_no_cache(tmp_path: Path, header: str) -> None:
    with pytest.raises(CalibrationError, match="not a calibration cache: its first line is"):
        cache.read(written(tmp_path, text("x: 3c010204", header=header)))


@pytest.mark.parametrize("line", ["x 3c010204", "x: 3c01020g", "x: 3c0102041", "x:3c010204", "x: "])
def test_a_line_that_is_none_is_named_with_its_number(tmp_path: Path, line: str) -> None:
    with pytest.raises(CalibrationError, match=r"line 3: .* is not 'tensor: hex'"):
        cache.read(written(tmp_path, text("y: 3c010204", line)))


@pytest.mark.parametrize("digits", ["7f800000", "7fc00000", "bc010204"])
def test_a_scale_that_is_none_is_refused(tmp_path: Path, digits: str) -> None:
    with pytest.raises(CalibrationError, match="line 2: 'x' has the scale"):
        cache.read(written(tmp_path, text(f"x: {digits}")))


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00"])
def test_an_empty_or_binary_file_is_no_cache(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "calibration.cache"
    path.write_bytes(content)
    with pytest.raises(CalibrationError, match="not a calibration cache"):
        cache.read(path)


def test_a_missing_file_is_no_cache(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match=r"gone\.cache"):
        cache.read(tmp_path / "gone.cache")


def test_missing_and_unknown_tensors_are_listed() -> None:
    found = cache.fit(
        cache.Cache("", {"x": 1.0, "r1": 2.0, "still": 0.0, "c1": 4.0, "(Unnamed Layer* 3)": 3.0}),
        needed=("x", "r1", "r2", "still"),
        known=("x", "c1", "r1", "r2", "still", "y"),
    )
    assert found.amax == {"x": 1.0, "r1": 2.0}
    assert found.missing == ("r2", "still")
    assert found.unknown == ("(Unnamed Layer* 3)",)


def test_a_cache_of_another_export_is_refused() -> None:
    other = cache.Cache("", {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0})
    with pytest.raises(CalibrationError, match=r"4 tensors \(a, b, c, …\).*none of the 2 .*x, r1"):
        cache.fit(other, needed=("x", "r1"), known=("x", "r1", "y"))
