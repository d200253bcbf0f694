"""What every OpenRunner keeps, over one small model: y = 2 x + 1, x float32 (batch, 4), 1 to 8."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np
import pytest

from trtfuse.core.errors import ShapeMismatch
from trtfuse.core.flow import OpenRunner, Runner
from trtfuse.core.specs import BATCH, Array, TensorSpec

NO_RING = np.empty(0, np.uint8)


def rows(count: int, first: float = 0.0) -> Array:
    """`count` distinct items of four values."""
    return np.arange(first, first + 4 * count, dtype=np.float32).reshape(count, 4)


def run(runner: Runner, x: Array) -> Array:
    """Launch one batch and wait for it; `y` in memory of its own."""
    claimed: dict[str, Array] = {}

    def claim(name: str, shape: tuple[int, ...]) -> Array:
        claimed[name] = np.full(shape, np.nan, np.float32)
        return claimed[name]

    runner.launch({"x": x}, claim).result()
    assert list(claimed) == ["y"]
    return claimed["y"]


class RunnerContract(ABC):
    """Subclass it and say how the runner is opened."""

    device = "cpu:0"

    @abstractmethod
    @pytest.fixture
    def open_runner(self) -> OpenRunner:
        """An opener of y = 2 x + 1."""

    @pytest.fixture
    def runner(self, open_runner: OpenRunner) -> Iterator[Runner]:
        """The runner, open for one test."""
        with open_runner(self.device, NO_RING) as runner:
            yield runner

    def test_it_says_what_it_takes_and_gives(self, runner: Runner) -> None:
        shape = (BATCH, 4)
        assert runner.inputs == (TensorSpec(name="x", dtype="float32", shape=shape),)
        assert runner.outputs == (TensorSpec(name="y", dtype="float32", shape=shape),)
        assert runner.lanes >= 1

    @pytest.mark.parametrize("count", [1, 3, 8])
    def test_a_batch_of_any_size_is_computed_into_claimed_memory(
        self, runner: Runner, count: int
    ) -> None:
        np.testing.assert_array_equal(run(runner, rows(count)), 2 * rows(count) + 1)

    def test_changing_batch_sizes_do_not_touch_one_another(self, runner: Runner) -> None:
        batches = [rows(count, first) for count, first in ((4, 0), (1, 100), (4, 200), (2, 300))]
        answers = [run(runner, x) for x in batches]
        for x, y in zip(batches, answers, strict=True):
            np.testing.assert_array_equal(y, 2 * x + 1)

    def test_every_item_is_the_same_alone_and_in_a_batch(self, runner: Runner) -> None:
        x = rows(5)
        alone = np.concatenate([run(runner, x[i : i + 1]) for i in range(5)])
        np.testing.assert_array_equal(run(runner, x), alone)

    def test_inputs_are_left_as_they_were(self, runner: Runner) -> None:
        x = rows(4)
        run(runner, x)
        np.testing.assert_array_equal(x, rows(4))

    def test_outputs_stay_after_the_runner_is_closed(self, open_runner: OpenRunner) -> None:
        with open_runner(self.device, NO_RING) as runner:
            y = run(runner, rows(2))
        np.testing.assert_array_equal(y, 2 * rows(2) + 1)

    def test_it_opens_again_after_it_was_closed(self, open_runner: OpenRunner) -> None:
        for _ in range(2):
            with open_runner(self.device, NO_RING) as runner:
                np.testing.assert_array_equal(run(runner, rows(1)), 2 * rows(1) + 1)

    def test_the_opener_can_be_sent_to_another_process(self, open_runner: OpenRunner) -> None:
        again: OpenRunner = pickle.loads(pickle.dumps(open_runner))
        with again(self.device, NO_RING) as runner:
            np.testing.assert_array_equal(run(runner, rows(1)), 2 * rows(1) + 1)

    @pytest.mark.parametrize(
        "x",
        [
            pytest.param(rows(9), id="too-large-a-batch"),
            pytest.param(rows(0), id="no-item"),
            pytest.param(rows(2)[:, :3].copy(), id="another-size"),
            pytest.param(rows(2)[0], id="another-rank"),
            pytest.param(rows(2).astype(np.float64), id="another-dtype"),
        ],
    )
    def test_what_it_does_not_take_is_a_mismatch_that_names_the_tensor(
        self, runner: Runner, x: Array
    ) -> None:
        with pytest.raises(ShapeMismatch, match=rf"'x'.*got {x.dtype}.*needs float32"):
            run(runner, x)
        np.testing.assert_array_equal(run(runner, rows(1)), 2 * rows(1) + 1)

    def test_an_output_that_does_not_fit_its_region_is_the_claimers_error(
        self, runner: Runner
    ) -> None:
        def claim(name: str, shape: tuple[int, ...]) -> Array:
            raise ShapeMismatch(f"output {name!r}: {shape} is too large")

        with pytest.raises(ShapeMismatch, match=r"output 'y': \(2, 4\) is too large"):
            runner.launch({"x": rows(2)}, claim).result()
