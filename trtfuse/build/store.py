"""Engines on disk: `<root>/<model>/<device>-<runtime>-<precision>-<key8>/` with a manifest each.

An engine is there if its manifest is: it is written last and removed first. Nothing is loaded that
its manifest does not fit.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from filelock import FileLock, Timeout

from trtfuse.build import plan
from trtfuse.build.plan import Target
from trtfuse.core import files
from trtfuse.core.errors import EngineMismatch, EngineNotFound, UnknownName, UsageError
from trtfuse.core.record import Malformed, from_json, to_json
from trtfuse.core.specs import (
    BuildRequest,
    DeviceSpec,
    EngineManifest,
    ModelSpec,
    Precision,
    TrtSettings,
)

SCHEMA = 1

_MANIFEST = "manifest.json"
# A folder of its own a build: a builder whose parent was killed may still be writing to the last.
_SCRATCH = ".building-"
# Compute capability of the first GPUs that `--hardware ampere+` is for.
_AMPERE = 80


@dataclass(frozen=True, slots=True)
class Engine:
    """A published engine. `folder` holds the engine and its manifest."""

    folder: Path
    manifest: EngineManifest

    @property
    def path(self) -> Path:
        """The file that the runtime loads."""
        return self.folder / self.manifest.engine


def read(folder: Path) -> Engine:
    """The engine of a folder, by its manifest. Raises EngineMismatch if that is malformed."""
    path = folder / _MANIFEST
    try:
        data = json.loads(path.read_text())
        if isinstance(data, dict) and data.get("schema") != SCHEMA:
            raise Malformed(f"schema: needs {SCHEMA}, got {data.get('schema')!r}")
        manifest = from_json(EngineManifest, data, at="manifest")
        if Path(manifest.engine).name != manifest.engine:
            raise Malformed(f"manifest.engine: needs a file name, got {manifest.engine!r}")
    except (OSError, ValueError) as error:
        raise EngineMismatch(
            f"{path}: not a manifest that can be read ({error}). "
            f"Remove {folder} and build again with: trtfuse build {folder.parent.name}.onnx"
        ) from error
    return Engine(folder, manifest)


def is_engine(folder: Path) -> bool:
    """Whether an engine is there."""
    return (folder / _MANIFEST).is_file()


def verify(engine: Engine) -> None:
    """Raise EngineMismatch unless manifest, engine file and ONNX file still belong together.

    An ONNX file that is not there any more is no error: engines may be moved without it.
    """
    verify_files(engine)
    if said := outdated(engine):
        again = plan.command(engine.manifest)
        raise EngineMismatch(f"{said} Build the engine again with: {again}")


def verify_files(engine: Engine) -> None:
    """Raise EngineMismatch unless the manifest and the engine file are as they were published."""
    if said := damage(engine):
        again = plan.command(engine.manifest)
        raise EngineMismatch(f"{said} Build the engine again with: {again} --rebuild")


def damage(engine: Engine) -> str:
    """How manifest or engine file are not as they were published, in words. Empty: they are."""
    manifest = engine.manifest
    if plan.fingerprint(manifest.request) != manifest.fingerprint:
        return f"{engine.folder / _MANIFEST}: was edited; its request has not its fingerprint."
    if not engine.path.is_file():
        return f"{engine.path}: is missing."
    size = engine.path.stat().st_size
    if size < manifest.engine_bytes:
        return f"{engine.path}: is cut short: {size} of {manifest.engine_bytes} bytes."
    if (found := files.sha256(engine.path)) != manifest.engine_sha256:
        return (
            f"{engine.path}: was altered after it was built: its SHA-256 is {found[:8]}…, "
            f"its manifest says {manifest.engine_sha256[:8]}…."
        )
    return ""


def outdated(engine: Engine) -> str:
    """Whether its ONNX file is another by now, in words. Empty: it is not, or is not there."""
    source, sha256 = engine.manifest.source, engine.manifest.request.model_sha256
    if not source.is_file() or is_model(source, sha256):
        return ""
    return f"{source}: has changed since {engine.folder} was built from it."


def is_model(path: Path, sha256: str) -> bool:
    """Whether the ONNX file, with its external data, has this fingerprint.

    The bytes of the file say whether there is external data: if they alone have the fingerprint,
    there is none, and no graph needs to be read.
    """
    if files.sha256(path) == sha256:
        return True
    from trtfuse.graph.model import describe

    try:
        return describe(path).sha256 == sha256
    except UsageError:  # not a whole ONNX file any more: it has changed, in any case
        return False


def find(
    root: Path,
    *,
    model: str | None,
    engine: str | None,
    target: Target,
    precision: Precision | None = None,
) -> Engine:
    """The one engine below `root` that fits; `model` and `engine` name folders, None: the only one.

    With `precision`, those in another one do not fit.

    One whose manifest cannot be read is in nobody's way: it is told of where no other fits.

    Raises EngineNotFound where there is none, EngineMismatch where none fits, UnknownName and
    UsageError where the names do not settle it.
    """
    model = _model(root, model)
    folders = {folder.name: folder for folder in _folders(root / model)}
    if engine is not None and engine not in folders:
        raise UnknownName.among(f"--engine: engine of {model}", engine, folders)
    found, unreadable = _read_all([folders[engine]] if engine else folders.values())
    if not found:
        raise unreadable[0]
    why = {one.folder: _why_not(one.manifest, target, precision) for one in found}
    fitting = [one for one in found if not why[one.folder]]
    if not fitting:
        raise EngineMismatch(_no_fit(found, why, target, precision, unreadable))
    if len(fitting) > 1:
        lines = "".join(
            f"\n  --engine {one.folder.name}  ({profile_text(one.manifest.request)})"
            for one in fitting
        )
        raise UsageError(f"{root / model}: {len(fitting)} engines fit. Name one:{lines}")
    return fitting[0]


def differences(manifest: EngineManifest, target: Target) -> tuple[str, ...]:
    """What the engine was built for and the target is not, in words. Empty: it fits."""
    request = manifest.request
    pairs = (
        ("runtime", request.runtime, target.runtime),
        *_device(request, target.device),
        (f"{request.runtime} version", request.runtime_version, target.runtime_version),
    )
    return tuple(
        f"{what}: built for {built!r}, found here {here!r}"
        for what, built, here in pairs
        if built != here
    )


def _device(request: BuildRequest, here: DeviceSpec) -> tuple[tuple[str, str, str], ...]:
    """(what, what it was built for, what is here) of the device, as far as it matters."""
    hardware = request.settings.hardware if request.settings else "exact"
    built, found = (text.partition(" ")[0] for text in (request.device_features, here.features))
    if hardware == "exact" or here.kind != "cuda":
        return (
            ("device", request.device_name, here.name),
            ("device features", request.device_features, here.features),
        )
    if hardware == "ampere+" and int(found.removeprefix("sm")) >= _AMPERE:
        return ()
    return (("compute capability", built if hardware == "same-capability" else "sm80+", found),)


def _why_not(
    manifest: EngineManifest, target: Target, precision: Precision | None
) -> tuple[str, ...]:
    built = manifest.request.precision
    if precision in (None, built):
        return differences(manifest, target)
    asked = f"precision: built in {built.value!r}, asked for {precision.value!r}"
    return (*differences(manifest, target), asked)


def profile_text(request: BuildRequest) -> str:
    """What tells an engine from its like: "fp32, x 1x3x256x256 to 8x3x256x256"."""
    shapes = (
        f"{name} {'x'.join(map(str, shape.min))} to {'x'.join(map(str, shape.max))}"
        for name, shape in request.profile
    )
    return ", ".join((request.precision.value, *shapes))


def described(model: Path, source: Path) -> ModelSpec | None:
    """What the engines below `model` say of `source`, if one was built from these very bytes.

    Saves reading the graph, and importing onnx to read it.
    """
    sha256 = files.sha256(source)
    for manifest in (one.manifest for one in readable(model)):
        if manifest.request.model_sha256 == sha256:
            return ModelSpec(
                path=source,
                sha256=sha256,
                inputs=manifest.inputs,
                outputs=manifest.outputs,
                card=manifest.card,
            )
    return None


@contextmanager
def building(model: Path, progress: Callable[[str], None]) -> Iterator[Path]:
    """The only builder below `model`, as long as the block lasts: an empty folder to work in.

    Waits for another builder, and says so. What a killed builder left behind is removed first.
    """
    model.mkdir(parents=True, exist_ok=True)
    lock = FileLock(model / ".lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        progress(f"{model.name}: waiting for another build of it to end")
        lock.acquire()
    try:
        for left in model.glob(f"{_SCRATCH}*"):
            shutil.rmtree(left, ignore_errors=True)
        with TemporaryDirectory(prefix=_SCRATCH, dir=model, ignore_cleanup_errors=True) as scratch:
            yield Path(scratch)
    finally:
        lock.release()


def publish(candidate: Path, folder: Path, manifest: EngineManifest) -> Engine:
    """Move the engine `candidate` into `folder` and write its manifest, in this order."""
    engine = Engine(folder, manifest)
    (folder / _MANIFEST).unlink(missing_ok=True)
    with files.replacing(engine.path) as part:
        candidate.replace(part)
    write_manifest(engine)
    return engine


def write_manifest(engine: Engine) -> None:
    """Write the manifest beside its engine, atomically."""
    with files.replacing(engine.folder / _MANIFEST) as part:
        part.write_text(json.dumps(to_json(engine.manifest), indent=2) + "\n")


def adopt(engine: Engine, source: Path) -> Engine:
    """Note where the engine's ONNX file lies now. Its bytes are the same."""
    if engine.manifest.source == source:
        return engine
    engine = Engine(engine.folder, replace(engine.manifest, source=source))
    write_manifest(engine)
    return engine


