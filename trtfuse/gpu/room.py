"""How many processes of one kind find room on a GPU."""

from __future__ import annotations

import numpy as np

from trtfuse.core.errors import DeviceError
from trtfuse.core.flow import OpenRunner
from trtfuse.gpu import devices


def fitting(open_runner: OpenRunner, device: str) -> int:
    """How many workers like this one `device` ("cuda:0") holds now: one is opened and measured.

    Run it in a child: the GPU becomes this process's, and the context goes with it. Raises what
    `open_runner` raises; 0: there is no room for another beside the reserve.
    """
    gpu = devices.named(device)
    before = devices.free_bytes(gpu)
    with open_runner(device, np.empty(0, np.uint8)):
        taken = before - devices.free_bytes(gpu)
    if taken <= 0:
        raise DeviceError(
            f"{device}: another program gave memory back while a worker's was measured. Try again, "
            f"or say how many there are to be: --instances 2."
        )
    return devices.instances(before, taken)
