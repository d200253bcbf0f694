from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trtfuse.core.errors import DeviceError
from trtfuse.gpu import driver


class Refusing:
    """A driver library whose one call fails, at the level of ctypes."""

    def cuInit(self, flags: Any) -> int:
        return 100

    def cuGetErrorName(self, status: int, name: Any) -> int:
        name._obj.value = b"CUDA_ERROR_NO_DEVICE"
        return 0 if status == 100 else 1


def test_a_status_is_given_with_its_call_and_its_name() -> None:
    with pytest.raises(DeviceError, match=r"cuInit: CUDA_ERROR_NO_DEVICE \(CUDA driver error 100"):
        driver.check(Refusing(), "cuInit", ctypes.c_uint(0))


def test_the_runtime_that_a_package_of_cuda_13_brings_is_found(tmp_path: Path) -> None:
    for name in ("one/nvidia/cu13/lib", "two/nvidia/cu12/lib", "three/nvidia/cuda_runtime/lib"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "one/nvidia/cu13/lib/libcudart.so.13").touch()
    roots = ["", *(str(tmp_path / name) for name in ("three", "two", "one", "none"))]
    assert driver.runtime_folders(roots) == (str(tmp_path / "one/nvidia/cu13/lib"),)


def test_a_process_that_claims_a_gpu_it_has_not_goes_on() -> None:
    """The way every command takes on a machine without a driver: an error, and no crash."""
    code = (
        "from trtfuse.core.errors import DeviceError\n"
        "from trtfuse.gpu.driver import claim\n"
        "try:\n    claim('cuda:99')\n"
        "except DeviceError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("cuda:99: is not there. There ")
