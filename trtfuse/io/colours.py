"""What the numbers of a video's frames mean, and the way to RGB and back by the same rule."""

from __future__ import annotations

from dataclasses import dataclass

import av
from av.video.reformatter import ColorRange, Interpolation

from trtfuse.core.specs import Array

# Numbers of ITU-T H.273: matrix (table 4), 2 is "unspecified" in all of its tables.
_UNSPECIFIED = 2
_RGB, _BT709, _BT601 = 0, 1, 6

# Rounded, and the same on every machine; one thread, because the callers are many. The numbers are
# libswscale's SWS_ACCURATE_RND and SWS_BITEXACT: PyAV 17, the last for Python 3.10, does not name
# them.
_HOW = Interpolation.BILINEAR.value | 0x40000 | 0x80000


@dataclass(frozen=True, slots=True, kw_only=True)
class Colours:
    """The tags of a video stream. Matrix and range are never unspecified."""

    matrix: int
    full_range: bool
    primaries: int
    transfer: int

    def to_rgb(self, frame: av.VideoFrame) -> Array:
        """uint8 (height, width, 3), of 8, 10 or more bits; tone curves are left as they are."""
        self.tag(frame)
        rgb = frame.reformat(
            format="rgb24", interpolation=_HOW, dst_color_range=ColorRange.JPEG, threads=1
        )
        pixels: Array = rgb.to_ndarray()
        return pixels

    def from_rgb(self, pixels: Array, pixel_format: str) -> av.VideoFrame:
        """A frame of `pixel_format` from uint8 (height, width, 3)."""
        rgb = av.VideoFrame.from_ndarray(pixels, format="rgb24")
        rgb.color_range = ColorRange.JPEG
        wanted = ColorRange.JPEG if self.full_range else ColorRange.MPEG
        frame = rgb.reformat(
            format=pixel_format,
            interpolation=_HOW,
            dst_colorspace=_SWSCALE.get(self.matrix, _SWSCALE[_BT601]),
            dst_color_range=wanted,
            threads=1,
        )
        self.tag(frame)
        return frame

    def describe(self, context: av.VideoCodecContext) -> None:
        """Say in the stream to be what its numbers mean."""
        context.colorspace = self.matrix
        context.color_range = ColorRange.JPEG if self.full_range else ColorRange.MPEG
        context.color_primaries = self.primaries
        context.color_trc = self.transfer

    def tag(self, frame: av.VideoFrame) -> None:
        """Say in the frame what its numbers mean."""
        if not frame.format.is_rgb:
            frame.colorspace = self.matrix
            frame.color_range = ColorRange.JPEG if self.full_range else ColorRange.MPEG
        frame.color_primaries = self.primaries
        frame.color_trc = self.transfer


# H.273's number of a matrix -> swscale's.
_SWSCALE = {1: 1, 4: 4, 5: 5, 6: 5, 7: 7, 9: 9, 10: 9}


def colours_of(frame: av.VideoFrame) -> Colours:
    """Of a decoded frame. What it does not say is assumed as players do: BT.709 from 720 lines on,
    else BT.601; limited range, but for pixel formats that are full by definition.
    """
    matrix = int(frame.colorspace)
    if matrix not in _SWSCALE:
        matrix = _BT709 if frame.height >= 720 else _BT601
    full = frame.color_range == ColorRange.JPEG or frame.format.name.startswith("yuvj")
    return Colours(
        matrix=matrix,
        full_range=full,
        primaries=int(frame.color_primaries),
        transfer=int(frame.color_trc),
    )
