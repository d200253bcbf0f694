"""Video decoders and encoders of a GPU, as FFmpeg names them, and whether they are here."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import av
from av.codec.codec import Capabilities
from av.codec.hwaccel import HWAccel, hwdevices_available

from trtfuse.core.errors import DeviceError, UnknownName


def decoding(wanted: str | None) -> HWAccel | None:
    """What `--hwaccel` asks for, as "cuda" or "cuda:1", for `av.open`; None: nothing.

    What it cannot decode is an error there (RuntimeError): no other decoder steps in.
    """
    if wanted is None:
        return None
    kind, _, number = wanted.partition(":")
    return HWAccel(kind, device=number or None, allow_software_fallback=False)


def check_decoding(wanted: str) -> None:
    """Raises UnknownName for what this FFmpeg does not know, DeviceError where none is there."""
    kind = wanted.partition(":")[0]
    if kind not in (known := hwdevices_available()):
        raise UnknownName.among("--hwaccel", kind, known)
    accelerator = decoding(wanted)
    assert accelerator is not None
    try:
        accelerator.create(av.Codec("h264", "r"))
    except NotImplementedError as error:
        raise DeviceError(
            f"--hwaccel {wanted}: the FFmpeg in PyAV decodes no H.264 on it. Leave it out to "
            "decode on the CPU."
        ) from error
    except (av.FFmpegError, OSError, RuntimeError) as error:
        raise DeviceError(
            f"--hwaccel {wanted}: no such device can be opened ({error}). It needs the GPU and its "
            "driver; leave it out to decode on the CPU."
        ) from error


@cache
def check_encoding(codec: str, pixel_format: str) -> None:
    """Raises DeviceError where `codec` runs on a GPU and cannot be opened; others are not tried."""
    known = av.Codec(codec, "w")
    if not known.capabilities & (Capabilities.hardware | Capabilities.hybrid):
        return
    context = av.CodecContext.create(known, "w")
    assert isinstance(context, av.VideoCodecContext)
    # A size that every one of them takes.
    context.width, context.height, context.pix_fmt = 256, 256, pixel_format
    context.time_base = Fraction(1, 25)
    try:
        context.open()
    except (av.FFmpegError, ValueError) as error:
        raise DeviceError(
            f"--codec {codec}: encodes on a GPU, and none here opens it ({error}). It needs the "
            "GPU and its driver; libx264 and libx265 encode on the CPU."
        ) from error
