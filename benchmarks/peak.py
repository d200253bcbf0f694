"""The command, run for its exit code, its words, and the most memory that it had.

`ru_maxrss` is no use: a child starts with what its parent had. VmHWM begins anew with each program.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]

_CODE = """
import sys
from trtfuse.cli.main import main
try:
    main()
finally:
    sys.stderr.write(open("/proc/self/status").read())
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """A run of `trtfuse` that is over."""

    code: int
    words: str
    """What it wrote to stderr."""
    peak_bytes: int
    """Of its own process."""


def started(*words: str) -> subprocess.Popen[str]:
    """`trtfuse *words`, on its way."""
    return subprocess.Popen(
        [sys.executable, "-c", _CODE, *words],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(running: subprocess.Popen[str]) -> Ended:
    """Wait for it."""
    _, said = running.communicate()
    peak = re.search(r"^VmHWM:\s+(\d+) kB$", said, re.MULTILINE)
    assert peak, said
    return Ended(running.returncode, said, 1024 * int(peak[1]))


def run(words: Sequence[str]) -> Ended:
    """`trtfuse *words`, from start to end."""
    return ended(started(*words))
