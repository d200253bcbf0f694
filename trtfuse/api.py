"""What a Python program calls: the commands as functions, and an engine that takes arrays.

The examples go on from one another, from a module to a folder of pictures. All but `open_engine`
start processes, which import the program's main file anew: what a script does stands below
`if __name__ == "__main__":`. Nothing heavy is loaded before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal

import numpy as np

from trtfuse.core.inputs import check
from trtfuse.core.options import BuildOptions, ExportOptions, InferOptions
from trtfuse.core.report import Progress, RunReport
from trtfuse.core.specs import Array, Arrays, EngineManifest, TensorSpec

if TYPE_CHECKING:
    from trtfuse.build.build import BuildReport
    from trtfuse.build.fleet import Fleet
    from trtfuse.core.flow import Runner
    from trtfuse.graph.export import ExportReport
    from trtfuse.graph.simplify import Isolate


_DEFAULT = InferOptions(source=Path())


def _quiet(_: object) -> None:
    """Tell nobody."""


def export(options: ExportOptions, progress: Callable[[str], None] = _quiet) -> ExportReport:
    """Write a graph with a dynamic batch that is proven to answer as its source does.

    `progress` gets a line a step. Raises UsageError before any work where it can, and ExportFailed
    with the numbers, and then there is no file.

    >>> from pathlib import Path
    >>> import torch, trtfuse
    >>> picture = dict(
    ...     name="input", layout="NCHW", colour="RGB", range=[0, 1], size=[8, 8], resize="stretch"
    ... )
    >>> options = trtfuse.ExportOptions(
    ...     model=torch.nn.AvgPool2d(2),
    ...     output=Path("net.onnx"),
    ...     shapes=((3, 8, 8),),
    ...     card=trtfuse.Card.of({"input": picture, "task": {"name": "tensor"}}),
    ... )
    >>> report = trtfuse.export(options)
    >>> [(one.name, one.shape) for one in report.model.inputs]
    [('input', ('batch', 3, 8, 8))]
    >>> report.largest_difference < 1e-5
    True
    """
    from trtfuse.graph.export import export as run
    from trtfuse.pool.guard import require_guard

    require_guard()
    return run(options, progress, isolate=isolated(options))


def isolated(options: ExportOptions) -> Isolate:
    """What runs the simplifier in a child, with the options' limits of time and memory."""
    from trtfuse.pool.spawn import run_in_child

    return partial(
        run_in_child,
        name="simplifier",
        timeout_s=options.simplify_s,
        memory_bytes=options.simplify_bytes,
    )


def build(options: BuildOptions, progress: Callable[[str], None] = _quiet) -> BuildReport:
    """An engine for every kind of device that `options` choose; what is up to date is kept.

    `progress` gets lines of text. Raises UsageError, CardError, CalibrationError, BuildFailed, and
    then nothing was published for that device.

    >>> from pathlib import Path
    >>> import trtfuse
    >>> report = trtfuse.build(trtfuse.BuildOptions(model=Path("net.onnx"), devices="cpu"))
    >>> [(one.folder.parent.as_posix(), one.manifest.batch_ms > 0) for one in report.engines]
    [('engines/net', True)]
    """
    from trtfuse.build.build import build as run
    from trtfuse.pool.guard import require_guard

    require_guard()
    return run(options, progress)


class LoadedEngine:
    """An engine on one device: named arrays in, named arrays out. `open_engine` gives it.

    >>> import numpy as np, trtfuse
    >>> with trtfuse.open_engine("engines/net", devices="cpu") as engine:
    ...     engine({"x": np.zeros((1, 3, 8, 8), np.float32)})
    Traceback (most recent call last):
        ...
    trtfuse.core.errors.ShapeMismatch: input 'input': is missing, got 'x'.
    """

    def __init__(self, runner: Runner, manifest: EngineManifest) -> None:
        self.manifest = manifest
        """All that is known of the engine."""
        self._runner = runner

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """What a call takes; names and dtypes are exact, sizes lie in `manifest.profile`."""
        return self.manifest.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """What a call gives."""
        return self.manifest.outputs

    def __call__(self, inputs: Arrays) -> dict[str, Array]:
        """The outputs of one batch, which are the caller's own.

        Raises ShapeMismatch for what the engine does not take, DeviceError where the device fails.
        """
        dtypes = {tensor.name: tensor.dtype for tensor in self.outputs}
        outputs: dict[str, Array] = {}

        def claim(name: str, shape: tuple[int, ...]) -> Array:
            outputs[name] = np.empty(shape, dtypes[name])
            return outputs[name]

        # Held until the end: the device reads from them.
        whole = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
        self._runner.launch(whole, claim).result()
        return outputs


