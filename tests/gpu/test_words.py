from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from trtfuse.core.errors import DeviceError, OutOfMemory
from trtfuse.gpu.words import Share, Words, out_of_memory


def test_the_last_errors_are_kept_and_nothing_else() -> None:
    words = Words()
    words.hear("VERBOSE", "trying a tactic")
    words.hear("WARNING", "lazy loading is off")
    for number in range(20):
        words.hear("ERROR", f"error {number}")
    assert words.errors == "; ".join(f"error {number}" for number in range(12, 20))
    words.clear()
    assert words.errors == "TensorRT gave no reason"


def test_the_warning_of_a_foreign_gpu_is_remembered_until_the_next_engine() -> None:
    words = Words()
    words.hear("WARNING", "Using an engine plan file across different models of devices is not …")
    assert "different models of devices" in words.foreign
    words.clear()
    assert words.foreign == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cuMemAlloc failed: out of memory", True),
        ("Error Code 2: OutOfMemory (no further information)", True),
        ("cudaGraphLaunch: cudaErrorMemoryAllocation (2).", True),
        ("the engine plan file is not compatible", False),
    ],
)
def test_want_of_memory_is_told_from_other_errors(text: str, expected: bool) -> None:
    assert out_of_memory(text) is expected


def test_a_failed_call_tells_what_was_heard_once() -> None:
    words = Words()
    words.hear("ERROR", "Error Code 2: OutOfMemory")
    first, second = words.failure("enqueue"), words.failure("enqueue")
    assert (type(first), str(first)) == (OutOfMemory, "enqueue: Error Code 2: OutOfMemory.")
    assert (type(second), str(second)) == (DeviceError, "enqueue: TensorRT gave no reason.")


def test_a_phase_inside_another_is_a_step_of_it() -> None:
    share = Share()
    share.start("build", None, 4)
    assert share.step("build", 0) == 0.25
    share.start("tactics", "build", 2)
    assert share.step("tactics", 0) == 0.375
    assert share.step("tactics", 1) == 0.5
    share.finish("tactics")
    assert share.step("build", 3) == 1.0


def test_a_share_never_falls() -> None:
    share = Share()
    share.start("build", None, 2)
    assert share.step("build", 0) == 0.5
    share.start("other", None, 10)
    assert share.step("other", 0) == 0.5


def test_a_phase_that_is_not_known_does_not_end_the_build() -> None:
    share = Share()
    for name in ("tactics", "tactics"):
        share.start(name, None, 4)
    assert share.step("tactics", 1) == 0.5
    share.finish("tactics")
    share.finish("tactics")
    assert share.step("tactics", 3) == 0.5


def test_threads_of_a_builder_may_tell_at_the_same_time() -> None:
    share = Share()
    share.start("build", None, 8)

    def phases(number: int) -> list[float]:
        seen = []
        for _ in range(300):
            share.start(f"tactics {number}", "build", 3)
            seen += [share.step(f"tactics {number}", step) for step in range(3)]
            share.finish(f"tactics {number}")
        return seen

    with ThreadPoolExecutor(4) as threads:
        for seen in threads.map(phases, range(4)):
            assert 0 < min(seen) <= max(seen) <= 1
