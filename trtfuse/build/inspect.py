"""Which engines on disk run here, and what differs where one does not. Loads none of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trtfuse.build import backends, plan, store
from trtfuse.build.backends import BACKENDS
from trtfuse.build.plan import Target
from trtfuse.core.errors import EngineMismatch
from trtfuse.core.specs import EngineManifest

Here = Callable[[str], Sequence[Target]]
"""A runtime's name -> the devices of this machine that it runs on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInspection:
    """One engine's folder, told from its manifest and its bytes."""

    folder: Path
    manifest: EngineManifest | None
    """None: it cannot be read."""
    runs_on: tuple[str, ...]
    """Devices of this machine, as "cuda:0"."""
    faults: tuple[str, ...]
    """Why it runs on none, a sentence each; empty where it does."""
    command: str
    """What builds it again, as it should be."""


def here(runtime: str) -> tuple[Target, ...]:
    """The devices of this machine that engines of `runtime` run on."""
    return backends.of_kind(BACKENDS[runtime].kind) if runtime in BACKENDS else ()


def inspect(path: Path, here: Here = here) -> tuple[EngineInspection, ...]:
    """Every engine at `path`: the folder of all, of a model's or of one, or one's file.

    Raises EngineNotFound where there is none.
    """
    return tuple(_inspect(folder, here) for folder in store.folders(path))


def _inspect(folder: Path, here: Here) -> EngineInspection:
    try:
        engine = store.read(folder)
    except EngineMismatch as error:
        return EngineInspection(
            folder=folder,
            manifest=None,
            runs_on=(),
            faults=(str(error),),
            command=f"trtfuse build {folder.parent.name}.onnx",
        )
    targets = here(engine.manifest.request.runtime)
    differ = {target: "; ".join(store.differences(engine.manifest, target)) for target in targets}
    fitting = [target.device for target, why in differ.items() if not why]
    faults = [damage] if (damage := store.damage(engine) or store.outdated(engine)) else []
    if not fitting:
        # Equal devices differ in the same.
        faults += dict.fromkeys(differ.values()) or [_nowhere(engine.manifest)]
    return EngineInspection(
        folder=folder,
        manifest=engine.manifest,
        runs_on=() if damage else tuple(f"{one.kind}:{one.index}" for one in fitting),
        faults=tuple(faults),
        command=plan.command(engine.manifest) + (" --rebuild" if damage else ""),
    )


def _nowhere(manifest: EngineManifest) -> str:
    request = manifest.request
    backend = BACKENDS.get(request.runtime)
    missing = "has no such device" if backend and backend.version() else "is not installed"
    return (
        f"device: built for {request.device_name!r} with {request.runtime} "
        f"{request.runtime_version}; here it {missing}"
    )
