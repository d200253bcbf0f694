from __future__ import annotations

import re
from dataclasses import replace

import pytest

from trtfuse.core.errors import DeviceError, UnknownName, UsageError
from trtfuse.core.specs import DeviceSpec
from trtfuse.gpu import devices
from trtfuse.gpu.devices import Scan, choose, instances, visible


def gpu(index: int, uuid: str, name: str = "NVIDIA L4") -> DeviceSpec:
    return DeviceSpec(
        name=name,
        kind="cuda",
        features="sm89 22GiB driver550",
        index=index,
        uuid=uuid,
        memory_bytes=22 << 30,
    )


EQUAL = (gpu(0, "GPU-aaaa1"), gpu(1, "GPU-aaaa2"), gpu(2, "GPU-bbbb"), gpu(3, "MIG-cccc"))
UNEQUAL = (*EQUAL[:2], gpu(2, "GPU-bbbb", "NVIDIA H200"))
PCI = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def uuids(gpus: tuple[DeviceSpec, ...]) -> list[str]:
    assert [one.index for one in gpus] == list(range(len(gpus)))
    return [one.uuid for one in gpus]


def test_without_a_mask_every_gpu_is_visible() -> None:
    assert visible(EQUAL, {}) == EQUAL


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        pytest.param("2,0", ["GPU-bbbb", "GPU-aaaa1"], id="numbers"),
        pytest.param("GPU-b,MIG-cccc", ["GPU-bbbb", "MIG-cccc"], id="uuids"),
        pytest.param(" 1 , 2 ", ["GPU-aaaa2", "GPU-bbbb"], id="spaces"),
        pytest.param("", [], id="empty"),
        pytest.param("-1", [], id="minus-one"),
        pytest.param("NoDevFiles", [], id="a-word"),
        pytest.param("1,9,0", ["GPU-aaaa2"], id="what-follows-an-unknown-number-is-hidden"),
        pytest.param("1,1,0", ["GPU-aaaa2"], id="what-follows-a-repetition-is-hidden"),
        pytest.param("GPU-aaaa", [], id="a-prefix-of-two"),
    ],
)
def test_a_mask_counts_as_cuda_counts_it(mask: str, expected: list[str]) -> None:
    assert uuids(visible(EQUAL, {devices.MASK: mask})) == expected


def test_numbers_of_unequal_gpus_are_refused_unless_their_order_is_settled() -> None:
    with pytest.raises(UsageError, match=r"CUDA_DEVICE_ORDER=PCI_BUS_ID.*\n  cuda:0  NVIDIA L4"):
        visible(UNEQUAL, {devices.MASK: "2"})
    assert uuids(visible(UNEQUAL, {devices.MASK: "2"} | PCI)) == ["GPU-bbbb"]
    assert uuids(visible(UNEQUAL, {devices.MASK: "GPU-bbbb"})) == ["GPU-bbbb"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("all", [0, 1, 2, 3]),
        ("0,1,2,3", [0, 1, 2, 3]),
        ("3, 0", [3, 0]),
        ("GPU-b", [2]),
        ("MIG-cccc,GPU-aaaa2", [3, 1]),
    ],
)
def test_gpus_are_chosen_by_number_or_uuid(text: str, expected: list[int]) -> None:
    assert [one.index for one in choose(text, Scan(gpus=EQUAL))] == expected


@pytest.mark.parametrize("text", ["4", "0,4", "GPU-x", "aaaa1", "", "0,,1", "²"])
def test_what_is_not_there_is_named_with_the_list_of_what_is(text: str) -> None:
    with pytest.raises(UnknownName, match=r"is not there\. There are:\n  cuda:0  NVIDIA L4, 22528"):
        choose(text, Scan(gpus=EQUAL))


def test_a_prefix_of_two_gpus_is_a_question() -> None:
    with pytest.raises(UnknownName, match="'GPU-aaaa' fits several"):
        choose("GPU-aaaa", Scan(gpus=EQUAL))