def remove_superseded(model: Path, model_sha256: str) -> tuple[Path, ...]:
    """Remove the engines below `model` that hold other weights. Returns their folders."""
    old = [
        engine.folder
        for engine in readable(model)
        if engine.manifest.request.model_sha256 != model_sha256
    ]
    for folder in old:
        (folder / _MANIFEST).unlink()
        shutil.rmtree(folder)
    return tuple(old)


def _folders(model: Path) -> tuple[Path, ...]:
    """Folders of a model's engines, by name."""
    return tuple(sorted(path.parent for path in model.glob(f"[!.]*/{_MANIFEST}")))


def folders(path: Path) -> tuple[Path, ...]:
    """Folders of the engines at `path`: the folder of all, of a model's or of one, or one's file.

    Raises EngineNotFound.
    """
    folder = path.parent if path.is_file() else path
    if (folder / _MANIFEST).is_file():
        return (folder,)
    models = (model for model in sorted(folder.glob("[!.]*")) if model.is_dir())
    found = _folders(folder) or tuple(one for model in models for one in _folders(model))
    if not found:
        raise EngineNotFound(f"{path}: holds no engine. Build one with: trtfuse build MODEL.onnx")
    return found


def readable(model: Path) -> Iterator[Engine]:
    """Engines whose manifest can be read. The others are for `find` to complain of."""
    return iter(_read_all(_folders(model))[0])


