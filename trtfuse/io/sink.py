"""A folder of results: one line an item, and the files that answers bring."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO, TypeVar

import cv2
import numpy as np

from trtfuse.core.errors import ItemError, UsageError
from trtfuse.core.files import replacing
from trtfuse.core.flow import Answer, ArrayFile, ArraysFile, Failure, Item, Json, PictureFile
from trtfuse.core.specs import Array, Arrays
from trtfuse.io import names
from trtfuse.io.keys import key_of

T = TypeVar("T")

Annotate = Callable[[Array, Sequence[Mapping[str, Any]]], Array]
"""(pixels, detections as in results.jsonl) -> pixels of a copy."""

# PNG level 1 takes 15 ms for 512 x 512 where level 6 takes 39, for 4 % more bytes. JPEG 95 is
# where a copy of a photograph cannot be told from it by eye.
_PNG = (cv2.IMWRITE_PNG_COMPRESSION, 1)
_JPEG = (cv2.IMWRITE_JPEG_QUALITY, 95)


def failed(key: str, failure: Failure) -> Json:
    """The line of an item that failed."""
    return {"key": key, "error": {"kind": failure.kind, "message": failure.message}}


class FolderSink:
    """Writes below `output`. A context, used once.

    Lines go to results.jsonl.part; when the context closes without an error, that becomes
    results.jsonl. After an interruption it stays: whole lines of all items that were done, in
    order. An older results.jsonl goes with the first new line, from when on the files beside it
    are no longer its own.

    With `annotate`, a picture with detections is also kept with these drawn on it, under its own
    name where it is PNG or JPEG, else as PNG. Entering raises UsageError where `output` cannot be
    written or holds something else.
    """

    def __init__(self, output: Path, annotate: Annotate | None = None) -> None:
        self._output = output
        self._annotate = annotate
        self._results = output / names.RESULTS
        self._part = output / names.PART
        self._lines: TextIO

    def __enter__(self) -> FolderSink:
        try:
            self._output.mkdir(parents=True, exist_ok=True)
            _check_ours(self._output)
            # Buffered by line, so that a killed run leaves none of them half. A name in an error
            # message may hold what UTF-8 does not: as \udcxx it is still JSON.
            self._lines = self._part.open(
                "w", buffering=1, encoding="utf-8", errors="backslashreplace", newline="\n"
            )
        except OSError as error:
            raise self._unwritable(error) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        with self._lines:
            if kind is None:
                os.fsync(self._lines.fileno())
                self._part.replace(self._results)

    def store(self, item: Item, answer: Answer) -> Json:
        """Write the answer's file, or the annotated copy; return the item's line."""
        line = {"key": item.key, **answer.fields}
        detections = answer.fields.get("detections")
        if answer.file is not None:
            line["output"] = key_of(self._keep(item.key, answer.file))
        elif self._annotate is not None and detections is not None:
            pixels = self._annotate(item.load().pixels, detections)
            self._write(names.annotated_path(item.key), _write_picture, pixels)
        return line

    def commit(self, line: Json) -> None:
        """Add the next line. Raises UsageError where it cannot be written."""
        try:
            self._results.unlink(missing_ok=True)
            self._lines.write(json.dumps(line, ensure_ascii=False) + "\n")
        except OSError as error:
            raise self._unwritable(error) from error

    def _keep(self, key: str, file: PictureFile | ArrayFile | ArraysFile) -> str:
        """Write `file`; its path below the output."""
        match file:
            case PictureFile(pixels=pixels):
                return self._write(names.picture_path(key), _write_picture, pixels)
            case ArrayFile(array=array):
                return self._write(names.array_path(key, ".npy"), _write_array, array)
            case ArraysFile(arrays=arrays):
                return self._write(names.array_path(key, ".npz"), _write_arrays, arrays)

    def _write(self, path: str, write: Callable[[Path, T], None], content: T) -> str:
        try:
            with replacing(self._output / path) as part:
                write(part, content)
        except OSError as error:
            raise ItemError(f"{key_of(path)} cannot be written: {error.strerror}.") from error
        return path

    def _unwritable(self, error: OSError) -> UsageError:
        return UsageError(
            f"--output {self._output}: cannot be written ({error.strerror}). "
            "Choose another folder, or make room and rights for it."
        )


def _check_ours(output: Path) -> None:
    """Raise UsageError for a folder with something in it that no run of trtfuse has left."""
    found = {entry.name for entry in output.iterdir() if not entry.name.startswith(".")}
    if found and not found & {names.RESULTS, names.PART}:
        raise UsageError(
            f"--output {output}: holds {len(found)} entries ({min(found)!r}, ...) and no "
            f"{names.RESULTS}, so they are not results. Choose another folder, or empty it."
        )


def _write_picture(part: Path, pixels: Array) -> None:
    bgr = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
    png = part.suffix.lower() in names.PNG
    encoded, data = cv2.imencode(".png" if png else ".jpg", bgr, _PNG if png else _JPEG)
    if not encoded:
        height, width = pixels.shape[:2]
        raise ItemError(f"{width} x {height} pixels are more than {part.suffix} can hold.")
    part.write_bytes(data.data)


def _write_array(part: Path, array: Array) -> None:
    np.save(part, array, allow_pickle=False)


def _write_arrays(part: Path, arrays: Arrays) -> None:
    # `np.savez` takes arrays as keywords beside its own, and an output may be called "file".
    with zipfile.ZipFile(part, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
