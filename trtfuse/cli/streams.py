"""Standard output and error that hold anywhere: closed, full, ASCII only, or gone under way.

What cannot be encoded is escaped. Standard error carries progress and remarks: where it is gone,
the night goes on without. Standard output carries the result: where it is gone, the command says
so and ends, quietly where its reader has left (`| head`).
"""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO

CLOSED = 141
"""Exit code of who wrote to a reader that had left: 128 and SIGPIPE, as a shell has it."""


class OutputLost(Exception):
    """Standard output takes nothing any more. `code` is the exit code."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"standard output cannot be written ({error.strerror}).")
        self.code = CLOSED if isinstance(error, BrokenPipeError) else 1


class _Output(io.TextIOWrapper):
    """Raises OutputLost where the stream is lost, from the first time on silent."""

    def write(self, text: str) -> int:
        try:
            written = super().write(text)
            super().flush()
        except OSError as error:
            self.lost(error)
            return len(text)
        return written

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self.lost(error)

    def lost(self, error: OSError) -> None:
        """From now on to nowhere; what is buffered too, which the interpreter writes at its end."""
        _to_nowhere(self.fileno())
        raise OutputLost(error)


class _Remarks(_Output):
    """Goes silent where the stream is lost."""

    def lost(self, error: OSError) -> None:
        """From now on to nowhere."""
        _to_nowhere(self.fileno())


def prepare() -> None:
    """Make the standard streams hold. Before anything is opened."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # Or the next file opened gets its number, and what libraries print.
            _to_nowhere(number)
    sys.stdout = _held(sys.stdout, 1, _Output)
    sys.stderr = _held(sys.stderr, 2, _Remarks)


def _held(stream: TextIO | None, number: int, kind: type[_Output]) -> TextIO:
    raw = io.BufferedWriter(io.FileIO(number, "w", closefd=False))
    encoding = "utf-8" if stream is None else stream.encoding
    return kind(raw, encoding=encoding, errors="backslashreplace", line_buffering=True)


def _to_nowhere(number: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere == number:
        os.set_inheritable(number, True)  # children need it too
    else:
        os.dup2(nowhere, number)
        os.close(nowhere)
