"""The public double of a runner keeps the contract of the real ones."""

from __future__ import annotations

import pytest

from tests.contracts.runner import RunnerContract
from trtfuse.core.flow import OpenRunner
from trtfuse.testing import FakeRunner


class TestFakeRunner(RunnerContract):
    @pytest.fixture
    def open_runner(self) -> OpenRunner:
        return FakeRunner(shape=(4,), max_batch=8)
