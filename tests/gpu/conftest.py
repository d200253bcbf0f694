from __future__ import annotations

from importlib.util import find_spec

import pytest

from trtfuse.gpu.devices import scan


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests that need TensorRT and a device say why they do not run."""
    if item.get_closest_marker("gpu") is None:
        return
    found = scan()
    if not found.gpus:
        pytest.skip(f"no GPU: {found.reason}")
    if find_spec("tensorrt") is None:
        pytest.skip("TensorRT is not installed")
