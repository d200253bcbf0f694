"""Facts of this machine."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from typer.testing import CliRunner

from trtfuse.cli.main import app
from trtfuse.doctor.probe import _why_not, gather


def crash(what: str) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def missing(what: str) -> None:
    raise ImportError(f"lib{what}.so: cannot open shared object file")


def test_this_machine_is_found_as_it_is(tmp_path: Path) -> None:
    facts = gather({"NCCL_DEBUG": "INFO", "HOME": "/root", "CUDA_VISIBLE_DEVICES": "0"}, tmp_path)
    assert facts.machine.cores >= 1
    assert facts.machine.disk.free > 0
    assert facts.machine.environment == {"NCCL_DEBUG": "INFO", "CUDA_VISIBLE_DEVICES": "0"}
    assert facts.packages["onnxruntime"].broken == ""
    assert bool(facts.gpus) is not bool(facts.no_gpu)


def test_a_library_that_crashes_or_is_not_there_breaks_a_child_and_is_told() -> None:
    assert "SIGSEGV" in _why_not(crash, "tensorrt")
    assert "libcudart.so: cannot open" in _why_not(missing, "cudart")


def test_the_command_says_the_same_as_json_and_its_exit_code_tells_of_problems() -> None:
    done = CliRunner().invoke(app, ["doctor", "--json"])
    data = json.loads(done.output)
    levels = {one["level"] for one in data["findings"]}
    assert levels <= {"ok", "note", "problem"}
    assert done.exit_code == (4 if "problem" in levels else 0)
    assert data["facts"]["machine"]["shm"]["path"] == "/dev/shm"
