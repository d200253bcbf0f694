"""What processes hold, as the kernel tells it. Linux only, as all of trtfuse."""

from __future__ import annotations

import os
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")
_SHM = "/dev/shm"

NOTHING = float("nan")


def own_bytes(pid: int | None) -> float:
    """Resident memory of the process that it shares with nobody; NaN where it is gone.

    The ring's pages count for every process that has touched them, and would look like growth.
    """
    try:
        resident, shared = Path(f"/proc/{pid}/statm").read_text().split()[1:3]
    except (FileNotFoundError, ProcessLookupError, ValueError):  # ValueError: it just ended
        return NOTHING
    return float((int(resident) - int(shared)) * _PAGE)


def shared_bytes() -> float:
    """What is held in shared memory by all programs: rings that are left over would show here."""
    status = os.statvfs(_SHM)
    return float((status.f_blocks - status.f_bfree) * status.f_frsize)