def _read_all(folders: Iterable[Path]) -> tuple[list[Engine], list[EngineMismatch]]:
    """The engines of these folders, and the error of each that cannot be read."""
    found, unreadable = [], []
    for folder in folders:
        try:
            found.append(read(folder))
        except EngineMismatch as error:
            unreadable.append(error)
    return found, unreadable


def _model(root: Path, name: str | None) -> str:
    """The model to use: `name`, or the only one below `root` with an engine that can be read."""
    models = sorted(folder.name for folder in root.glob("[!.]*") if _folders(folder))
    if name is None and len(models) > 1:
        # Only told of where nothing better is there.
        models = [one for one in models if any(readable(root / one))] or models
    if not models:
        raise EngineNotFound(
            f"{root}: holds no engine. Build one with: trtfuse build {name or 'MODEL'}.onnx"
        )
    if name is None and len(models) > 1:
        raise UsageError(
            f"{root}: holds engines of {len(models)} models: {', '.join(models)}. "
            f"Name one, for example: --model {models[0]}"
        )
    if name is not None and name not in models:
        raise UnknownName.among("--model", name, models)
    return name or models[0]


def _no_fit(
    engines: Sequence[Engine],
    why: Mapping[Path, Sequence[str]],
    target: Target,
    precision: Precision | None,
    unreadable: Sequence[EngineMismatch],
) -> str:
    """Why none of the engines fits, one line each, and the command that makes one that does."""
    reasons = [f"{one.folder}: {'; '.join(why[one.folder])}" for one in engines]
    lines = "".join(f"\n  {reason}" for reason in [*reasons, *map(str, unreadable)])
    like = engines[0].manifest
    settings = None if target.device.kind == "cpu" else like.request.settings or TrtSettings()
    request = replace(
        like.request,
        runtime=target.runtime,
        settings=settings,
        precision=precision or like.request.precision,
    )
    return (
        f"No engine fits {target.device.name} with {target.runtime} {target.runtime_version}:"
        f"{lines}\nBuild one with: {plan.command(replace(like, request=request))}"
    )