@contextmanager
def open_engine(
    engine: str | Path, *, devices: str | None = None, gpus: str | None = None
) -> Iterator[LoadedEngine]:
    """Load an engine in this process, on one device, as long as the block lasts.

    `engine` is the folder of one, or of a model: then it is the engine in it that fits. `devices`
    ("cpu") and `gpus` ("1", or a UUID) choose as the commands' options do; without them it is the
    first GPU that has an engine, else the CPU. A GPU becomes the only one of this process: open
    the engine before anything else starts CUDA. Raises EngineNotFound, EngineMismatch, DeviceError.

    >>> import numpy as np, trtfuse
    >>> with trtfuse.open_engine("engines/net", devices="cpu") as engine:
    ...     y = engine({"input": np.ones((2, 3, 8, 8), np.float32)})
    >>> {name: array.shape for name, array in y.items()}
    {'output': (2, 3, 4, 4)}
    """
    fleet = _fleet(engine, replace(_DEFAULT, devices=devices, gpus=gpus))
    place = fleet.places[0]
    with place.open_runner(place.device, np.empty(0, np.uint8)) as runner:
        yield LoadedEngine(runner, fleet.engines[0].manifest)


class Pool:
    """Batches of arrays through one process per worker, in order, whatever dies on the way.

    `engine`, `devices` and `gpus` are as in `open_engine`, but for all devices chosen; `workers`
    are those of each device, or "auto". `batch` is the most items that one batch may hold; None:
    as many as the engine takes. A context: entered, its workers are ready; left, they are gone.

    >>> import numpy as np, trtfuse
    >>> batches = [{"input": np.full((4, 3, 8, 8), n, np.float32)} for n in range(10)]
    >>> with trtfuse.Pool("engines/net", devices="cpu", workers=2) as pool:
    ...     [float(y["output"].max()) for y in pool.map(batches)]
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
    """

    def __init__(
        self,
        engine: str | Path,
        *,
        devices: str | None = None,
        gpus: str | None = None,
        workers: int | Literal["auto"] | None = None,
        batch: int | None = None,
        memory_bytes: int = _DEFAULT.memory_bytes,
    ) -> None:
        self._fleet = _fleet(engine, replace(_DEFAULT, devices=devices, gpus=gpus, workers=workers))
        self.manifest = self._fleet.engines[0].manifest
        """All that is known of the engine."""
        self._batch = batch or self.manifest.request.profile[0][1].max[0]
        self._memory_bytes = memory_bytes
        self._open = ExitStack()

    def __enter__(self) -> Pool:
        """Start the workers. Raises StartFailed, or PoolError where memory is short."""
        from trtfuse.pool import pool
        from trtfuse.pool.guard import require_guard
        from trtfuse.pool.slots import created, for_engine

        require_guard()
        places = self._fleet.places
        layout = for_engine(
            self.manifest,
            batch=self._batch,
            # Beside what the workers hold, one is being filled and one is being read.
            wanted=sum(place.batches for place in places) + 2,
            memory_bytes=self._memory_bytes,
        )
        seats = [pool.Seat(device=one.device, open_runner=one.open_runner) for one in places]
        with ExitStack() as stack:
            self._ring = stack.enter_context(created(layout))
            self._pool = stack.enter_context(pool.Pool(seats, self._ring))
            self._open = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._open.__exit__(kind, error, where)

    def map(self, batches: Iterable[Arrays]) -> Iterator[dict[str, Array]]:
        """The outputs of every batch, in order, as arrays of the caller's own.

        Each batch holds every input by name; sizes may differ from one to the next. One call at a
        time. Raises ShapeMismatch for a batch the engine does not take, PoolError for one that
        fails; the pool can be used again after.
        """
        from trtfuse.pool.arrays import map_batches

        return map_batches(self._pool, self._ring, map(self._checked, batches))

    def _checked(self, batch: Arrays) -> Arrays:
        check(batch, self.manifest)
        return batch


def infer(options: InferOptions, watch: Callable[[Progress], None] = _quiet) -> RunReport:
    """Run a folder of pictures and videos through the pool: `trtfuse infer`.

    `watch` is called after every item. Raises UsageError, CardError, EngineError or PoolError where
    the run cannot start or go on; an item that fails is in the report.

    >>> import cv2, numpy as np, trtfuse
    >>> from pathlib import Path
    >>> Path("photos").mkdir()
    >>> cv2.imwrite("photos/grey.png", np.full((20, 30, 3), 200, np.uint8))
    True
    >>> options = trtfuse.InferOptions(source=Path("photos"), model="net", devices="cpu")
    >>> report = trtfuse.infer(options)
    >>> report.items, report.failures, sorted(path.name for path in Path("photos-out").iterdir())
    (1, (), ['grey.png.npz', 'journal.jsonl', 'results.jsonl', 'run.json'])
    """
    from trtfuse.infer import infer as run
    from trtfuse.pool.guard import require_guard

    require_guard()
    return run(options, watch=watch)


def _fleet(engine: str | Path, choice: InferOptions) -> Fleet:
    """The workers that `choice` asks for, with the engine, or the model, that a folder holds."""
    from trtfuse.build.fleet import find
    from trtfuse.build.store import is_engine

    folder = Path(engine).absolute()
    name = folder.name if is_engine(folder) else None
    model = folder.parent if name else folder
    return find(replace(choice, engines=model.parent, model=model.name, engine=name))
