"""What only a GPU can show: builder and runner on a real device."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

from tests.contracts.runner import NO_RING, RunnerContract, rows, run
from tests.gpu import graphs
from tests.gpu.samples import LINE, PICTURE, PIXELS, manifest, request
from tests.models import brighter
from trtfuse.build.build import build
from trtfuse.core.errors import (
    ChildDied,
    DeviceError,
    EngineMismatch,
    OutOfMemory,
    ShapeMismatch,
)
from trtfuse.core.flow import OpenRunner, Runner
from trtfuse.core.options import BuildOptions, InferOptions
from trtfuse.core.specs import Array, Precision, ShapeRange
from trtfuse.gpu import builder, devices, driver
from trtfuse.gpu.room import fitting
from trtfuse.gpu.runner import OpenTrt
from trtfuse.gpu.tensorrt import door, has_bfloat16, installed, typed
from trtfuse.infer import infer
from trtfuse.pool.arrays import map_batches
from trtfuse.pool.pool import Pool, Seat
from trtfuse.pool.slots import created, for_engine
from trtfuse.pool.spawn import run_in_child

pytestmark = pytest.mark.gpu

DEVICE = "cuda:0"
Graph = Callable[[Path], Path]


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., OpenTrt]:
    """Builds each graph once, in a child, as `trtfuse build` does."""
    made: dict[str, Path] = {}

    def engine(
        graph: Graph, accepted: ShapeRange, *, lanes: int = 2, cuda_graph: bool = True
    ) -> OpenTrt:
        key = f"{graph.__name__} {accepted}"
        if key not in made:
            folder = tmp_path_factory.mktemp(graph.__name__)
            model, plan = graph(folder / "model.onnx"), folder / "engine.plan"
            run_in_child(builder.build, model, request(accepted), plan, DEVICE, name="builder")
            made[key] = plan
        plan = made[key]
        dtype = "uint8" if graph is graphs.pixels else "float32"
        about = manifest(plan.with_name("model.onnx"), accepted, dtype=dtype)
        return OpenTrt(plan, about, lanes=lanes, cuda_graph=cuda_graph)

    return engine


Engines = Callable[..., OpenTrt]


def pictures(count: int, height: int = 32, width: int = 32, seed: int = 0) -> Array:
    return np.random.default_rng(seed).random((count, 3, height, width), np.float32)


def answer(runner: Runner, x: Array) -> Array:
    """One batch, in memory of its own; any dtype."""
    claimed: list[Array] = []

    def claim(_: str, shape: tuple[int, ...]) -> Array:
        claimed.append(np.empty(shape, x.dtype))
        return claimed[0]

    runner.launch({"x": x}, claim).result()
    return claimed[0]


class TestGpuRunner(RunnerContract):
    device = DEVICE

    @pytest.fixture
    def open_runner(self, engines: Engines) -> OpenRunner:
        return engines(graphs.line, LINE)


class TestGpuRunnerWithoutGraphs(RunnerContract):
    device = DEVICE

    @pytest.fixture
    def open_runner(self, engines: Engines) -> OpenRunner:
        return engines(graphs.line, LINE, lanes=1, cuda_graph=False)


def test_lanes_run_beside_one_another_and_end_in_any_order(engines: Engines) -> None:
    with engines(graphs.line, LINE, lanes=3)(DEVICE, NO_RING) as runner:
        inputs = [rows(n + 1, 100.0 * n) for n in range(3)]
        outputs = [np.empty_like(x) for x in inputs]
        claims = [lambda _, __, y=y: y for y in outputs]
        flying = [runner.launch({"x": x}, claim) for x, claim in zip(inputs, claims, strict=True)]
        with pytest.raises(DeviceError, match="all 3 lanes have a batch under way"):
            runner.launch({"x": inputs[0]}, claims[0])
        for pending in reversed(flying):
            assert pending.result().compute_ns > 0
        for x, y in zip(inputs, outputs, strict=True):
            np.testing.assert_array_equal(y, 2 * x + 1)


def test_a_graph_answers_as_the_calls_it_was_recorded_from(engines: Engines) -> None:
    batches = [pictures(4, seed=n) for n in range(8)]
    with engines(graphs.picture, PICTURE, cuda_graph=False)(DEVICE, NO_RING) as runner:
        expected = [answer(runner, x) for x in batches]
        assert runner.graphs == 0
    with engines(graphs.picture, PICTURE)(DEVICE, NO_RING) as runner:
        got = [answer(runner, x) for x in batches]
        assert runner.graphs == runner.lanes
    for a, b in zip(expected, got, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("cuda_graph", [True, False])
def test_batches_of_4_1_and_4_and_sizes_that_change_do_not_touch_one_another(
    engines: Engines, cuda_graph: bool
) -> None:
    shapes = [(4, 32, 32)] * 6 + [(1, 32, 32)] + [(4, 32, 32)] * 3 + [(2, 64, 48), (1, 16, 16)] * 4
    batches = [pictures(*shape, seed=n) for n, shape in enumerate(shapes)]
    with engines(graphs.picture, PICTURE, lanes=1)(DEVICE, NO_RING) as runner:
        alone = [
            np.concatenate([answer(runner, x[i : i + 1]) for i in range(len(x))]) for x in batches
        ]
    with engines(graphs.picture, PICTURE, lanes=1, cuda_graph=cuda_graph)(
        DEVICE, NO_RING
    ) as runner:
        together = [answer(runner, x) for x in batches]
    for a, b in zip(alone, together, strict=True):
        # Another batch size is another kernel: its sums are in another order.
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * np.abs(a).max())


def test_a_batch_smaller_than_the_profile_is_filled_up(engines: Engines) -> None:
    four = ShapeRange(min=(4, 4), opt=(4, 4), max=(8, 4))
    with engines(graphs.line, four)(DEVICE, NO_RING) as runner:
        for count in (1, 5, 3):
            np.testing.assert_array_equal(run(runner, rows(count)), 2 * rows(count) + 1)
        with pytest.raises(ShapeMismatch, match=r"needs float32 \(1 to 8, 4\)"):
            run(runner, rows(9))


def test_bytes_go_in_and_out_as_bytes(engines: Engines) -> None:
    x = np.random.default_rng(0).integers(0, 256, (3, 20, 30, 3), np.uint8)
    with engines(graphs.pixels, PIXELS)(DEVICE, NO_RING) as runner:
        np.testing.assert_array_equal(answer(runner, x), 255 - x)


@pytest.mark.parametrize(
    ("graph", "limit"),
    # Of the largest value: float16 has 11 bits; int8 has 7, over two layers.
    [pytest.param(graphs.half, 5e-3, id="fp16"), pytest.param(graphs.quantized, 0.1, id="int8")],
)
def test_a_typed_graph_is_near_its_float32_original(
    engines: Engines, graph: Graph, limit: float
) -> None:
    x = pictures(4)
    with engines(graphs.picture, PICTURE)(DEVICE, NO_RING) as runner:
        expected = answer(runner, x)
    with engines(graph, PICTURE)(DEVICE, NO_RING) as runner:
        got = answer(runner, x)
    difference = np.abs(got - expected).max() / np.abs(expected).max()
    assert 0 < difference < limit


def test_a_pinned_ring_is_copied_from_as_it_lies(engines: Engines) -> None:
    opener = engines(graphs.picture, PICTURE)
    layout = for_engine(opener.manifest, batch=8, wanted=4, memory_bytes=1 << 30)
    with created(layout) as ring, opener(DEVICE, ring.memory) as runner:
        x = pictures(8, 64, 48)
        for slot in range(4):
            ring.set_input_shape(slot, "x", x.shape[1:])
            ring.inputs(slot, 0, 8)["x"][:] = x
        for slot in range(4):
            runner.launch(ring.inputs(slot, 0, 8), ring.claim(slot, 0)).result()
        answers = [ring.outputs(slot, 0, 8)["y"].copy() for slot in range(4)]
        plain = answer(runner, x)
    for one in answers:
        np.testing.assert_array_equal(one, plain)


def test_pinning_says_what_the_device_can_reach() -> None:
    from trtfuse.gpu import driver
    from trtfuse.gpu.tensorrt import door

    driver.claim(DEVICE)
    door("tensorrt")
    from trtfuse.gpu import cuda

    memory = np.zeros(1 << 20, np.uint8)
    with cuda.context(), cuda.pinned(memory) as pinned:
        assert pinned.holds(memory)
        assert pinned.holds(memory[100:200])
        assert not pinned.holds(memory[::2])
        assert not pinned.holds(np.zeros(4))
        with cuda.pinned(memory) as twice:  # the runtime refuses what is pinned already
            assert not twice.holds(memory)
    with cuda.context(), cuda.pinned(memory) as again:
        assert again.holds(memory)


def test_ten_thousand_batches_take_no_memory(engines: Engines) -> None:
    gpu = devices.named(DEVICE)
    x = {"x": pictures(4)}
    y = np.empty((4, 3, 32, 32), np.float32)
    with engines(graphs.picture, PICTURE)(DEVICE, NO_RING) as runner:

        def batches(count: int) -> None:
            for number in range(count):
                # Now and then another shape: graphs are dropped and recorded again.
                few = {"x": x["x"][:1]} if number % 50 == 0 else x
                runner.launch(few, lambda _, shape: y[: shape[0]]).result()

        batches(500)
        before = devices.free_bytes(gpu)
        batches(10_000)
        lost = before - devices.free_bytes(gpu)
    assert lost < 4 << 20


def test_opening_again_and_again_takes_no_memory(engines: Engines) -> None:
    gpu, opener = devices.named(DEVICE), engines(graphs.picture, PICTURE)

    def opened(count: int) -> int:
        for _ in range(count):
            with opener(DEVICE, NO_RING) as runner:
                answer(runner, pictures(4))
        return devices.free_bytes(gpu)

    assert opened(3) - opened(10) < 16 << 20


def test_errors_inside_take_no_memory(engines: Engines) -> None:
    gpu, opener = devices.named(DEVICE), engines(graphs.picture, PICTURE)

    def failed(count: int) -> int:
        for _ in range(count):
            with pytest.raises(ShapeMismatch), opener(DEVICE, NO_RING) as runner:
                answer(runner, pictures(9))
        return devices.free_bytes(gpu)

    assert failed(3) - failed(10) < 16 << 20


def test_a_truncated_plan_is_a_mismatch_with_the_command_that_mends_it(engines: Engines) -> None:
    opener = engines(graphs.line, LINE)
    broken = opener.engine.with_name("broken.plan")
    broken.write_bytes(opener.engine.read_bytes()[:2000])
    with pytest.raises(
        EngineMismatch, match=r"does not load it: .*\. Build it again with: trtfuse"
    ):
        run_in_child(opened_once, OpenTrt(broken, opener.manifest), name="probe")


def test_an_altered_plan_ends_a_child_at_most(engines: Engines) -> None:
    opener = engines(graphs.picture, PICTURE)
    plan = bytearray(opener.engine.read_bytes())
    for at in range(200, len(plan), 997):
        plan[at] ^= 0xFF
    altered = opener.engine.with_name("altered.plan")
    altered.write_bytes(plan)
    with pytest.raises((EngineMismatch, DeviceError, ChildDied)):
        run_in_child(opened_once, OpenTrt(altered, opener.manifest), name="probe", timeout_s=60.0)


def opened_once(opener: OpenTrt) -> None:
    with opener(DEVICE, NO_RING):
        pass


def test_an_engine_of_other_tensors_is_a_mismatch(engines: Engines) -> None:
    opener = engines(graphs.line, LINE)
    other = manifest(opener.manifest.source, LINE, dtype="float16")
    with (
        pytest.raises(EngineMismatch, match=r"'x' is float16 in the graph, .*dtype='float32'"),
        OpenTrt(opener.engine, other)(DEVICE, NO_RING),
    ):
        pass


def test_want_of_memory_names_need_and_free_and_what_helps(tmp_path: Path) -> None:
    # 512 MiB a lane, where 900 MiB are left.
    large = ShapeRange(min=(1, 1 << 20), opt=(1, 1 << 20), max=(64, 1 << 20))
    model, plan = graphs.line(tmp_path / "model.onnx", items=1 << 20), tmp_path / "engine.plan"
    run_in_child(builder.build, model, request(large), plan, DEVICE, name="builder")
    two = OpenTrt(plan, manifest(model, large), lanes=2, fewest=2)
    with pytest.raises(OutOfMemory, match=r"2 lanes need .* were free\. Use fewer --lanes"):
        run_in_child(lanes_beside, two, 900 << 20, name="worker")
    as_many_as_fit = replace(two, fewest=1)
    assert run_in_child(lanes_beside, as_many_as_fit, 1100 << 20, name="worker") == 1


def lanes_beside(opener: OpenTrt, left: int) -> int:
    """Lanes of a runner that is opened while a buffer leaves only `left` bytes of the device."""
    from trtfuse.gpu import driver
    from trtfuse.gpu.tensorrt import door

    driver.claim(DEVICE)
    door("tensorrt")
    from trtfuse.gpu import cuda

    with cuda.context():
        hog = cuda.Buffer(cuda.free_bytes() - left)
        try:
            with opener(DEVICE, NO_RING) as runner:
                return runner.lanes
        finally:
            hog.close()


def test_want_of_memory_in_a_run_is_an_error_of_its_own_and_the_process_goes_on() -> None:
    run_in_child(wanting_more, name="worker")


def wanting_more() -> None:
    """Ask for more than any device has."""
    driver.claim(DEVICE)
    door("tensorrt")
    from trtfuse.gpu import cuda

    with cuda.context():
        with pytest.raises(OutOfMemory, match="out of memory"), cuda.translating("asking"):
            cuda.Buffer(1 << 50)
        cuda.Buffer(1 << 20).close()


def test_a_gpu_taken_after_cuda_has_started_with_another_is_told() -> None:
    with pytest.raises(DeviceError, match="CUDA was started in this process before"):
        run_in_child(claimed_too_late, name="worker")


def claimed_too_late() -> None:
    """What a module does that starts CUDA at its import, seen with a mask that changes after."""
    from trtfuse.gpu import driver

    class Elsewhere:
        """The driver, but for the device's UUID."""

        def __init__(self, real: ctypes.CDLL) -> None:
            self._real = real

        def __getattr__(self, name: str) -> object:
            return getattr(self._real, name)

        def cuDeviceGetUuid_v2(self, uuid: object, handle: object) -> int:
            return 0  # leaves zeros

    driver.prove(Elsewhere(driver.start()), devices.named(DEVICE))


