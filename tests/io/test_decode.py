from __future__ import annotations

import io
import warnings
import zlib
from contextlib import suppress
from pathlib import Path
from struct import pack

import numpy as np
import pytest
from PIL import Image

from tests.io.pictures import DATA, grey
from trtfuse.core.errors import ItemError
from trtfuse.core.options import ReadingOptions
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


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.webp", "a.avif"])
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
    with pytest.raises(ItemError, match=r"than the 178956970 pixels allowed.*--max-pixels"):
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


@pytest.mark.parametrize(
    ("name", "alpha"), [("rgba.png", True), ("la.png", True), ("pal_trns.png", True)]
)
def test_alpha_is_kept_beside_the_colours(name: str, alpha: bool) -> None:
    with Image.open(DATA / "modes" / name) as image:
        expected = np.asarray(image.convert("RGBA"))[..., 3]
    picture = read(DATA / "modes" / name)
    assert picture.attached.alpha is not None
    assert np.array_equal(picture.attached.alpha, expected)
    assert picture.attached.alpha.shape == picture.pixels.shape[:2]


@pytest.mark.parametrize("name", ["grey8.png", "bit1.png", "cmyk.jpg", "float.tif", "rgb16.png"])
def test_what_has_no_alpha_gets_none(name: str) -> None:
    assert read(DATA / "modes" / name).attached.alpha is None


def test_alpha_is_turned_upright_with_its_picture(tmp_path: Path) -> None:
    pixels = np.zeros((2, 4, 4), np.uint8)
    pixels[0, 0, 3] = 200
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    alpha = read(tmp_path / "a.png").attached.alpha
    assert alpha is not None
    assert alpha.shape == (4, 2)
    assert alpha[0, 1] == 200


def profile(space: bytes) -> bytes:
    """An ICC profile as far as anyone here reads it: a header that names its colour space."""
    return bytes(16) + space + bytes(108)


def test_an_icc_profile_is_kept_where_it_speaks_of_rgb(tmp_path: Path) -> None:
    for name, space, kept in (("a.png", b"RGB ", True), ("b.png", b"GRAY", False)):
        mode = "RGB" if kept else "L"
        Image.new(mode, (4, 4)).save(tmp_path / name, icc_profile=profile(space))
        assert read(tmp_path / name).attached.profile == (profile(space) if kept else b"")


def test_the_limit_of_pixels_is_the_callers(tmp_path: Path) -> None:
    Image.new("RGB", (10, 11)).save(tmp_path / "a.png")
    assert read(tmp_path / "a.png", ReadingOptions(max_pixels=110)).pixels.shape == (11, 10, 3)
    with pytest.raises(ItemError, match=r"110 pixels \(10 x 11\), more than the 109"):
        read(tmp_path / "a.png", ReadingOptions(max_pixels=109))


def test_a_limit_above_pillows_own_is_kept_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40)
    Image.new("RGB", (10, 10)).save(tmp_path / "a.png")
    with pytest.raises(ItemError, match="more than the 79 pixels allowed"):
        read(tmp_path / "a.png", ReadingOptions(max_pixels=79))
    assert read(tmp_path / "a.png", ReadingOptions(max_pixels=200)).pixels.shape == (10, 10, 3)


def test_heic_is_named_where_nothing_here_decodes_it(tmp_path: Path) -> None:
    (tmp_path / "a.heic").write_bytes(pack(">I", 24) + b"ftypheic" + bytes(12))
    with pytest.raises(ItemError, match=r"HEIC cannot be decoded here\. Convert it"):
        read(tmp_path / "a.heic")
