from __future__ import annotations

import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtfuse.core.errors import PoolError, ShapeMismatch
from trtfuse.core.specs import BATCH, TensorSpec
from trtfuse.pool.slots import Largest, Layout, attached, created, lay_out


def largest(name: str, dtype: str, *item: int) -> Largest:
    spec = TensorSpec(name=name, dtype=dtype, shape=(BATCH, *item))
    return Largest(spec=spec, item=item)


def layout(**changes: int) -> Layout:
    numbers = {"batch": 3, "wanted": 4, "memory_bytes": 1 << 20} | changes
    return lay_out(
        [largest("x", "uint8", 5, 7, 3)],
        [largest("y", "float32", 2, 5), largest("z", "float16", 9)],
        **numbers,
    )


@given(
    st.lists(st.integers(1, 600), min_size=1, max_size=4),
    st.integers(1, 9),
    st.integers(2, 5),
)
def test_no_two_regions_share_a_byte(sizes: list[int], batch: int, slots: int) -> None:
    tensors = [largest(str(n), "float16", size) for n, size in enumerate(sizes)]
    plan = lay_out(tensors[:1], tensors[1:], batch=batch, wanted=slots, memory_bytes=1 << 30)
    taken = [(0, 8 * len(sizes))]
    taken += [(r.offset, r.offset + batch * r.item_bytes) for r in (*plan.inputs, *plan.outputs)]
    assert all(end <= start for (_, end), (start, _) in pairwise(taken))
    assert taken[-1][1] <= plan.slot_bytes
    assert plan.slots == slots


def test_the_ring_takes_as_many_slots_as_the_memory_allows() -> None:
    one = layout().slot_bytes
    assert layout(memory_bytes=3 * one).slots == 3


def test_memory_for_less_than_two_slots_is_an_error_with_the_way_out() -> None:
    with pytest.raises(PoolError, match="smaller --batch, or a larger --memory"):
        layout(memory_bytes=layout().slot_bytes)


def test_what_one_mapping_writes_the_other_reads_at_the_shape_it_was_written() -> None:
    plan = layout()
    with created(plan) as ring:
        other = attached(plan, ring.name)
        ring.set_input_shape(2, "x", (2, 4, 3))
        ring.inputs(2, 0, 3)["x"][:] = np.arange(72).reshape(3, 2, 4, 3)
        assert other.inputs(2, 1, 2)["x"].tolist() == np.arange(24, 72).reshape(2, 2, 4, 3).tolist()
        other.claim(2, 1)("y", (2, 2, 5))[:] = 0.5
        other.claim(2, 1)("z", (2, 4))[:] = 7
        assert ring.outputs(2, 1, 2)["y"].tolist() == [[[0.5] * 5] * 2] * 2
        assert ring.outputs(2, 1, 2)["z"].tolist() == [[7] * 4] * 2


@pytest.mark.parametrize(
    ("name", "shape"),
    [("y", (4, 2, 5)), ("y", (1, 3, 5)), ("y", (1, 10)), ("nothing", (1,))],
    ids=["too many items", "items too large", "other rank", "other name"],
)
def test_an_output_that_does_not_fit_is_refused(name: str, shape: tuple[int, ...]) -> None:
    with created(layout()) as ring, pytest.raises(ShapeMismatch, match=name):
        ring.claim(0, 0)(name, shape)


def test_the_memory_is_gone_after_the_block_even_while_a_view_lives() -> None:
    with created(layout()) as ring:
        path = Path("/dev/shm", ring.name)
        view = ring.memory[:4]
        assert path.stat().st_size == ring.layout.total_bytes
    assert not path.exists()
    assert view.tolist() == [0, 0, 0, 0]


def test_a_ring_larger_than_dev_shm_is_an_error_and_leaves_nothing() -> None:
    status = os.statvfs("/dev/shm")
    room = status.f_blocks * status.f_frsize
    plan = lay_out([largest("x", "uint8", room)], [], batch=1, wanted=2, memory_bytes=1 << 62)
    before = set(Path("/dev/shm").glob("trtfuse-*"))
    with pytest.raises(PoolError, match="--shm-size"), created(plan):
        pass
    assert set(Path("/dev/shm").glob("trtfuse-*")) <= before


KILLED_IN_THE_MAKING = """
import os, signal, sys
from trtfuse.pool.slots import created
from tests.pool.test_slots import layout

def kill(event, arguments):
    if event == "mmap.__new__" or event == "os.truncate":
        mine = [n for n in os.listdir("/dev/shm") if n.startswith(f"trtfuse-{os.getpid()}-")]
        print(*mine, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(kill)
with created(layout()):
    pass
"""


def test_a_process_killed_while_it_makes_its_memory_leaves_none() -> None:
    """When it maps the file it has just made, before SharedMemory has told of it."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED_IN_THE_MAKING], capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    (name,) = done.stdout.split()
    # `run` has read to the end of stderr, which the tracker holds too: it has done its work.
    assert not Path("/dev/shm", name).exists()
