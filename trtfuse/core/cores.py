"""How many cores are ours to use.

Linux only, as all of trtfuse: /proc and cgroups are read, and nothing is run.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


def usable_cores() -> int:
    """Cores this process may use: its affinity mask, cut by the CPU quota of its cgroups."""
    listed = Path("/proc/self/cgroup")  # not there on kernels without control groups
    cgroups = parse_cgroups(listed.read_text() if listed.exists() else "")
    return whole_cores(len(os.sched_getaffinity(0)), quotas(Path("/sys/fs/cgroup"), cgroups))


def threads_per_worker(workers: int) -> int:
    """Threads for each of `workers` on this CPU, so that all together fill the usable cores."""
    return max(1, usable_cores() // workers)


def whole_cores(affinity: int, limits: Sequence[float]) -> int:
    """Cores that may run without pause, at least 1.

    A quota of 2.5 counts as 2: threads that wait for one another lose more by being stopped in
    every period than the half core gives.
    """
    return max(1, int(min((affinity, *limits))))


def parse_cgroups(text: str) -> tuple[str, ...]:
    """Folders below /sys/fs/cgroup that may limit the CPU, from /proc/self/cgroup.

    Every ancestor limits too, so each is listed: "0::/a/b" gives "a/b", "a" and ".". In a container
    the path may be that of the host; what is not there is skipped by `quotas`.
    """
    folders: list[str] = []
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        # Version 2 has one tree; version 1 has one a set of controllers, linked as "cpu" too.
        tree = Path("cpu") if controllers else Path()
        leaf = Path(path.lstrip("/"))
        folders += [str(tree / one) for one in (leaf, *leaf.parents)]
    return tuple(dict.fromkeys(folders))


def quotas(root: Path, cgroups: Sequence[str]) -> tuple[float, ...]:
    """The limits, in cores, found in the given folders below `root`."""
    found = []
    for folder in (root / one for one in cgroups):
        if (both := folder / "cpu.max").is_file():
            found.append(parse_quota(both.read_text()))
        elif (quota := folder / "cpu.cfs_quota_us").is_file():
            period = (folder / "cpu.cfs_period_us").read_text()
            found.append(parse_quota(f"{quota.read_text()} {period}"))
    return tuple(limit for limit in found if limit is not None)


def parse_quota(text: str) -> float | None:
    """Cores from "QUOTA PERIOD", both in microseconds; None for "max" and -1: no limit."""
    quota, period = text.split()
    return None if quota in ("max", "-1") else int(quota) / int(period)
