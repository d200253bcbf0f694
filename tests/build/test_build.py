from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import pytest

from tests.build import samples
from tests.contracts.runner import NO_RING, rows, run
from tests.cpu import graphs
from trtfuse.build import backends, store
from trtfuse.build.backends import DeviceRequest
from trtfuse.build.build import BuildReport, build
from trtfuse.build.store import Engine
from trtfuse.core.card import Card, InputCard
from trtfuse.core.errors import BuildFailed, CardError, UsageError
from trtfuse.core.options import BuildOptions

(HERE,) = backends.targets(DeviceRequest(kind="cpu"))
SPAWN = multiprocessing.get_context("spawn")


def options(folder: Path) -> BuildOptions:
    return BuildOptions(model=folder / "line.onnx", batch=(1, 2, 8), engines=folder / "engines")


def quiet(line: str) -> None:
    pass


def only(report: BuildReport) -> Engine:
    (outcome,) = report.outcomes
    return outcome.engine


def built(report: BuildReport) -> list[bool]:
    return [outcome.built for outcome in report.outcomes]


def slope(engine: Engine) -> float:
    """What the engine computes."""
    store.verify(engine)
    opener = backends.BACKENDS["onnxruntime"].opener(engine.path, engine.manifest, 1)
    with opener("cpu:0", NO_RING) as runner:
        (first, second) = run(runner, rows(2))[0, :2]
    return float(second - first)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and its engine; tests copy nothing of it and change nothing in it."""
    folder = tmp_path_factory.mktemp("kept")
    graphs.line(folder / "line.onnx")
    assert built(build(options(folder), quiet)) == [True]
    return folder


def test_an_engine_is_found_and_runs(kept: Path) -> None:
    engine = store.find(kept / "engines", model=None, engine=None, target=HERE)
    assert engine.folder.name.startswith("cpu-onnxruntime-fp32-")
    assert slope(engine) == 2.0


def test_nothing_but_the_engine_its_manifest_and_the_lock_is_left(kept: Path) -> None:
    engine = store.find(kept / "engines", model=None, engine=None, target=HERE)
    files = {str(p.relative_to(kept)) for p in kept.rglob("*") if p.is_file()}
    folder = engine.folder.relative_to(kept)
    assert files == {
        "line.onnx",
        "engines/line/.lock",
        f"{folder}/engine.onnx",
        f"{folder}/manifest.json",
    }


def test_a_second_build_keeps_the_engine_byte_for_byte(kept: Path) -> None:
    before = {path: path.read_bytes() for path in kept.rglob("*.[jo]*n*")}
    said: list[str] = []
    report = build(options(kept), said.append)
    assert (built(report), said) == ([False], [])
    assert {path: path.read_bytes() for path in kept.rglob("*.[jo]*n*")} == before


def test_finding_an_engine_up_to_date_imports_neither_onnx_nor_a_runtime(kept: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from trtfuse.build.build import build;"
        "from trtfuse.core.options import BuildOptions;"
        "report = build(BuildOptions(model=Path('line.onnx'), batch=(1, 2, 8)), print);"
        "print([one.built for one in report.outcomes], {'onnx', 'onnxruntime'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=kept, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[False] set()\n"


def test_a_moved_model_keeps_its_engine_and_is_noted(tmp_path: Path) -> None:
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
    engines = tmp_path / "engines"
    before = graphs.line(tmp_path / "before/line.onnx")
    assert built(build(BuildOptions(model=before, engines=engines), quiet)) == [True]
    after = before.rename(tmp_path / "after/line.onnx")
    report = build(BuildOptions(model=after, engines=engines), quiet)
    assert built(report) == [False]
    assert only(report).manifest.source == after
    assert store.read(only(report).folder) == only(report)


def test_new_weights_of_the_same_size_and_time_are_built_and_the_old_removed(
    tmp_path: Path,
) -> None:
    source = graphs.line(tmp_path / "line.onnx", slope=2)
    old = only(build(options(tmp_path), quiet))
    times = source.stat()
    graphs.line(source, slope=3)
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert source.stat().st_size == times.st_size
    report = build(options(tmp_path), quiet)
    assert built(report) == [True]
    assert report.removed == (old.folder,)
    assert not old.folder.exists()
    found = store.find(tmp_path / "engines", model=None, engine=None, target=HERE)
    assert slope(found) == 3.0


def test_an_altered_engine_is_built_again_and_the_reason_told(tmp_path: Path) -> None:
    graphs.line(tmp_path / "line.onnx")
    engine = only(build(options(tmp_path), quiet))
    whole = engine.path.read_bytes()
    engine.path.write_bytes(whole[:-1])
    said: list[str] = []
    report = build(options(tmp_path), said.append)
    assert built(report) == [True]
    assert any("is cut short" in line for line in said)
    store.verify(only(report))


def test_a_malformed_manifest_is_built_over_and_the_reason_told(tmp_path: Path) -> None:
    graphs.line(tmp_path / "line.onnx")
    engine = only(build(options(tmp_path), quiet))
    (engine.folder / "manifest.json").write_text('{"schema": 1}')
    said: list[str] = []
    report = build(options(tmp_path), said.append)
    assert built(report) == [True]
    assert any("missing model" in line for line in said)
    store.verify(only(report))


def test_rebuild_builds_what_is_up_to_date(tmp_path: Path) -> None:
    graphs.line(tmp_path / "line.onnx")
    first = only(build(options(tmp_path), quiet))
    report = build(replace(options(tmp_path), rebuild=True), quiet)
    assert built(report) == [True]
    assert only(report).folder == first.folder
    assert report.removed == ()


def test_weights_in_a_side_file_are_up_to_date_until_they_change(tmp_path: Path) -> None:
    graphs.line_with_side_file(tmp_path / "line.onnx")
    assert built(build(options(tmp_path), quiet)) == [True]
    assert built(build(options(tmp_path), quiet)) == [False]
    side = tmp_path / "line.onnx.data"
    side.write_bytes(bytes(reversed(side.read_bytes())))
    assert built(build(options(tmp_path), quiet)) == [True]


def test_a_card_travels_into_the_manifest(tmp_path: Path) -> None:
    card = samples.card()
    model = graphs.picture(tmp_path / "picture.onnx", size=[8, 8], card=fixed(card.input, (8, 8)))
    engine = only(build(BuildOptions(model=model, engines=tmp_path / "engines"), quiet))
    assert engine.manifest.card == fixed(card.input, (8, 8))


def test_a_card_of_another_model_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    card = fixed(samples.card().input, (16, 16))
    model = graphs.picture(tmp_path / "picture.onnx", size=[8, 8], card=card)
    with pytest.raises(CardError, match="size"):
        build(BuildOptions(model=model, engines=tmp_path / "engines"), quiet)
    assert not (tmp_path / "engines").exists()


def test_a_model_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"line\.onnx: does not exist"):
        build(options(tmp_path), quiet)


def test_a_gate_that_refuses_publishes_nothing(tmp_path: Path) -> None:
    graphs.line(tmp_path / "line.onnx", slope=float("inf"))
    with pytest.raises(BuildFailed, match="Nothing was published"):
        build(options(tmp_path), quiet)
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["line.onnx", ".lock"]


def test_a_model_that_changes_while_it_is_built_is_refused(tmp_path: Path) -> None:
    source = graphs.line(tmp_path / "line.onnx")

    def swap(line: str) -> None:
        graphs.line(source, slope=3)

    with pytest.raises(BuildFailed, match="changed while it was being built"):
        build(options(tmp_path), swap)
    assert list(tmp_path.rglob("manifest.json")) == []


def test_a_builder_that_is_killed_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    graphs.line(tmp_path / "line.onnx")

    def kill_the_next_child() -> None:
        while not (found := _children()):
            pass
        found[0].kill()

    threads = []

    def progress(line: str) -> None:
        threads.append(threading.Thread(target=kill_the_next_child))
        threads[-1].start()

    with pytest.raises(BuildFailed, match=r"builder of line for .+ was killed by SIGKILL"):
        build(options(tmp_path), progress)
    for thread in threads:
        thread.join()
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["line.onnx", ".lock"]


def test_a_killed_build_leaves_no_engine_and_the_next_one_works(tmp_path: Path) -> None:
    graphs.line(tmp_path / "line.onnx")
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=_build, args=(options(tmp_path), theirs))
    process.start()
    theirs.close()
    assert ours.recv().startswith("line.onnx: building")
    assert process.pid
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert list(tmp_path.rglob("manifest.json")) == []
    assert built(build(options(tmp_path), quiet)) == [True]
    assert list(tmp_path.rglob(".building-*")) == []


def test_two_builds_at_once_build_once(tmp_path: Path) -> None:
    graphs.line(tmp_path / "line.onnx")
    pipes, processes = [], []
    for _ in range(2):
        ours, theirs = SPAWN.Pipe()
        processes.append(SPAWN.Process(target=_build, args=(options(tmp_path), theirs)))
        processes[-1].start()
        theirs.close()
        pipes.append(ours)
    results = [_result(pipe) for pipe in pipes]
    for process in processes:
        process.join()
    assert sorted(results) == [[False], [True]]
    assert len(list(tmp_path.rglob("manifest.json"))) == 1


def fixed(card: InputCard, size: tuple[int, int]) -> Card:
    return replace(samples.card(), input=replace(card, size=size))


def _children() -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children()
        if "spawn_main" in " ".join(child.cmdline()) and child.status() != psutil.STATUS_ZOMBIE
    ]


def _build(wanted: BuildOptions, pipe: Connection) -> None:
    """In a process: every line of progress, then which engines were built."""
    pipe.send(built(build(wanted, pipe.send)))
    pipe.close()


def _result(pipe: Connection) -> list[bool]:
    """What `_build` sent last."""
    while isinstance(message := pipe.recv(), str):
        pass
    return list(message)
