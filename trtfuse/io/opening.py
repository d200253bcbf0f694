"""Which source and which sink a path stands for."""

from __future__ import annotations

from pathlib import Path

from trtfuse.core.errors import UsageError
from trtfuse.core.options import ReadingOptions, WritingOptions
from trtfuse.io.annotate import draw
from trtfuse.io.folder import FolderSource
from trtfuse.io.hardware import check_decoding
from trtfuse.io.sink import FolderSink, Run


def open_source(
    path: Path,
    reading: ReadingOptions = ReadingOptions(),  # noqa: B008 - frozen
) -> FolderSource:
    """The pictures at `path`, a folder or one file.

    Raises UsageError where there are none, DeviceError where videos are to be decoded on a device
    that is not there.
    """
    if reading.hwaccel is not None:
        check_decoding(reading.hwaccel)
    return FolderSource(path, reading)


def open_sink(
    output: Path,
    *,
    source: Path,
    writing: WritingOptions = WritingOptions(),  # noqa: B008 - frozen
    run: Run | None = None,
) -> FolderSink:
    """A sink at `output` for results of `source`; to be entered.

    Raises UsageError where one lies in the other: results would be read as pictures the next
    time, or would replace the pictures they were made of.
    """
    _check_apart(source, output)
    return FolderSink(output, writing, draw if writing.annotate else None, run)


def _check_apart(source: Path, output: Path) -> None:
    inner, outer = output.resolve(), source.resolve()
    if inner.is_relative_to(outer):
        # Below a hidden folder no source looks.
        hidden = any(part.startswith(".") for part in inner.relative_to(outer).parts)
        if not hidden:
            raise UsageError(
                f"--output {output}: lies in the source {source}, so that the next run would take "
                f"results for pictures. Choose one outside, such as {outer.name}-out beside it."
            )
    elif outer.is_relative_to(inner):
        raise UsageError(
            f"--output {output}: the source {source} lies in it, so that results could replace "
            "their own pictures. Choose another folder."
        )
