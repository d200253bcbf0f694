from __future__ import annotations

import pickle
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.contracts.runner import NO_RING
from tests.gpu.samples import LINE, manifest
from trtfuse.core.errors import DeviceError, OutOfMemory, UsageError
from trtfuse.gpu.runner import OpenTrt, fewer, letting_go, shortage


def test_an_opener_crosses_to_a_worker_and_back() -> None:
    opener = OpenTrt(Path("engine.plan"), manifest(Path("m.onnx"), LINE), lanes=3)
    assert pickle.loads(pickle.dumps(opener)) == opener


def test_a_runner_without_a_lane_is_refused() -> None:
    with pytest.raises(UsageError, match="--lanes 0: needs a whole number above 0"):
        OpenTrt(Path("engine.plan"), manifest(Path("m.onnx"), LINE), lanes=0)


def test_a_device_that_is_not_there_is_an_error_and_no_crash() -> None:
    opener = OpenTrt(Path("engine.plan"), manifest(Path("m.onnx"), LINE))
    with pytest.raises(DeviceError, match="cuda:99: is not there"), opener("cuda:99", NO_RING):
        pass


def test_fewer_lanes_than_asked_for_are_told_with_the_reason() -> None:
    text = fewer(Path("engine.plan"), 2, 4, 3 << 30, 1 << 30)
    assert text == (
        "engine.plan: runs with 2 of 4 lanes: another needs 3072 MiB, and 1024 MiB are free"
    )


def test_a_shortage_names_need_free_and_what_helps() -> None:
    text = shortage(2, 3 << 30, 5 << 30)
    assert "2 lanes need 6144 MiB" in text
    assert "5120 MiB were free" in text
    assert "--lanes or --instances" in text


class Engine:
    """Something to hold."""


def test_an_error_holds_no_engine_when_the_block_is_over() -> None:
    known: list[weakref.ref[Engine]] = []

    def load() -> None:
        engine = Engine()
        known.append(weakref.ref(engine))
        try:
            Path("no/such/file").read_bytes()
        except OSError as error:
            more = Engine()
            known.append(weakref.ref(more))
            raise OutOfMemory(f"no room for {engine} and {more}") from error

    @contextmanager
    def opened() -> Iterator[None]:
        engine = Engine()
        known.append(weakref.ref(engine))
        yield
        load()

    with pytest.raises(OutOfMemory) as raised, letting_go(), opened():
        pass
    assert raised.value.__traceback__ is not None
    assert [one() for one in known] == [None, None, None]
