"""What facts mean, on machines that are not here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.doctor.machines import (
    FOR_GPUS,
    GIB,
    gpu,
    machine,
    on_cpu,
    packages,
    with_gpus,
)
from trtfuse.doctor.facts import Facts, Package, Space
from trtfuse.doctor.finding import Finding, Level
from trtfuse.doctor.judge import judge
from trtfuse.gpu.health import Driver, Link, Pair


def at(facts: Facts, level: Level) -> list[Finding]:
    return [one for one in judge(facts) if one.level == level]


def said(facts: Facts, level: Level) -> str:
    return "\n".join(f"{one.subject}: {one.says} -> {one.way_out}" for one in at(facts, level))


def test_a_sound_machine_with_a_gpu_is_ok_throughout() -> None:
    assert at(with_gpus(), "problem") == at(with_gpus(), "note") == []


def test_without_a_driver_the_cpu_is_used_and_that_is_a_note() -> None:
    assert at(on_cpu(), "problem") == []
    assert "everything runs on the CPU" in said(on_cpu(), "note")


def test_every_problem_has_a_way_out() -> None:
    sick = with_gpus(
        gpu(
            slowdowns=("heat",),
            link=Link(generation=4, width=4, most_generation=4, most_width=16),
            ecc_errors=3,
            compute_mode="prohibited",
        ),
        machine=machine(
            python=(3, 9),
            shm=Space(path="/dev/shm", total=64 << 20, free=64 << 20),
            disk=Space(path="/", total=GIB, free=GIB),
            environment={"CUDA_LAUNCH_BLOCKING": "1"},
        ),
        packages={},
        driver=Driver(version="470.10", cuda=(11, 4)),
    )
    found = at(sick, "problem")
    assert len(found) == 16
    assert all(one.way_out for one in found)


@pytest.mark.parametrize(
    ("free", "level"),
    [(64 << 20, "problem"), (65 << 20, "note"), (511 << 20, "note"), (512 << 20, "ok")],
)
def test_shared_memory_is_judged_by_what_a_ring_takes(free: int, level: Level) -> None:
    shm = Space(path="/dev/shm", total=free, free=free)
    facts = on_cpu(machine=machine(shm=shm))
    assert [one.subject for one in at(facts, level) if one.subject == "/dev/shm"]


def test_dockers_64_mib_are_a_problem_with_dockers_way_out() -> None:
    shm = Space(path="/dev/shm", total=64 << 20, free=64 << 20)
    assert "--shm-size" in said(on_cpu(machine=machine(shm=shm)), "problem")


def test_an_old_driver_is_a_problem_and_so_is_one_too_old_for_a_package() -> None:
    old = with_gpus(driver=Driver(version="515.65.01", cuda=(11, 7)))
    assert "needs 535 or later" in said(old, "problem")
    assert "tensorrt and the driver" in said(old, "problem")
    new_wheel = with_gpus(packages=packages(*FOR_GPUS, Package(name="torch", version="2", cuda=13)))
    assert "which needs driver 580 or later; here is 550.54.14" in said(new_wheel, "problem")


def test_a_driver_that_is_there_in_part_is_a_problem_and_not_a_machine_without() -> None:
    facts = on_cpu(
        machine=machine(kernel_module=True), no_gpu="NVML: Driver/library version mismatch"
    )
    assert "version mismatch" in said(facts, "problem")
    assert "reboot" in said(facts, "problem")


def test_gpus_that_are_hidden_are_a_problem_that_names_the_reason() -> None:
    facts = replace(with_gpus(), gpus=(), no_gpu="CUDA_VISIBLE_DEVICES=7 hides every GPU")
    assert "hides every GPU" in said(facts, "problem")


def test_a_mixed_box_needs_an_engine_a_kind_and_is_told_how() -> None:
    ampere = with_gpus(gpu(0), gpu(1, "NVIDIA A10", 86))
    assert "2 (NVIDIA A10, NVIDIA H100)" in said(ampere, "note")
    assert "--hardware ampere+" in said(ampere, "note")
    turing = with_gpus(gpu(0), gpu(1, "Tesla T4", 75))
    assert "below 8.0" in said(turing, "note")


def test_equal_gpus_share_an_engine() -> None:
    assert "an engine serves all 2" in said(with_gpus(gpu(0), gpu(1)), "ok")


def test_a_gpu_without_tensorrt_is_a_problem_with_the_pip_line() -> None:
    assert "pip install 'trtfuse[gpu]'" in said(with_gpus(packages=packages()), "problem")


def test_a_library_that_cannot_be_loaded_is_a_problem_with_its_own_words() -> None:
    broken = Package(name="tensorrt", version="10.1.0", broken="was killed by SIGSEGV")
    facts = with_gpus(packages=packages(*FOR_GPUS[1:], broken))
    assert "10.1.0 cannot be loaded: was killed by SIGSEGV" in said(facts, "problem")


def test_gpus_that_tensorrt_10_gave_up_are_named() -> None:
    assert "is for 7.0 and later" in said(with_gpus(gpu(0, "Tesla P4", 61)), "problem")
    assert "Tesla V100" in said(with_gpus(gpu(0, "Tesla V100", 70)), "note")
    old = packages(replace(FOR_GPUS[0], version="8.6.1"), *FOR_GPUS[1:])
    assert at(with_gpus(gpu(0, "Tesla V100", 70), packages=old), "note") == []


def test_heat_is_a_problem_and_a_limit_that_was_chosen_a_note() -> None:
    assert "held down by heat" in said(with_gpus(gpu(slowdowns=("heat",))), "problem")
    chosen = with_gpus(gpu(slowdowns=("power limit",), power_limit_w=300.0))
    assert at(chosen, "problem") == []
    assert "what was chosen, power limit" in said(chosen, "note")
    assert "nvidia-smi -i 0 -pl 700" in said(chosen, "note")


def test_missing_lanes_are_a_problem_and_a_resting_link_a_note() -> None:
    narrow = Link(generation=4, width=8, most_generation=4, most_width=16)
    resting = Link(generation=1, width=16, most_generation=5, most_width=16)
    assert "PCIe 4 x8, 4 x16 possible" in said(with_gpus(gpu(link=narrow)), "problem")
    assert "may rest while idle" in said(with_gpus(gpu(link=resting)), "note")


def test_what_a_gpu_does_not_tell_is_left_out() -> None:
    silent = gpu(
        clock_mhz=None, temperature_c=None, power_w=None, power_limit_w=None,
        link=None, persistent=None, ecc=None, ecc_errors=None,
    )  # fmt: skip
    assert at(with_gpus(silent), "problem") == at(with_gpus(silent), "note") == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"persistent": False}, "-pm 1"),
        ({"compute_mode": "exclusive process"}, "one worker"),
        ({"mig": True}, "MIG instance"),
        ({"free_bytes": 40 * GIB}, "others hold 40960 MiB of its 81920 MiB"),
    ],
    ids=["persistence", "compute mode", "mig", "memory"],
)
def test_a_setting_that_matters_is_a_note(changes: dict[str, Any], words: str) -> None:
    assert words in said(with_gpus(gpu(**changes)), "note")


def test_what_lies_between_gpus_is_told_for_each_pair() -> None:
    gpus = (gpu(0), gpu(1), gpu(2))
    pairs = (
        Pair(one=0, two=1, peers=True, nvlink=True, path="one NUMA node"),
        Pair(one=0, two=2, peers=False, nvlink=False, path="across CPU sockets"),
    )
    facts = with_gpus(*gpus, pairs=pairs)
    assert "cuda:0 to cuda:1: NVLink, one NUMA node" in said(facts, "ok")
    assert "cuda:0 to cuda:2: through host memory, across CPU sockets" in said(facts, "note")


def test_two_builds_of_onnx_runtime_in_one_folder_are_a_problem() -> None:
    both = packages(Package(name="onnxruntime-gpu", version="1.20.0"))
    assert "which one is loaded is chance" in said(on_cpu(packages=both), "problem")


def test_limits_matter_where_they_are_low_and_locked_memory_with_gpus_only() -> None:
    low = machine(open_files=256, locked_bytes=8 << 20, cores=1)
    assert "memlock=-1" in said(with_gpus(machine=low), "note")
    assert "fewer than two cores" in said(with_gpus(machine=low), "note")
    assert "memlock" not in said(on_cpu(machine=low), "note")
    assert "ulimit -n" in said(on_cpu(machine=low), "note")


def test_variables_of_nccl_and_a_running_mps_are_noted() -> None:
    set_ = machine(environment={"NCCL_P2P_DISABLE": "1", "CUDA_VISIBLE_DEVICES": "0"}, mps=True)
    notes = said(with_gpus(machine=set_), "note")
    assert "NCCL_P2P_DISABLE: 1" in notes
    assert "MPS: is running" in notes
    assert "CUDA_VISIBLE_DEVICES: 0" in said(with_gpus(machine=set_), "ok")
