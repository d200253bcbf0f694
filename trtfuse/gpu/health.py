"""How the GPUs are: clocks, heat, links, settings. NVML tells, without a context.

What a GPU or its driver does not tell is None: many cards have no ECC.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from trtfuse.core.specs import DeviceSpec
from trtfuse.gpu.devices import started_nvml

# nvml.h, nvmlClocksEventReasons. What is left out slows nothing that computes: idle, a display.
_SLOWDOWNS = {
    0x2: "clocks set by somebody",
    0x4: "power limit",
    0x8: "hardware slowdown",
    0x10: "kept in step with another GPU",
    0x20: "heat",
    0x40: "heat, by hardware",
    0x80: "power brake",
}
# nvmlGpuTopologyLevel_t
_PATHS = {
    0: "on one board",
    10: "one PCIe switch",
    20: "several PCIe switches",
    30: "one host bridge",
    40: "one NUMA node",
    50: "across CPU sockets",
}
_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
# nvmlGpuP2PCapsIndex_t; the package itself has a tuple in place of the first.
_P2P_READ, _P2P_NVLINK = 0, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A GPU's PCIe link. It may rest at a lower generation while idle."""

    generation: int
    width: int
    most_generation: int
    """That GPU and slot are capable of."""
    most_width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """One GPU now."""

    uuid: str
    free_bytes: int
    clock_mhz: int | None = None
    """Of the multiprocessors."""
    most_clock_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    default_power_limit_w: float | None = None
    slowdowns: tuple[str, ...] = ()
    """What holds its clocks down, in words."""
    link: Link | None = None
    persistent: bool | None = None
    ecc: bool | None = None
    ecc_errors: int | None = None
    """Uncorrected ones since the driver was loaded."""
    compute_mode: str = "default"
    mig: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two GPUs, by their numbers, and what lies between them."""

    one: int
    two: int
    peers: bool | None
    """Whether each reads the other's memory."""
    nvlink: bool | None
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """The driver of this machine."""

    version: str
    cuda: tuple[int, int]
    """The newest CUDA it runs."""


def driver() -> Driver:
    """Raises DeviceError where there is none."""
    with started_nvml() as nvml:
        cuda = nvml.nvmlSystemGetCudaDriverVersion_v2()
        return Driver(
            version=nvml.nvmlSystemGetDriverVersion(), cuda=(cuda // 1000, cuda % 1000 // 10)
        )


def examine(gpus: Sequence[DeviceSpec]) -> tuple[Health, ...]:
    """Each of `gpus` as it is now. Raises DeviceError where NVML fails."""
    with started_nvml() as nvml:
        return tuple(_health(nvml, gpu) for gpu in gpus)


def pairs(gpus: Sequence[DeviceSpec]) -> tuple[Pair, ...]:
    """Every two of `gpus` that are whole GPUs. Raises DeviceError where NVML fails."""
    whole = [gpu for gpu in gpus if gpu.uuid.startswith("GPU-")]
    with started_nvml() as nvml:
        return tuple(_pair(nvml, one, two) for one, two in combinations(whole, 2))


def slowdowns(mask: int) -> tuple[str, ...]:
    """What a mask of clock event reasons says, without what does not matter.

    >>> slowdowns(0x1 | 0x4 | 0x40)
    ('power limit', 'heat, by hardware')
    """
    return tuple(words for bit, words in _SLOWDOWNS.items() if mask & bit)


def _health(nvml: Any, gpu: DeviceSpec) -> Health:
    part = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
    mig = gpu.uuid.startswith("MIG-")
    # An instance has no clocks, heat or link of its own; its GPU has.
    handle = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part) if mig else part
    power, limit, default = (
        _ask(nvml, f"nvmlDeviceGet{name}", handle)
        for name in ("PowerUsage", "EnforcedPowerLimit", "PowerManagementDefaultLimit")
    )
    mode = _ask(nvml, "nvmlDeviceGetComputeMode", handle)
    ecc = _ask(nvml, "nvmlDeviceGetEccMode", handle)
    persistent = _ask(nvml, "nvmlDeviceGetPersistenceMode", handle)
    return Health(
        uuid=gpu.uuid,
        free_bytes=int(nvml.nvmlDeviceGetMemoryInfo(part).free),
        clock_mhz=_ask(nvml, "nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
        most_clock_mhz=_ask(nvml, "nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_SM),
        temperature_c=_ask(nvml, "nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU),
        power_w=_watts(power),
        power_limit_w=_watts(limit),
        default_power_limit_w=_watts(default),
        slowdowns=slowdowns(_ask(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", handle) or 0),
        link=_link(nvml, handle),
        persistent=None if persistent is None else bool(persistent),
        ecc=None if ecc is None else bool(ecc[0]),
        ecc_errors=_ask(
            nvml,
            "nvmlDeviceGetTotalEccErrors",
            handle,
            nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            nvml.NVML_VOLATILE_ECC,
        ),
        compute_mode=_MODES.get(mode, "default"),
        mig=mig,
    )


def _link(nvml: Any, handle: Any) -> Link | None:
    found = [
        _ask(nvml, f"nvmlDeviceGet{name}", handle)
        for name in (
            "CurrPcieLinkGeneration",
            "CurrPcieLinkWidth",
            "MaxPcieLinkGeneration",
            "MaxPcieLinkWidth",
        )
    ]
    if any(one is None for one in found):
        return None
    generation, width, most_generation, most_width = found
    return Link(
        generation=generation,
        width=width,
        most_generation=most_generation,
        most_width=most_width,
    )


def _pair(nvml: Any, one: DeviceSpec, two: DeviceSpec) -> Pair:
    handles = [nvml.nvmlDeviceGetHandleByUUID(gpu.uuid) for gpu in (one, two)]
    peers, nvlink = (
        _ask(nvml, "nvmlDeviceGetP2PStatus", *handles, index) for index in (_P2P_READ, _P2P_NVLINK)
    )
    level = _ask(nvml, "nvmlDeviceGetTopologyCommonAncestor", *handles)
    return Pair(
        one=one.index,
        two=two.index,
        peers=None if peers is None else peers == nvml.NVML_P2P_STATUS_OK,
        nvlink=None if nvlink is None else nvlink == nvml.NVML_P2P_STATUS_OK,
        path=_PATHS.get(level, "not told"),
    )


def _ask(nvml: Any, call: str, *args: Any) -> Any:
    """What NVML answers; None where this GPU, driver or user is not told."""
    try:
        return getattr(nvml, call)(*args)
    except (
        nvml.NVMLError_NotSupported,
        nvml.NVMLError_FunctionNotFound,
        nvml.NVMLError_NoPermission,
    ):
        return None


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000
