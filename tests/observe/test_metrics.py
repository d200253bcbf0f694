from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("prometheus_client", reason="needs prometheus-client: the extra `metrics`")

from prometheus_client.parser import text_string_to_metric_families

from trtfuse.core.errors import UsageError
from trtfuse.core.flow import Timing
from trtfuse.core.report import Column, Tally, WorkerRecord
from trtfuse.core.times import ItemTimes
from trtfuse.observe.metrics import RunCollector, exposing

PARENT = Column("memory", "parent")


def collector() -> RunCollector:
    record = WorkerRecord("cpu:0", deaths=["killed"])
    record.note(7, Timing(compute_ns=5, began_ns=0, ended_ns=5))
    tally = Tally(total=lambda: 12, records=[record])
    tally.done, tally.failed = 10, 3
    tally.stages.add(ItemTimes(decode=2 * 10**9))
    latest = {PARENT: 1024.0, Column("busy", "worker 0 (cpu:0)"): 0.5, Column("items"): 10.0}
    return RunCollector(tally, lambda: latest, {"model": 'a "face"\n'})


def numbers(text: str) -> dict[tuple[str, ...], float]:
    """By name and label values, as Prometheus' own parser reads them."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


RIGHT = {
    ("trtfuse_run_info", 'a "face"\n'): 1,
    ("trtfuse_items_total", "done"): 7,
    ("trtfuse_items_total", "failed"): 3,
    ("trtfuse_items_expected",): 12,
    ("trtfuse_worker_items_total", "worker 0 (cpu:0)"): 7,
    ("trtfuse_worker_deaths_total", "worker 0 (cpu:0)"): 1,
    ("trtfuse_busy_seconds_total", "worker 0 (cpu:0)"): 0.5,
    ("trtfuse_memory_bytes", "parent"): 1024,
    ("trtfuse_stage_seconds_sum", "decode"): 2,
    ("trtfuse_stage_seconds_count", "decode"): 1,
}


def test_the_file_is_there_at_once_and_whole_at_the_end(tmp_path: Path) -> None:
    shown, path = collector(), tmp_path / "run.prom"
    with exposing(str(path), shown):
        assert numbers(path.read_text()).items() >= RIGHT.items()
        shown.tally.done = 12
    assert numbers(path.read_text())["trtfuse_items_total", "done"] == 9
    assert list(tmp_path.iterdir()) == [path]


@contextmanager
def port() -> Iterator[int]:
    """One that nobody else has."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_the_port_answers_on_this_machine_alone_and_is_free_again() -> None:
    with port() as number:
        pass
    for _ in range(2):
        with (
            exposing(f":{number}", collector()),
            urllib.request.urlopen(f"http://127.0.0.1:{number}/metrics") as answer,
        ):
            assert numbers(answer.read().decode()).items() >= RIGHT.items()


def test_a_port_that_is_taken_and_a_file_that_cannot_be_are_one_sentence(tmp_path: Path) -> None:
    with (
        port() as number,
        pytest.raises(UsageError, match=rf"--metrics :{number}: cannot be served"),
    ):
        exposing(f":{number}", collector()).__enter__()
    with pytest.raises(UsageError, match="cannot be written"):
        exposing(str(tmp_path / "no" / "such"), collector()).__enter__()


def test_a_file_that_goes_away_under_way_is_told_of_and_ends_no_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with exposing(str(folder / "run.prom"), collector()):
        (folder / "run.prom").unlink()
        folder.rmdir()
    assert "cannot be written any more" in caplog.text
