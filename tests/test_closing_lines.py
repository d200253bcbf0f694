"""What stands below a run's table."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from trtfuse.cli.progress import far, show_report
from trtfuse.core.record import to_json
from trtfuse.core.report import Progress, RunReport, Verdict, WorkerRecord, device_report


def report(record: WorkerRecord) -> RunReport:
    return RunReport(
        command=(),
        model="face",
        engine="cpu",
        source="photos",
        output="photos-out",
        items=8,
        failures=(),
        failed=0,
        skipped=(),
        seconds=1.0,
        start_seconds=1.0,
        batch=4,
        slots=4,
        ring_bytes=1024,
        feeders=1,
        writers=1,
        devices=(device_report(record, seconds=1.0),),
        versions={},
        verdict=Verdict(bound=None, share=0.0, text="nothing", shares={}),
    )


def test_a_device_that_ran_out_of_memory_is_named_with_what_helps(
    capsys: pytest.CaptureFixture[str],
) -> None:
    one = report(WorkerRecord("cuda:1", most_items=4))
    show_report(one)
    shown = capsys.readouterr().out
    assert "cuda:1 ran out of memory, and had batches of at most 4 since. A smaller" in shown
    assert json.loads(json.dumps(to_json(one)))["devices"][0]["most_items"] == 4


def test_one_that_did_not_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    show_report(report(WorkerRecord("cuda:1")))
    assert "memory, and" not in capsys.readouterr().out


def test_an_interrupted_run_says_how_far_it_came_as_far_as_is_known() -> None:
    heard = Progress(done=37, total=200, failed=0, seconds=1.0, items_by_device=())
    assert far([heard]) == "37 of 200 items are done, "
    assert far([replace(heard, total=None)]) == "37 items are done, "
    assert far([]) == ""
