from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trtfuse.core import errors
from trtfuse.core.extras import require
from trtfuse.core.flow import Entry, Failure, Outcome, Picture, Timing
from trtfuse.core.options import BuildOptions, InferOptions
from trtfuse.core.report import ItemFailure, Tally, WorkerRecord, device_report
from trtfuse.core.units import parse_bytes
from trtfuse.testing import ListSource

EXIT_CODES = {
    errors.UsageError: 2,
    errors.MissingExtra: 2,
    errors.ShapeMismatch: 2,
    errors.ExportFailed: 3,
    errors.EngineNotFound: 3,
    errors.EngineMismatch: 3,
    errors.BuildFailed: 3,
    errors.DeviceError: 4,
    errors.StartFailed: 4,
    errors.WorkersLost: 4,
}


@pytest.mark.parametrize(("kind", "code"), EXIT_CODES.items())
def test_every_error_has_its_exit_code(kind: type[errors.TrtfuseError], code: int) -> None:
    assert kind("x").exit_code == code


def test_the_tree_in_the_docstring_names_every_class() -> None:
    names = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    assert errors.__doc__ is not None
    assert {name for name in names if name not in errors.__doc__} == set()


def test_an_unknown_name_is_a_question_and_not_a_guess() -> None:
    error = errors.UnknownName.among("--precision", "fp61", ["fp32", "fp16"])
    assert str(error) == "--precision 'fp61': not known. Did you mean fp16? Known: fp16, fp32."


def test_a_missing_package_is_named_with_the_line_that_installs_it() -> None:
    with pytest.raises(ImportError, match=r"Flying needs .* pip install 'trtfuse\[wings\]'"):
        require("no_such_package_anywhere", extra="wings", purpose="Flying")
    require("json", extra="none", purpose="Reading")


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("512MiB", 512 << 20), ("2gib", 2 << 30), ("1.5K", 1536), (" 7 ", 7)],
)
def test_sizes_are_binary(text: str, nbytes: int) -> None:
    assert parse_bytes(text, flag="--memory") == nbytes


@pytest.mark.parametrize("text", ["", "MiB", "-1MiB", "12 parsecs", "1e3"])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(errors.UsageError, match="--memory"):
        parse_bytes(text, flag="--memory")


@pytest.mark.parametrize("batch", [(0, 1, 1), (2, 1, 4), (1, 8, 4)])
def test_a_batch_range_out_of_order_is_refused(batch: tuple[int, int, int]) -> None:
    with pytest.raises(errors.UsageError, match="0 < min <= opt <= max"):
        BuildOptions(model=Path("m.onnx"), batch=batch)


@pytest.mark.parametrize("name", ["workers", "batch", "feeders", "writers"])
def test_counts_of_infer_start_at_one(name: str) -> None:
    with pytest.raises(errors.UsageError, match=f"--{name} 0"):
        InferOptions(source=Path("in"), **{name: 0})  # type: ignore[arg-type]


def test_a_worker_s_share_is_what_it_computed_of_the_run() -> None:
    record = WorkerRecord("cpu:0")
    second = 10**9
    # The second begins while the first is under way, and the third comes after a pause.
    for began, ended in ((0, 2), (1, 4), (6, 8)):
        record.note(
            4,
            Timing(
                compute_ns=(ended - began) * second,
                began_ns=began * second,
                ended_ns=ended * second,
            ),
        )
    report = device_report(record, seconds=8.0)
    assert (report.busy_share, report.items, report.batches) == (0.75, 12, 3)
    assert report.median_batch_ms == pytest.approx(2000, rel=1 / 32)
    assert device_report(WorkerRecord("cpu:1"), seconds=0.0).busy_share == 0.0


def test_the_tally_counts_items_and_failures() -> None:
    tally = Tally(total=lambda: 3, records=[WorkerRecord("cpu:0", items=2)])
    (item, other) = ListSource([Picture(np.zeros((1, 1, 3), np.uint8))] * 2)
    tally.count(Outcome(item=item, entry=Entry(line={})))
    why = Failure(kind="ItemError", message="cut")
    progress = tally.count(Outcome(item=other, entry=why))
    assert tally.failures == [ItemFailure(key="0001", kind="ItemError", message="cut")]
    assert (progress.done, progress.failed, progress.total) == (2, 1, 3)
    assert progress.items_by_device == (("cpu:0", 2),)
