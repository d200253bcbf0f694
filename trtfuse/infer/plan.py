"""A run, decided before anything of it is opened."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from trtfuse import __version__
from trtfuse.build.fleet import find
from trtfuse.build.store import Engine
from trtfuse.core.card import Card
from trtfuse.core.cores import usable_cores
from trtfuse.core.errors import CardError
from trtfuse.core.extras import require
from trtfuse.core.options import InferOptions
from trtfuse.core.record import to_json
from trtfuse.io.folder import FolderSource
from trtfuse.io.opening import open_source
from trtfuse.io.sink import Run
from trtfuse.pool.pool import Seat
from trtfuse.pool.slots import Layout, for_engine
from trtfuse.pool.stream import Threads

# More decoders feed more than one process can write, and hold memory.
_MOST_FEEDERS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A run, decided: nothing has been opened yet but the list of pictures."""

    options: InferOptions
    began: datetime
    """When the run was asked for, in UTC; and the same by `time.monotonic`."""
    began_s: float
    source: FolderSource
    output: Path
    engines: tuple[Engine, ...]
    """Of one model, each for a device of its own; they differ in nothing that the ring knows."""
    worker_engines: tuple[str, ...]
    """Folder name of each worker's."""
    notes: tuple[str, ...]
    card: Card
    seats: tuple[Seat, ...]
    threads: Threads
    layout: Layout

    @property
    def engine_names(self) -> str:
        """Of all of them, for people."""
        return ", ".join(engine.folder.name for engine in self.engines)

    @property
    def run(self) -> Run:
        """What must be the same for a run to go on where another ended."""
        options, manifest = self.options, self.engines[0].manifest
        engines = (f"{one.folder.name} ({one.manifest.engine_sha256[:12]})" for one in self.engines)
        identity = {
            "trtfuse": __version__,
            "source": str(options.source.resolve()),
            "model": f"{manifest.model} ({manifest.request.model_sha256[:12]})",
            "engine": ", ".join(sorted(engines)),
            **{f"--{name}": str(value) for name, value in to_json(options.writing).items()},
        }
        if options.reading.keep_rotation:
            identity["--keep-rotation"] = "True"
        if options.reading.hwaccel is not None:
            # Its frames have another layout, whose colours may round to a level beside.
            identity["--hwaccel"] = options.reading.hwaccel
        return Run(identity=identity, engines=self.worker_engines, restart=options.restart)


def decide(options: InferOptions) -> Plan:
    """Find the pictures, the engine and the devices, check that they fit, and size the ring."""
    if options.observing.metrics is not None:
        require("prometheus_client", extra="metrics", purpose="--metrics")
    began, began_s = datetime.now(timezone.utc), time.monotonic()
    source = open_source(options.source, options.reading)
    fleet = find(options)
    seats = tuple(Seat(device=one.device, open_runner=one.open_runner) for one in fleet.places)
    engine = fleet.engines[0]
    card = engine.manifest.card
    if card is None:
        raise CardError(
            f"{engine.folder}: its model has no card, so nothing says what a picture is to "
            f"it. Give it one with: trtfuse export {engine.manifest.source} --card CARD.json -o …"
        )
    feeders = options.feeders or min(usable_cores(), _MOST_FEEDERS)
    threads = Threads(feeders=feeders, writers=options.writers or feeders)
    layout = for_engine(
        engine.manifest,
        batch=options.batch or engine.manifest.request.profile[0][1].opt[0],
        # Each thread fills or empties one.
        wanted=sum(one.batches for one in fleet.places) + threads.feeders + threads.writers,
        memory_bytes=options.memory_bytes,
    )
    return Plan(
        options=options,
        began=began,
        began_s=began_s,
        source=source,
        output=options.output or _beside(options.source),
        engines=fleet.engines,
        worker_engines=tuple(one.engine for one in fleet.places),
        notes=fleet.notes,
        card=card,
        seats=seats,
        threads=threads,
        layout=layout,
    )


def _beside(source: Path) -> Path:
    """ "photos-out" for "photos/", "a-out" for "a.png"; beside it, wherever it was named from."""
    whole = source.resolve()
    return whole.with_name(f"{whole.stem if whole.is_file() else whole.name}-out")
