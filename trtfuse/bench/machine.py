"""The machine a measurement holds for: what it is, and how it is just now."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from trtfuse.core.cores import usable_cores
from trtfuse.core.specs import DeviceSpec

_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
# The load of others at which the numbers of a machine are no longer its own.
BUSY = 0.25


def settings(gpus: Sequence[DeviceSpec]) -> dict[str, str]:
    """What has to be equal for times to be comparable."""
    found = {
        "cpu": cpu_name(),
        "cores": str(usable_cores()),
        "governor": governor(),
        "python": ".".join(platform.python_version_tuple()[:2]),
    }
    if gpus:
        from trtfuse.gpu.health import examine

        for gpu, health in zip(gpus, examine(gpus), strict=True):
            limit = "not told" if health.power_limit_w is None else f"{health.power_limit_w:.0f} W"
            clock = health.most_clock_mhz or "not told"
            found[f"cuda:{gpu.index}"] = f"{gpu.name}, {gpu.features}, {limit}, {clock} MHz at most"
    return found


def moment(gpus: Sequence[DeviceSpec]) -> dict[str, str]:
    """What is worth knowing of this moment."""
    found = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "load": f"{load():.2f}",
    }
    if gpus:
        from trtfuse.gpu.health import examine

        for gpu, health in zip(gpus, examine(gpus), strict=True):
            held = f"held down by {', '.join(health.slowdowns)}" if health.slowdowns else "free"
            found[f"cuda:{gpu.index}"] = (
                f"{health.clock_mhz} MHz ({held}), {health.temperature_c} C, {health.power_w} W"
            )
    return found


def load() -> float:
    """Processes that wanted a core over the last minute, for each core that is ours."""
    return os.getloadavg()[0] / usable_cores()


def governor() -> str:
    """How the kernel chooses the CPU's frequency; virtual machines do not tell."""
    return _GOVERNOR.read_text().strip() if _GOVERNOR.exists() else "not told"


def cpu_name() -> str:
    """As its maker calls it."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
