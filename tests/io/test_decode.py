from __future__ import annotations

import io
import logging
import warnings
import zlib
from contextlib import suppress
from pathlib import Path
from struct import pack

import numpy as np
import pytest
from PIL import Image

from tests.io.pictures import DATA, grey, save
from trtfuse.core.errors import ItemError
from trtfuse.io.decode import read


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photograph_is_upright_whatever_its_exif_orientation(orientation: int) -> None:
    pixels = read(DATA / f"exif/o{orientation}.jpg").pixels
    # 40 x 20 as viewed; from 5 on the file's own pixels lie on their side.
    assert pixels.shape == ((20, 40, 3) if orientation < 5 else (40, 20, 3))
    red = (pixels[..., 0] > 180) & (pixels[..., 1] < 90)
    assert red[:4, :4].all()
    assert not red[-4:].any()
    assert not red[:, -4:].any()


@pytest.mark.parametrize(
    ("name", "rgb"),
    [
        ("bit1.png", (1, 1, 1)),
        ("grey8.png", (0.502, 0.502, 0.502)),
        ("grey16.png", (0.5, 0.5, 0.5)),
        ("rgb16.png", (0.5, 0.25, 0.0039)),
        ("la.png", (0.784, 0.784, 0.784)),
        ("pal_trns.png", (1, 0, 0)),
        ("rgba.png", (1, 0, 0)),
        ("cmyk.jpg", (1, 0, 0)),
        ("float.tif", (0.5, 0.5, 0.5)),
    ],
)
def test_every_mode_becomes_rgb_of_the_right_colour(name: str, rgb: tuple[float, ...]) -> None:
    pixels = read(DATA / "modes" / name).pixels
    assert pixels.dtype == np.uint8
    assert pixels.ndim == 3
    np.testing.assert_allclose(pixels / 255, np.broadcast_to(rgb, pixels.shape), atol=2 / 255)


def test_sixteen_bits_are_scaled_over_their_whole_range(tmp_path: Path) -> None:
    values = np.array([[0, 128, 129, 257, 32768, 65535]], np.uint16)
    for name in ("a.png", "a.tif", "a.pgm"):
        Image.fromarray(values).save(tmp_path / name)
        assert read(tmp_path / name).pixels[0, :, 0].tolist() == [0, 0, 1, 1, 128, 255]


def test_sixteen_bits_are_turned_upright_too(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.array([[0, 65535]], np.uint16)).save(tmp_path / "a.png", exif=exif)
    assert read(tmp_path / "a.png").pixels[..., 0].tolist() == [[0], [255]]


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.webp"])
def test_formats_beside_jpeg_are_turned_upright_and_only_once(tmp_path: Path, name: str) -> None:
    pixels = grey(size=(20, 40))
    pixels[:, :20] = 0
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels).save(tmp_path / name, exif=exif, quality=100)
    upright = read(tmp_path / name).pixels
    assert upright.shape == (40, 20, 3)
    assert upright[:15].max() < 10
    assert upright[25:].min() > 90


def test_float_pixels_that_are_not_from_0_to_1_are_not_guessed_at(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0.5, 2.0]], np.float32)).save(tmp_path / "hdr.tif")
    with pytest.raises(ItemError, match=r"lie from 0\.5 to 2, and 0 to 1 is what can be scaled"):
        read(tmp_path / "hdr.tif")


@pytest.mark.parametrize("name", [f"ok{n}.jpg" for n in range(7)] + ["png_named.jpg"])
def test_whole_files_are_read_by_what_they_hold(name: str) -> None:
    assert read(DATA / "broken" / name).pixels.shape[2] == 3


def test_a_truncated_jpeg_is_one_failed_item() -> None:
    with pytest.raises(ItemError, match="cannot be decoded: image file is truncated"):
        read(DATA / "broken/cut.jpg")


def test_a_file_of_zero_bytes_is_called_empty() -> None:
    with pytest.raises(ItemError, match="empty"):
        read(DATA / "broken/empty.png")


@pytest.mark.parametrize(
    "content",
    [b"not a picture", b"%!PS-Adobe-3.0 EPSF-3.0\n", b"\x89PNG\r\n\x1a\n", b"\x00\x05\x16\x07"],
    ids=["text", "eps", "png-signature", "appledouble"],
)
def test_a_file_that_is_no_picture_fails(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(ItemError, match=r"not a picture|cannot be decoded"):
        read(tmp_path / "a.png")


def chunk(kind: bytes, data: bytes) -> bytes:
    return pack(">I", len(data)) + kind + data + pack(">I", zlib.crc32(kind + data))


def test_a_picture_that_would_fill_the_memory_is_refused_by_its_header(tmp_path: Path) -> None:
    header = pack(">IIBBBBB", 50000, 50000, 8, 2, 0, 0, 0)
    (tmp_path / "bomb.png").write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
    )
    with pytest.raises(ItemError, match="decompression bomb"):
        read(tmp_path / "bomb.png")


def test_a_file_that_is_gone_fails_with_the_systems_reason(tmp_path: Path) -> None:
    with pytest.raises(ItemError, match="No such file"):
        read(tmp_path / "gone.png")


def test_every_cut_of_every_format_is_read_or_fails_and_leaves_no_file_open(
    tmp_path: Path,
) -> None:
    # An open file would be a ResourceWarning, and that an error here. Damaged EXIF makes Pillow
    # warn; a program lets it.
    for kind in ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP"):
        whole = io.BytesIO()
        Image.fromarray(grey()).save(whole, kind)
        for size in range(0, len(whole.getvalue()), 7):
            (tmp_path / "cut").write_bytes(whole.getvalue()[:size])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                with suppress(ItemError):
                    assert read(tmp_path / "cut").pixels.shape == (6, 8, 3)


def test_an_animation_gives_its_first_frame_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = (Image.fromarray(grey(value)) for value in (10, 200))
    first.save(tmp_path / "a.gif", save_all=True, append_images=[second])
    with caplog.at_level(logging.WARNING):
        assert (read(tmp_path / "a.gif").pixels == 10).all()
    assert "only the first is used" in caplog.text


def test_a_still_picture_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    read(save(tmp_path / "a.png"))
    assert not caplog.records
