"""From options to the engines to build: profiles, fingerprints, names and commands. Pure."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from trtfuse.core.errors import UnknownName, UsageError
from trtfuse.core.inputs import fixed_batch
from trtfuse.core.options import BuildOptions
from trtfuse.core.record import to_json
from trtfuse.core.specs import (
    BATCH,
    BuildRequest,
    DeviceSpec,
    EngineManifest,
    ModelSpec,
    Precision,
    ShapeRange,
    TensorSpec,
    TrtSettings,
)

Size = tuple[int, int]
Sizes = tuple[Size, Size, Size]
Profile = tuple[tuple[str, ShapeRange], ...]

_BATCHES = (1, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A device, and the runtime that is installed for it."""

    device: DeviceSpec
    runtime: str
    runtime_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """One engine to be made: on `device`, for every device that is its like."""

    request: BuildRequest
    device: DeviceSpec
    count: int = 1
    """How many of the devices chosen it is for; `device` is the first."""

    @property
    def fingerprint(self) -> str:
        """Of everything that changes the engine's bytes."""
        return fingerprint(self.request)

    @property
    def folder(self) -> str:
        """Name of the engine's folder: <device>-<runtime>-<precision>-<key8>."""
        name = "cpu" if self.device.kind == "cpu" else self.device.name
        slug = "-".join(re.findall("[a-z0-9]+", name.lower()))
        request = self.request
        return f"{slug}-{request.runtime}-{request.precision.value}-{self.fingerprint[:8]}"


def plan(options: BuildOptions, model: ModelSpec, targets: Sequence[Target]) -> tuple[Build, ...]:
    """What to build: one engine a kind of device, in FP32. `recast` makes other precisions of it.

    Raises UsageError where the profile is open.
    """
    shapes = profile(options, model)
    builds: dict[BuildRequest, Build] = {}
    _check_settings(options, targets)
    for target in targets:
        request = BuildRequest(
            model_sha256=model.sha256,
            precision=Precision.FP32,
            profile=shapes,
            device_name=target.device.name,
            device_features=target.device.features,
            runtime=target.runtime,
            runtime_version=target.runtime_version,
            settings=None if target.device.kind == "cpu" else options.settings,
        )
        first = builds.get(request, Build(request=request, device=target.device, count=0))
        builds[request] = replace(first, count=first.count + 1)
    return tuple(builds.values())


def _check_settings(options: BuildOptions, targets: Sequence[Target]) -> None:
    """Raise UsageError for settings of GPUs where there is none among the targets."""
    if flags := _flags(options.settings):
        for target in targets:
            if target.device.kind == "cpu":
                raise UsageError(
                    f"{flags[0]} is for GPUs, and this would build for {target.device.name}. "
                    f"Leave it out, or choose with --gpus or --runtime rtx."
                )


def fp32(request: BuildRequest) -> BuildRequest:
    """The request that differs in nothing but its precision: what all precisions share."""
    return replace(request, precision=Precision.FP32, rest=Precision.FP32, keep=(), ranges="")


