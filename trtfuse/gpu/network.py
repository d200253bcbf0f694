"""The building half of the door to TensorRT: ONNX file, network, configuration, plan.

Polygraphy makes network, configuration and plan. Parsing is ours, since it drops the parser's
errors; so are the file of timings, which it writes in place, and what it has no name for.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from polygraphy.backend.tensorrt_rtx import CreateConfigRTX
from polygraphy.backend.trt import CreateConfig, CreateNetwork, EngineBytesFromNetwork
from polygraphy.backend.trt import Profile as TrtProfile
from polygraphy.exception import PolygraphyException

from trtfuse.core.errors import BuildFailed, UsageError
from trtfuse.core.files import replacing
from trtfuse.core.specs import Precision, ShapeRange, TrtSettings
from trtfuse.gpu.tensorrt import Door, dtype_name, permissions
from trtfuse.gpu.words import Share

Profile = tuple[tuple[str, ShapeRange], ...]
Watch = Callable[[float], None]
"""Gets the share of a build that is done, 0 to 1."""


class Network:
    """The graph of an ONNX file, as TensorRT read it.

    Raises BuildFailed with what the parser says of each node.
    """

    def __init__(self, door: Door, model: Path) -> None:
        self._door = door
        self._trt = door.trt
        door.words.clear()
        self._builder, self._network = CreateNetwork()()
        self._trt.init_libnvinfer_plugins(door.logger, "")
        # Owns the weights: it has to live until the build ends.
        self._parser = self._trt.OnnxParser(self._network, door.logger)
        if not self._parser.parse_from_file(str(model)) or self._parser.num_errors:
            faults = [_fault(self._parser.get_error(i)) for i in range(self._parser.num_errors)]
            raise BuildFailed(
                f"{model.name}: TensorRT {door.version} cannot read it: "
                f"{'; '.join(faults) or door.words.errors}."
            )

    @property
    def inputs(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the inputs; -1 where a size is open."""
        tensors = (self._network.get_input(i) for i in range(self._network.num_inputs))
        return {tensor.name: tuple(tensor.shape) for tensor in tensors}

    def build(
        self,
        profile: Profile,
        precision: Precision,
        settings: TrtSettings,
        *,
        timings: Path | None = None,
        watch: Watch | None = None,
    ) -> bytes:
        """The plan for a profile that fits the inputs.

        `timings` is read and written where it is given; it must belong to this GPU, driver and
        TensorRT. `watch` is called from threads of TensorRT, where it can tell at all. Raises
        BuildFailed with the builder's last error lines, UsageError for a setting it does not have.
        """
        config = self._configure(profile, precision, settings)
        # The configuration does not keep it alive; this frame does.
        monitor = _monitor(self._trt, watch) if watch and self._door.abilities.progress else None
        if monitor:
            config.progress_monitor = monitor
        if timings:
            _load_timings(config, timings)
        self._door.words.clear()
        try:
            triple = (self._builder, self._network, self._parser)
            plan = bytes(EngineBytesFromNetwork(triple, config)())
        except PolygraphyException as error:
            why = f"TensorRT {self._door.version} cannot build it: {self._door.words.errors}."
            raise BuildFailed(why) from error
        if timings:
            _save_timings(config, timings)
        return plan

    def _configure(self, profile: Profile, precision: Precision, settings: TrtSettings) -> Any:
        trt, shapes = self._trt, TrtProfile()
        for name, accepted in profile:
            shapes.add(name, accepted.min, accepted.opt, accepted.max)
        options = {
            "profiles": [shapes],
            # DETAILED, Polygraphy's default, makes every run slower.
            "profiling_verbosity": trt.ProfilingVerbosity.LAYER_NAMES_ONLY,
            "builder_optimization_level": settings.optimization_level,
            **self._limits(settings),
            **self._permissions(precision),
            **self._compatibility(settings),
        }
        create = CreateConfigRTX if self._door.abilities.portable else CreateConfig
        config = create(**options)(self._builder, self._network)
        # TF32 rounds to 10 bits, as FP16 does: an FP32 engine must not.
        switch = config.clear_flag if precision is Precision.FP32 else config.set_flag
        switch(trt.BuilderFlag.TF32)
        if self._door.abilities.profile_sharing:
            # Not through Polygraphy, which would switch off every feature that is not listed.
            config.set_preview_feature(trt.PreviewFeature.PROFILE_SHARING_0806, True)
        return config

    def _limits(self, settings: TrtSettings) -> dict[str, Any]:
        if settings.workspace_bytes is None:
            return {}
        pool = self._trt.MemoryPoolType.WORKSPACE
        return {"memory_pool_limits": {pool: settings.workspace_bytes}}

    def _permissions(self, precision: Precision) -> dict[str, bool]:
        """The precision flags that a typed graph needs on a weakly typed builder."""
        if not self._door.abilities.weakly_typed:
            return {}
        layers = [self._network.get_layer(i) for i in range(self._network.num_layers)]
        tensors = [self._network.get_input(i) for i in range(self._network.num_inputs)]
        tensors += [layer.get_output(i) for layer in layers for i in range(layer.num_outputs)]
        kinds = (self._trt.LayerType.QUANTIZE, self._trt.LayerType.DEQUANTIZE)
        return permissions(
            precision,
            types={dtype_name(tensor.dtype) for tensor in tensors},
            quantized=any(layer.type in kinds for layer in layers),
        )

    def _compatibility(self, settings: TrtSettings) -> dict[str, Any]:
        """On which GPUs and releases, other than these, the engine is to run."""
        if self._door.abilities.portable:
            words = settings.compute_capabilities
            targets = [tuple(map(int, word.split("."))) for word in words]
            return {"compute_capabilities": targets or None}
        options: dict[str, Any] = {}
        levels = self._trt.HardwareCompatibilityLevel
        if settings.hardware == "ampere+":
            options["hardware_compatibility_level"] = levels.AMPERE_PLUS
        if settings.hardware == "same-capability":
            if not self._door.abilities.same_capability:
                raise UsageError(
                    f"--hardware same-capability: needs TensorRT 10.9, this is "
                    f"{self._door.version}. Use --hardware ampere+."
                )
            options["hardware_compatibility_level"] = levels.SAME_COMPUTE_CAPABILITY
        if settings.version_compatible:
            # Without the runtime that TensorRT would put into the plan: that is host code, and no
            # plan may run any.
            options |= {"version_compatible": True, "exclude_lean_runtime": True}
        return options


