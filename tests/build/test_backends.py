from __future__ import annotations

import pytest

from trtfuse.build import backends
from trtfuse.build.backends import DeviceRequest
from trtfuse.core.errors import UnknownName, UsageError


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


def test_without_a_choice_the_cpu_is_taken() -> None:
    assert backends.chosen(None) == (DeviceRequest(kind="cpu"),)


def test_a_target_is_a_device_of_this_machine_and_the_installed_runtime() -> None:
    (target,) = backends.targets(DeviceRequest(kind="cpu", workers=2))
    assert target.device.kind == "cpu"
    assert target.runtime in backends.BACKENDS
    assert target.runtime_version[0].isdigit()