def fingerprint(request: BuildRequest) -> str:
    """Hex SHA-256 of the request as canonical JSON, without what has its default value.

    So a field that is new to requests changes no engine that does not use it.
    """
    default = {one.name: one.default for one in fields(request)}
    told = {name: to_json(getattr(request, name)) for name in default}
    used = {name: one for name, one in told.items() if one != to_json(default[name])}
    text = json.dumps(used, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def profile(options: BuildOptions, model: ModelSpec) -> Profile:
    """Shape range of every input. Raises UsageError where the options do not settle a size."""
    _require_batch(options, model)
    if options.shapes:
        return _stated(options, model)
    sizes = _sizes(options, model)
    batches = _batches(options, model)
    return tuple((tensor.name, _range(tensor, batches, sizes)) for tensor in model.inputs)


def command(manifest: EngineManifest) -> str:
    """The line that builds this engine again, from the ONNX file as it is now."""
    words = ["trtfuse", "build", str(manifest.source)]
    ranges = [manifest.profile[tensor.name] for tensor in manifest.inputs]
    opened = {
        tuple(tuple(shape[axis] for axis in open_axes(tensor)) for shape in _corners(shapes))
        for tensor, shapes in zip(manifest.inputs, ranges, strict=True)
        if open_axes(tensor)
    }
    if len(opened) > 1 or any(len(size) != 2 for corners in opened for size in corners):
        words += _shape_flags(manifest)
    else:
        words += ["--batch", ":".join(str(one[0]) for one in _corners(ranges[0]))]
        for corners in opened:
            words += ["--size", ":".join("x".join(map(str, size)) for size in corners)]
    request = manifest.request
    if request.settings:
        words += ["--gpus", "all"] if request.runtime == "tensorrt" else ["--runtime", "rtx"]
        words += _flags(request.settings)
    else:
        words += ["--devices", "cpu"]
    if request.precision is not Precision.FP32:
        words += ["--precision", request.precision.value]
    if request.precision is Precision.INT8:
        words += ["--calib-data", "FOLDER"]
    if request.keep:
        words += ["--keep", ",".join(request.keep)]
    return shlex.join(words)


def _shape_flags(manifest: EngineManifest) -> list[str]:
    """The profile in trtexec's words, for what --batch and --size cannot say."""
    words = []
    for number, flag in enumerate(("--minShapes", "--optShapes", "--maxShapes")):
        shapes = (
            f"{tensor.name}:{'x'.join(map(str, _corners(manifest.profile[tensor.name])[number]))}"
            for tensor in manifest.inputs
        )
        words += [flag, ",".join(shapes)]
    return words


def _flags(settings: TrtSettings) -> list[str]:
    """The words on a command line that say `settings`, as far as they are not the defaults."""
    default, words = TrtSettings(), []
    if settings.compute_capabilities:
        words += ["--compute-capability", ",".join(settings.compute_capabilities)]
    if settings.workspace_bytes is not None:
        words += ["--workspace", str(settings.workspace_bytes)]
    if settings.optimization_level != default.optimization_level:
        words += ["--optimization-level", str(settings.optimization_level)]
    if settings.hardware != default.hardware:
        words += ["--hardware", settings.hardware]
    if settings.version_compatible:
        words += ["--version-compatible"]
    return words


def open_axes(tensor: TensorSpec) -> tuple[int, ...]:
    """Axes whose size the graph leaves open, the batch (axis 0) apart."""
    return tuple(axis for axis, size in enumerate(tensor.shape) if axis and isinstance(size, str))


def _corners(shapes: ShapeRange) -> tuple[tuple[int, ...], ...]:
    return shapes.min, shapes.opt, shapes.max


def _stated(options: BuildOptions, model: ModelSpec) -> Profile:
    """The profile that the options spell out. Raises UsageError where an input cannot have it."""
    given = dict(options.shapes)
    names = [tensor.name for tensor in model.inputs]
    if unknown := [name for name in given if name not in names]:
        raise UnknownName.among("--optShapes: input", unknown[0], names)
    for tensor in model.inputs:
        if tensor.name not in given:
            raise UsageError(f"--optShapes: says nothing of input {tensor.name!r} {_text(tensor)}.")
        _check_stated(tensor, given[tensor.name], model)
    if len({tuple(shape[0] for shape in _corners(one)) for one in given.values()}) > 1:
        raise UsageError("--optShapes: all inputs of a batch need the same number of items.")
    return tuple((name, given[name]) for name in names)


def _check_stated(tensor: TensorSpec, shapes: ShapeRange, model: ModelSpec) -> None:
    """Raise UsageError unless the shapes keep what graph and card fix of this input."""
    for shape in _corners(shapes):
        if len(shape) != len(tensor.shape) or any(
            isinstance(size, int) and size != said
            for size, said in zip(tensor.shape, shape, strict=True)
        ):
            raise UsageError(f"--optShapes: {tensor.name}:{shape} is not {_text(tensor)}.")
    axes = open_axes(tensor)
    if model.card and model.card.input.name == tensor.name and len(axes) == 2:
        low, best, high = ((one[axes[0]], one[axes[1]]) for one in _corners(shapes))
        _check((low, best, high), *_carded(model), flag="--optShapes")


def _carded(model: ModelSpec) -> tuple[int, Size | str]:
    """What the card asks of open sizes: (multiple, the one size or "dynamic")."""
    # What the graph resizes by itself comes in any size.
    if model.card is None or model.card.input.resized_by == "graph":
        return 1, "dynamic"
    return model.card.input.multiple, model.card.input.size


def _sizes(options: BuildOptions, model: ModelSpec) -> Sizes | None:
    """(height, width) three times; None where the graph leaves none open."""
    opened = [tensor for tensor in model.inputs if open_axes(tensor)]
    if not opened:
        if options.sizes is not None:
            raise UsageError(f"--size: {options.model} fixes its own sizes. Leave --size out.")
        return None
    for tensor in opened:
        if len(open_axes(tensor)) != 2:
            raise UsageError(
                f"{options.model}: input {tensor.name!r} {_text(tensor)} leaves "
                f"{len(open_axes(tensor))} sizes open, and --size settles two (height and width). "
                f"Export the graph with the others fixed."
            )
    multiple, fixed = _carded(model)
    if options.sizes is not None:
        _check(options.sizes, multiple, fixed, flag="--size")
        return options.sizes
    if isinstance(fixed, tuple):
        return fixed, fixed, fixed
    raise UsageError(
        f"{options.model}: input {opened[0].name!r} {_text(opened[0])} leaves its height and width "
        f"open. State min, opt and max, for example: "
        f"trtfuse build {shlex.quote(str(options.model))} --size {_example(multiple)}"
    )


def _check(sizes: Sizes, multiple: int, fixed: Size | str, *, flag: str) -> None:
    """Raise UsageError unless the sizes are in order and the card can fill them."""
    for axis, name in enumerate(("height", "width")):
        low, best, high = (size[axis] for size in sizes)
        if not 0 < low <= best <= high:
            raise UsageError(f"{flag}: {name} {low}:{best}:{high} needs 0 < min <= opt <= max.")
        if any(value % multiple for value in (low, best, high)):
            raise UsageError(
                f"{flag}: {name} {low}:{best}:{high} needs multiples of {multiple}, as the card "
                f"says. For example: --size {_example(multiple)}"
            )
    if fixed != "dynamic" and any(size != fixed for size in sizes):
        raise UsageError(
            f"{flag}: the card fixes the size at {fixed[0]}x{fixed[1]}. Leave {flag} out."
        )


def _example(multiple: int) -> str:
    rounded = [-(-size // multiple) * multiple for size in (256, 512, 1024)]
    return ":".join(f"{size}x{size}" for size in rounded)


def _range(tensor: TensorSpec, batches: tuple[int, int, int], sizes: Sizes | None) -> ShapeRange:
    low, best, high = (
        (batch, *_settled(tensor, sizes[corner] if sizes else ()))
        for corner, batch in enumerate(batches)
    )
    return ShapeRange(min=low, opt=best, max=high)


def _batches(options: BuildOptions, model: ModelSpec) -> tuple[int, int, int]:
    """min, opt and max items of a batch. Raises UsageError where the graph has another."""
    fixed = fixed_batch(model.inputs)
    if fixed is None:
        return options.batch or _BATCHES
    if options.batch not in (None, (fixed, fixed, fixed)):
        raise UsageError(
            f"--batch: {options.model} fixes its batch at {fixed}. Leave --batch out, or make the "
            f"batch dynamic with: {_export(options)}"
        )
    return fixed, fixed, fixed


def _require_batch(options: BuildOptions, model: ModelSpec) -> None:
    """Raise UsageError unless every input leads with the batch; where that is fixed, outputs too.

    What a graph of an open batch gives is the gate's to see.
    """
    batch = fixed_batch(model.inputs)
    for kind, tensors in (("input", model.inputs), ("output", model.outputs if batch else ())):
        for tensor in tensors:
            if tensor.shape[:1] != (batch or BATCH,):
                raise UsageError(
                    f"{options.model}: {kind} {tensor.name!r} {_text(tensor)} needs "
                    f"{batch or repr(BATCH)} as its first axis. Make the graph's batch dynamic "
                    f"with: {_export(options)}"
                )


def _export(options: BuildOptions) -> str:
    source = shlex.quote(str(options.model))
    return f"trtfuse export {source} -o {BATCH}-{options.model.name}"


def _settled(tensor: TensorSpec, size: tuple[int, ...]) -> tuple[int, ...]:
    """The shape without its batch axis, open sizes filled in the order of their axes."""
    filled = iter(size)
    return tuple(n if isinstance(n, int) else next(filled) for n in tensor.shape[1:])


def _text(tensor: TensorSpec) -> str:
    return f"[{', '.join(map(str, tensor.shape))}]"
