from __future__ import annotations

import io
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from trtfuse.core.errors import UsageError
from trtfuse.core.events import ItemFailed, RunEnded, WorkerDied
from trtfuse.observe.eventlog import EventLog, telling

log = logging.getLogger("trtfuse.somewhere")


def read(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def failed(number: int) -> ItemFailed:
    return ItemFailed(key=f"{number}.png", kind="ItemError", message="cut")


def test_events_are_lines_of_json_with_their_time_and_name(tmp_path: Path) -> None:
    with telling(tmp_path / "log") as hear:
        hear(WorkerDied(worker="worker 0 (cpu:0)", why="it was\nkilled"))
        hear(RunEnded(items=3, verdict="compute-bound"))
    died, ended = read((tmp_path / "log").read_text())
    assert died.pop("time").endswith("+00:00")
    assert died == {"event": "worker_died", "worker": "worker 0 (cpu:0)", "why": "it was\nkilled"}
    assert (ended["event"], ended["items"], ended["error"]) == ("run_ended", 3, "")


def test_a_kind_of_event_is_told_a_thousand_times_and_then_counted() -> None:
    stream = io.StringIO()
    events = EventLog(stream)
    for number in range(1234):
        events.hear(failed(number))
    events.hear(RunEnded())
    lines = read(stream.getvalue())
    assert len(lines) == 1001
    assert lines[-1]["left_out"] == {"item_failed": 234}


def test_a_log_that_cannot_be_written_ends_no_run(caplog: pytest.LogCaptureFixture) -> None:
    stream = io.StringIO()
    events = EventLog(stream)
    stream.close()
    events.hear(failed(0))
    events.hear(failed(1))
    assert caplog.text.count("cannot be written any more") == 1


def test_what_breaks_a_run_off_is_its_last_event(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), telling(tmp_path / "log"):
        raise KeyboardInterrupt
    (ended,) = read((tmp_path / "log").read_text())
    assert (ended["event"], ended["error"]) == ("run_ended", "KeyboardInterrupt")


def test_on_stderr_what_is_logged_is_an_event_and_nothing_else(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = logging.getLogger("trtfuse").propagate
    with telling(Path("-")):
        log.warning("worker %d is gone", 3)
    (line,) = read(capsys.readouterr().err)
    assert (line["event"], line["level"], line["text"]) == ("log", "WARNING", "worker 3 is gone")
    assert logging.getLogger("trtfuse").propagate is before


def test_a_file_that_cannot_be_opened_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--log-json .*: cannot be written \(Is a directory\)"):
        telling(tmp_path).__enter__()