def _fault(error: Any) -> str:
    """One error of the parser: what, of which node, and where in the parser's source."""
    text = " ".join(error.desc().split())
    if hasattr(error, "node_name") and error.node_name():
        text = f"node {error.node_name()!r} ({error.node_operator()}): {text}"
    elif error.node() >= 0:
        text = f"node {error.node()}: {text}"
    return f"{text} [{Path(error.file()).name}:{error.line()} {error.func()}]"


def _load_timings(config: Any, path: Path) -> None:
    """What was timed before on this GPU. A file that is of no use is as none."""
    cache = config.create_timing_cache(path.read_bytes() if path.is_file() else b"")
    if cache is None or not config.set_timing_cache(cache, False):
        config.set_timing_cache(config.create_timing_cache(b""), False)


def _save_timings(config: Any, path: Path) -> None:
    """Add what was timed now to the file, atomically. Of two at once, one's additions are lost."""
    cache = config.get_timing_cache()
    if path.is_file() and (before := config.create_timing_cache(path.read_bytes())):
        cache.combine(before, False)
    with replacing(path) as part:
        part.write_bytes(bytes(cache.serialize()))


def _monitor(trt: Any, watch: Watch) -> Any:
    class Monitor(trt.IProgressMonitor):  # type: ignore[misc] # no types: see Door
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self.share = Share()

        def phase_start(self, phase: str, parent: str | None, steps: int) -> None:
            self.share.start(phase, parent, steps)

        def step_complete(self, phase: str, step: int) -> bool:
            watch(self.share.step(phase, step))
            return True  # the literal: anything else ends the build

        def phase_finish(self, phase: str) -> None:
            self.share.finish(phase)

    return Monitor()
