"""How GPUs are; what needs none is in the module's own examples."""

from __future__ import annotations

import pytest

from trtfuse.gpu import health
from trtfuse.gpu.devices import scan


@pytest.mark.gpu
def test_every_gpu_tells_what_a_benchmark_and_a_doctor_ask() -> None:
    gpus = scan().gpus
    assert gpus
    for gpu, found in zip(gpus, health.examine(gpus), strict=True):
        assert found.uuid == gpu.uuid
        assert 0 < found.free_bytes <= gpu.memory_bytes
        assert found.clock_mhz is not None
        assert found.most_clock_mhz is not None
        assert 0 < found.clock_mhz <= found.most_clock_mhz
        assert found.link is not None
        assert found.link.width <= found.link.most_width
    assert health.driver().cuda >= (11, 0)
    assert len(health.pairs(gpus)) == len(gpus) * (len(gpus) - 1) // 2
