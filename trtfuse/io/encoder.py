"""Which video encoder, with which options, and whether FFmpeg knows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import av

from trtfuse.core.errors import UnknownName, UsageError
from trtfuse.core.options import WritingOptions
from trtfuse.io.hardware import check_encoding

# Constant rate factors at which a copy cannot be told from its source by eye, each on its
# encoder's own scale. An encoder that is not here has none, or is lossless.
_CRF = {"libx264": 17, "libx264rgb": 17, "libx265": 19, "libvpx-vp9": 24, "libsvtav1": 22}
_PIXELS = "pix_fmt"
# With AVX-512 code, x264 (core 165) gave other bytes for the same frames in 3 to 28 of 40 runs, and
# in none of 80 with this, which keeps to what gives the same bytes on every processor.
_REPEATABLE = "cpu-independent=1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """An encoder as it will be opened."""

    codec: str
    pixel_format: str
    options: Mapping[str, str]

    @property
    def even(self) -> tuple[bool, bool]:
        """Whether height and width need to be even: chroma has half of them."""
        parts = av.VideoFormat(self.pixel_format, 2, 2).components
        return min(part.height for part in parts) < 2, min(part.width for part in parts) < 2


def encoder(writing: WritingOptions, *, suffix: str) -> Encoder:
    """The encoder for a file of this suffix.

    Raises UsageError for what FFmpeg does not know, DeviceError for a GPU's where there is none.
    """
    codec = writing.codec or ("libvpx-vp9" if suffix == ".webm" else "libx264")
    known = _codec(codec)
    options = dict(writing.encoder_args)
    for name in options:
        if name != _PIXELS and name not in (names := _option_names(codec)):
            raise UnknownName.among(f"--encoder-args of {codec}:", name, names)
    formats = [one.name for one in known.video_formats or ()]
    pixel_format = options.pop(_PIXELS, "yuv420p")
    if formats and pixel_format not in formats:
        raise UsageError(
            f"--codec {codec}: does not take {pixel_format}. Say --encoder-args "
            f"{_PIXELS}=…, with one of {', '.join(formats)}."
        )
    check_encoding(codec, pixel_format)
    if writing.crf is not None and "crf" not in _option_names(codec):
        raise UsageError(
            f"--crf {writing.crf}: {codec} has no such scale. Say what it has with --encoder-args."
        )
    crf = writing.crf if writing.crf is not None else _CRF.get(codec)
    if crf is not None:
        options.setdefault("crf", str(crf))
    if codec.startswith("libx264"):
        options["x264-params"] = ":".join(filter(None, (_REPEATABLE, options.get("x264-params"))))
    if codec == "libvpx-vp9":
        # Without it, the factor is only a limit to a bit rate of its own (libvpx, "CQ mode").
        options.setdefault("b", "0")
    return Encoder(codec=codec, pixel_format=pixel_format, options=options)


def _codec(name: str) -> av.Codec:
    try:
        codec = av.Codec(name, "w")
    except av.codec.codec.UnknownCodecError as error:
        raise UsageError(
            f"--codec {name}: FFmpeg here has no encoder of that name. Such are libx264, libx265, "
            "libvpx-vp9, libsvtav1, ffv1 and, with a GPU, h264_nvenc and hevc_nvenc."
        ) from error
    if codec.type != "video":
        raise UsageError(f"--codec {name}: encodes {codec.type}, not video.")
    return codec


def _option_names(codec: str) -> set[str]:
    options = av.CodecContext.create(codec, "w").supported_options
    return {option.name for option in (*options.generic, *options.private)}