def test_timings_make_the_second_build_read_them(tmp_path: Path) -> None:
    model, timings = graphs.picture(tmp_path / "model.onnx"), tmp_path / "timings"
    plan = tmp_path / "engine.plan"

    def build() -> Path:
        run_in_child(timed_build, model, plan, timings, name="builder")
        (file,) = timings.iterdir()
        return file

    size = build().stat().st_size
    assert size > 0
    assert build().stat().st_size >= size
    build().write_bytes(b"not a cache")
    assert build().stat().st_size >= size


def timed_build(model: Path, plan: Path, timings: Path) -> None:
    builder.build(model, request(PICTURE), plan, DEVICE, timings=timings)


def worker() -> int:
    """Process id of the pool's one worker."""
    children = psutil.Process().children()
    (found,) = [child for child in children if "spawn_main" in " ".join(child.cmdline())]
    return int(found.pid)


@pytest.fixture
def stack_dump() -> Iterator[None]:
    """A hang in here would be silent else."""
    import faulthandler

    faulthandler.dump_traceback_later(120, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.mark.usefixtures("stack_dump")
def test_a_killed_gpu_worker_costs_no_batch(engines: Engines) -> None:
    opener = engines(graphs.picture, PICTURE)
    batches = [pictures(4, seed=n) for n in range(200)]
    layout = for_engine(opener.manifest, batch=4, wanted=6, memory_bytes=1 << 30)
    with opener(DEVICE, NO_RING) as runner:
        expected = [answer(runner, x) for x in batches]
    with created(layout) as ring, Pool([Seat(device=DEVICE, open_runner=opener)], ring) as pool:
        got = []
        for number, outputs in enumerate(map_batches(pool, ring, ({"x": x} for x in batches))):
            got.append(outputs["y"])
            if number in (20, 120):
                os.kill(worker(), signal.SIGKILL)
        deaths = pool.records[0].deaths
    assert len(deaths) == 2
    assert len(got) == len(batches)
    for a, b in zip(expected, got, strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_is_told_of_tensorrt_without_loading_it_is_true() -> None:
    found = installed("tensorrt")
    assert found
    weakly_typed, has_flag = run_in_child(loaded, name="asking")
    assert typed("tensorrt", found) is not weakly_typed
    assert has_bfloat16("tensorrt", found) is (has_flag or not weakly_typed)


def loaded() -> tuple[bool, bool]:
    """Whether precisions need flags, and whether there is one for bfloat16."""
    driver.claim(DEVICE)
    found = door("tensorrt")
    return found.abilities.weakly_typed, hasattr(found.trt.BuilderFlag, "BF16")


def test_instances_that_fit_are_counted_by_opening_one(engines: Engines) -> None:
    opener = engines(graphs.line, LINE)
    free = devices.free_bytes(devices.named(DEVICE))
    count = run_in_child(fitting, opener, DEVICE, name="probe")
    assert 1 <= count <= free // (64 << 20)  # a CUDA context takes more than that


def test_the_two_commands_build_for_a_gpu_and_run_on_it(tmp_path: Path) -> None:
    model = brighter(tmp_path / "brighter.onnx")
    Image.new("RGB", (32, 24), (100, 50, 20)).save(tmp_path / "a.png")
    sizes = ((8, 8), (24, 32), (64, 64))
    asked = BuildOptions(
        model=model, gpus="0", sizes=sizes, engines=tmp_path / "engines", precision=Precision.FP16
    )
    (outcome,) = build(asked, lambda _: None).outcomes
    assert outcome.engine.manifest.lane_bytes > 0
    assert outcome.engine.manifest.request.runtime == "tensorrt"
    options = InferOptions(
        source=tmp_path / "a.png", output=tmp_path / "out", engines=asked.engines, workers=2
    )
    report = infer(options, watch=lambda _: None)
    assert [one.device for one in report.devices] == [DEVICE, DEVICE]
    with Image.open(tmp_path / "out" / "a.png") as picture:
        assert picture.getpixel((16, 12)) == (50, 25, 10)
