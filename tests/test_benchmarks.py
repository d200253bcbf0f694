"""Every number that is kept can be made again."""

from __future__ import annotations

import importlib.util
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "benchmarks"


def made_here() -> dict[str, tuple[str, tuple[str, ...]]]:
    """What `make bench` runs, and which file each writes."""
    spec = importlib.util.spec_from_file_location("again", FOLDER / "again.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, tuple[str, tuple[str, ...]]] = module.BENCHMARKS
    return found


def on_gpus(name: str) -> bool:
    return name.startswith("gpu_") or name.endswith("_gpu.json") or name == "vs_pytorch.json"


def test_every_result_file_is_made_by_make_bench_or_on_gpus() -> None:
    kept = {path.name for path in (FOLDER / "results").glob("*.json") if not on_gpus(path.name)}
    assert kept <= {result for result, _ in made_here().values()}


def test_every_benchmark_that_make_bench_runs_is_there_and_writes_what_it_says() -> None:
    for name, (result, _) in made_here().items():
        text = (FOLDER / f"{name}.py").read_text()
        assert result.partition("_cpu")[0].removesuffix(".json") in text