def test_a_gpu_named_twice_is_an_error() -> None:
    with pytest.raises(UsageError, match="names cuda:2 twice"):
        choose("2,GPU-bbbb", Scan(gpus=EQUAL))


def test_without_a_gpu_the_reason_is_told() -> None:
    with pytest.raises(DeviceError, match="--gpus all: there is no GPU here: NVML: Driver Not L"):
        choose("all", Scan(gpus=(), reason="NVML: Driver Not Loaded"))


def test_a_scan_says_what_there_is_or_why_there_is_nothing() -> None:
    found = devices.scan()
    assert bool(found.gpus) is not bool(found.reason)
    assert [one.index for one in found.gpus] == list(range(len(found.gpus)))


def test_a_device_that_is_not_there_is_an_error_on_any_machine() -> None:
    with pytest.raises(DeviceError, match=re.escape("cuda:99: is not there. There ")):
        devices.named("cuda:99")


@pytest.mark.parametrize(
    ("free", "one", "expected"),
    [
        pytest.param(10 << 30, 3 << 30, 3, id="a-reserve-of-512-MiB-is-kept"),
        pytest.param(100 << 30, 19 << 30, 5, id="a-reserve-of-5-percent-is-kept"),
        pytest.param(100 << 30, (19 << 30) + 1, 4, id="not-a-byte-of-it-is-used"),
        pytest.param(1 << 20, 1 << 30, 0, id="none-fits"),
    ],
)
def test_as_many_instances_as_fit_beside_the_reserve(free: int, one: int, expected: int) -> None:
    assert instances(free, one) == expected


FOUND = Scan(gpus=EQUAL[:2])
NONE = Scan(gpus=(), reason="NVML: Driver Not Loaded")
MASKED = replace(FOUND, mask="3,1")


@pytest.mark.parametrize(
    ("found", "tensorrt", "used", "said"),
    [
        (MASKED, "10.9", True, "DEVICES=3,1: cuda:0 is GPU-aaaa1, cuda:1 is GPU-aaaa2"),
        (FOUND, "10.9", True, ""),
        (MASKED, "10.9", False, ""),  # it was the user's choice, or there is no engine
        (NONE, "10.9", False, "10.9 is installed, and no GPU can be used: NVML: Driver Not"),
        (FOUND, None, False, "2 x NVIDIA L4 take no part: TensorRT is not installed."),
        (NONE, None, False, ""),
    ],
)
def test_what_is_odd_about_gpus_is_said_and_nothing_else(
    found: Scan, tensorrt: str | None, used: bool, said: str
) -> None:
    text = devices.remark(found, tensorrt=tensorrt, used=used)
    assert said in text
    assert bool(text) is bool(said)


@pytest.mark.parametrize(
    ("mode", "pids", "said"),
    [
        (0, [7], ""),
        (3, [], ""),
        (3, [7, 9], "is busy: its compute mode lets one process in, and that is 7, 9"),
        (2, [], "its compute mode is prohibited"),
    ],
)
def test_a_gpu_that_lets_nobody_in_says_who_is_in(mode: int, pids: list[int], said: str) -> None:
    assert devices.refusal(mode, pids)[: len(said)] == said
    assert bool(devices.refusal(mode, pids)) is bool(said)


def test_the_modes_are_nvmls() -> None:
    pynvml = pytest.importorskip("pynvml")
    assert devices.refusal(pynvml.NVML_COMPUTEMODE_PROHIBITED, [])
    assert devices.refusal(pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS, [1])
    assert not devices.refusal(pynvml.NVML_COMPUTEMODE_DEFAULT, [1])


def test_a_listing_says_what_tells_gpus_apart() -> None:
    text = devices.listing([replace(EQUAL[2], index=0)])
    assert text == "There is:\n  cuda:0  NVIDIA L4, 22528 MiB, sm89 22GiB driver550, GPU-bbbb"
