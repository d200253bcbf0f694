"""Make the result files of benchmarks/results/ anew, all that a machine without a GPU can make.

    make bench
    python benchmarks/again.py [--all | NAME ...]

One benchmark after the other, each in a process of its own; one that fails does not stop the next.
Leave the machine alone meanwhile. Without --all only the short ones are made, in about ten minutes
on 2 cores; the long ones would lose what they are for if they were cut. Files whose names begin
with gpu_, and vs_pytorch.json, need a GPU and PyTorch: gpu_session.sh makes them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).parent

# What each writes, and with what it is called; WORK is an empty folder.
SHORT: dict[str, tuple[str, tuple[str, ...]]] = {
    "pool_overhead": ("pool_overhead.json", ("--rounds", "15", "--batches", "16")),
    "loading": ("loading.json", ()),
    "export_memory": ("export_memory.json", ()),
    "dispatch": ("dispatch.json", ("--rounds", "5")),
    "calibration_cost": ("calibration_cost.json", ()),
    "torch_modes": ("torch_modes.json", ()),
    "video_end_to_end": ("video_end_to_end.json", ("--rounds", "1", "--large", "40")),
}
LONG: dict[str, tuple[str, tuple[str, ...]]] = {
    "same_bytes": ("same_bytes.json", ()),
    "export_nets": ("export_nets.json", ()),
    "scaling": ("scaling_cpu.json", ("WORK", "--devices", "1,2", "--kind", "cpu")),
    "precision": ("precision.json", ()),
    "faces_int8": ("faces_int8.json", ()),
    "export_matrix": ("export_matrix.json", ()),
    "soak": ("soak.json", ("--pictures", "8000", "--videos", "4")),
    "recovery": ("recovery.json", ("--jobs", "8")),
}
BENCHMARKS = SHORT | LONG


def main() -> None:
    """Run those that are named, else the short ones; say how long each took."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("names", nargs="*", help=", ".join(BENCHMARKS))
    arguments.add_argument("--all", action="store_true", help="the long ones too")
    given = arguments.parse_args()
    names = given.names or list(BENCHMARKS if given.all else SHORT)
    if unknown := [name for name in names if name not in BENCHMARKS]:
        arguments.error(f"{unknown[0]}: not known. Known: {', '.join(BENCHMARKS)}")
    taken = {name: run(name) for name in names}
    print(f"\n{sum(seconds for seconds, _ in taken.values()):6.0f} s in all")
    for name, (seconds, code) in taken.items():
        print(f"{seconds:6.0f} s  {name}{f', failed with {code}' if code else ''}")
    sys.exit(any(code for _, code in taken.values()))


def run(name: str) -> tuple[float, int]:
    """Seconds and exit code."""
    print(f"== {name}", flush=True)
    started = time.perf_counter()
    with TemporaryDirectory() as work:
        words = (work if word == "WORK" else word for word in BENCHMARKS[name][1])
        command = [sys.executable, str(HERE / f"{name}.py"), *words]
        code = subprocess.run(command, check=False).returncode
    return time.perf_counter() - started, code


if __name__ == "__main__":
    main()
