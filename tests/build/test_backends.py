from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from tests.build import samples
from trtfuse.build import backends
from trtfuse.build.backends import DeviceRequest
from trtfuse.core.errors import DeviceError, MissingExtra, UnknownName, UsageError
from trtfuse.core.options import BuildOptions
from trtfuse.core.specs import Precision, TrtSettings
from trtfuse.gpu.devices import scan
from trtfuse.gpu.tensorrt import installed

without_gpus = pytest.mark.skipif(bool(scan().gpus), reason="is about machines without a GPU")


def test_a_device_is_a_kind_and_maybe_a_number_of_workers() -> None:
    assert backends.parse_devices("cpu") == (DeviceRequest(kind="cpu"),)
    assert backends.parse_devices(" cpu:3") == (DeviceRequest(kind="cpu", workers=3),)


@pytest.mark.parametrize("text", ["cpu:", "cpu:0", "cpu:-1", "cpu:two", "cpu:1.5", "cpu:²"])
def test_a_number_of_workers_is_whole_and_above_zero(text: str) -> None:
    with pytest.raises(UsageError, match="needs a number of workers above 0"):
        backends.parse_devices(text)


@pytest.mark.parametrize("text", ["", "gpu", "cpus:2", "cpu,,cpu"])
def test_an_unknown_device_is_answered_with_those_that_exist(text: str) -> None:
    with pytest.raises(UnknownName, match=r"--devices .*Known: cpu"):
        backends.parse_devices(text)


def test_a_device_is_named_once() -> None:
    with pytest.raises(UsageError, match="names a device twice"):
        backends.parse_devices("cpu,cpu:2")


@pytest.mark.parametrize("text", ["cuda", "cuda:0", "rtx", "cpu,cuda:1"])
def test_gpus_are_no_devices_and_their_flag_is_named(text: str) -> None:
    with pytest.raises(UsageError, match="GPUs are chosen with --gpus"):
        backends.parse_devices(text)


@without_gpus
def test_without_a_choice_and_without_gpus_the_cpu_is_taken() -> None:
    assert backends.chosen(None) == (DeviceRequest(kind="cpu"),)
    assert backends.of_kind("cuda") == ()


@without_gpus
@pytest.mark.parametrize("text", ["0", "all", "GPU-12345678", "0,1"])
def test_gpus_that_are_not_there_are_an_error_with_the_reason(text: str) -> None:
    with pytest.raises(DeviceError, match=f"--gpus {text}: there is no GPU here: .+"):
        backends.gpus(text)


@pytest.mark.skipif(installed("tensorrt") is not None, reason="TensorRT is installed")
def test_a_device_without_its_runtime_names_the_package() -> None:
    with pytest.raises(MissingExtra, match=r"NVIDIA H200: needs TensorRT, .*'trtfuse\[gpu\]'"):
        backends.target("tensorrt", samples.H200.device)


def test_rtx_is_one_target_for_all_gpus_named() -> None:
    settings = TrtSettings(compute_capabilities=("8.6", "12.0"))
    options = BuildOptions(model=Path("x.onnx"), runtime="rtx", settings=settings)
    (target,) = backends.to_build(options)
    assert (target.device.name, target.device.features) == ("RTX 8.6 12.0", "sm86 sm120")
    assert target.runtime_version == version("tensorrt_rtx")


@pytest.mark.parametrize(
    ("runtime", "installed", "rest", "bf16"),
    [
        ("tensorrt", "8.6.0", Precision.FP32, False),
        ("tensorrt", "10.16.1.11", Precision.FP32, True),
        ("tensorrt", "11.0.0", Precision.FP16, True),
        ("tensorrt_rtx", "1.7.1.116", Precision.FP16, True),
    ],
)
def test_what_a_release_computes_in_is_known_before_it_is_loaded(
    runtime: str, installed: str, rest: Precision, bf16: bool
) -> None:
    backend = backends.BACKENDS[runtime]
    assert backend.rest(installed) is rest
    assert (Precision.BF16 not in backend.refused(installed)) is bf16


def test_a_target_is_a_device_of_this_machine_and_the_installed_runtime() -> None:
    (target,) = backends.targets(DeviceRequest(kind="cpu", workers=2))
    assert target.device.kind == "cpu"
    assert target.runtime in backends.BACKENDS
    assert target.runtime_version[0].isdigit()
