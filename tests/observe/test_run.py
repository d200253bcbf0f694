"""One run with all that it can say of itself, a dead worker and bad files among the good."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from PIL import Image

from tests.models import brighter
from trtfuse.build.build import build
from trtfuse.core.options import BuildOptions, InferOptions, ObservingOptions
from trtfuse.core.report import Progress, RunReport
from trtfuse.core.times import STAGES
from trtfuse.infer import infer

SIZES = ((1, 1), (24, 32), (64, 64))
LARGE = "large & 'odd'.png"
COUNT = 40


@dataclass(frozen=True)
class Ran:
    report: RunReport
    output: Path
    events: list[dict[str, Any]]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    home = tmp_path_factory.mktemp("run")
    model = brighter(home / "brighter.onnx")
    build(BuildOptions(model=model, engines=home / "engines", sizes=SIZES), lambda _: None)
    (home / "in").mkdir()
    for n in range(COUNT):
        Image.new("RGB", (32, 24), (n, n, n)).save(home / "in" / f"{n:02d}.png")
    Image.new("RGB", (300, 200), (9, 9, 9)).save(home / "in" / LARGE)
    (home / "in" / "cut.png").write_bytes(b"no picture")

    def kill(progress: Progress) -> None:
        if progress.done == 5:
            workers = [c for c in psutil.Process().children() if _is_worker(c)]
            os.kill(workers[0].pid, signal.SIGKILL)

    observing = ObservingOptions(
        every_s=0.05, log_json=home / "events", timings=True, report="html"
    )
    options = InferOptions(
        source=home / "in",
        output=home / "out",
        engines=home / "engines",
        batch=2,
        workers=2,
        observing=observing,
    )
    report = infer(options, watch=kill, command=("trtfuse", "infer"))
    events = [json.loads(line) for line in (home / "events").read_text().splitlines()]
    return Ran(report, home / "out", events)


def _is_worker(process: psutil.Process) -> bool:
    return "spawn_main" in " ".join(process.cmdline())


def test_events_tell_of_every_worker_and_every_failure(ran: Ran) -> None:
    names = [event["event"] for event in ran.events if event["event"] != "log"]
    assert names[:3] == ["worker_ready", "worker_ready", "run_started"]
    assert names[-1] == "run_ended"
    assert names.count("worker_died") == 1
    assert names.index("worker_died") < names.index("worker_restarted")
    failed = [event["key"] for event in ran.events if event["event"] == "item_failed"]
    assert failed == ["cut.png", LARGE]
    assert ran.events[-1]["failed"] == ran.report.failed == 2
    assert ran.events[-1]["verdict"] == ran.report.verdict.text


def test_timings_have_a_line_an_item_in_order_and_results_have_none(ran: Ran) -> None:
    lines = [json.loads(line) for line in (ran.output / "timings.jsonl").read_text().splitlines()]
    results = [json.loads(line) for line in (ran.output / "results.jsonl").read_text().splitlines()]
    assert [line["key"] for line in lines] == [result["key"] for result in results]
    assert "ms" not in (ran.output / "results.jsonl").read_text()
    for line in lines:
        assert set(line["ms"]) <= set(STAGES)
        assert line["failed"] is (line["key"] in ("cut.png", LARGE))
        assert ("compute" in line["ms"]) is not line["failed"]


def test_the_page_shows_what_failed_where_it_can_be_read(ran: Ran) -> None:
    text = (ran.output / "report.html").read_text()
    assert text.count("data:image/jpeg;base64,") == 1
    assert 'alt="large &amp; &#x27;odd&#x27;.png"' in text
    assert text.count("cannot be shown") == 1
    assert ran.report.verdict.text in text
    assert "was killed by SIGKILL" in text
