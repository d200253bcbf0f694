"""A program whose children would start it again, ended with a sentence."""

from __future__ import annotations

import multiprocessing
import os
import sys

UNGUARDED_CODE = 119
"""Exit code of a child that was ended here, by which its parent knows."""
UNGUARDED = (
    "was called by a child process that imported the program's main file. Put what the file does "
    'below `if __name__ == "__main__":`, so that only the program does it.'
)


def require_guard() -> None:
    """End a child that is still importing the program's main file, and say why.

    That file then does again what its parent is at: it would wait for what the parent holds (the
    folder of a build), for ever, before Python came to say that no process can be started yet. Its
    parent knows the exit code, and raises StartFailed.
    """
    # CPython's own mark of it, which multiprocessing itself looks at before it starts a process.
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        sys.stderr.write(f"trtfuse: {UNGUARDED}\n")
        sys.stderr.flush()
        os._exit(UNGUARDED_CODE)
