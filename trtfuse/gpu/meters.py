"""What GPUs hold and how busy they are, asked again and again, without a CUDA context."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from trtfuse.core.report import Meters, Usage
from trtfuse.gpu.devices import named, started_nvml

_UNKNOWN = float("nan")


@contextmanager
def meters(devices: Sequence[str]) -> Iterator[Meters]:
    """Usage of the GPUs that are called so here ("cuda:0"). Raises DeviceError for one that is not.

    What NVML does not tell of a GPU (how busy an instance of MIG is), or cannot any more (a GPU
    that fell off its bus), is NaN: a run is not to end because its gauge does.
    """
    gpus = {device: named(device) for device in devices}
    with started_nvml() as nvml:
        handles = {device: nvml.nvmlDeviceGetHandleByUUID(gpu.uuid) for device, gpu in gpus.items()}

        def read() -> Mapping[str, Usage]:
            return {device: _usage(nvml, handle) for device, handle in handles.items()}

        yield read


def _usage(nvml: Any, handle: Any) -> Usage:
    try:
        used = float(nvml.nvmlDeviceGetMemoryInfo(handle).used)
    except nvml.NVMLError:
        used = _UNKNOWN
    try:
        busy = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
    except nvml.NVMLError:
        busy = _UNKNOWN
    return Usage(used_bytes=used, busy=busy)
