"""Plans and published engines of made-up bytes: for what never loads them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from trtfuse.build import plan, store
from trtfuse.build.plan import Build, Target
from trtfuse.build.store import Engine
from trtfuse.core import files
from trtfuse.core.card import Card, InputCard, TensorTask
from trtfuse.core.options import BuildOptions
from trtfuse.core.specs import DeviceSpec, EngineManifest, ModelSpec, TensorSpec

XEON = Target(
    device=DeviceSpec(name="Intel(R) Xeon(R) Processor", kind="cpu", features="x86_64 avx512f"),
    runtime="onnxruntime",
    runtime_version="1.32.0",
)
H200 = Target(
    device=DeviceSpec(name="NVIDIA H200", kind="cuda", features="sm90"),
    runtime="tensorrt",
    runtime_version="10.16.1",
)


def card(*, size: tuple[int, int] | None = None, multiple: int = 1) -> Card:
    """RGB pictures in 0 to 1; without `size`, of any size."""
    return Card(
        input=InputCard(
            name="x",
            layout="NCHW",
            colour="RGB",
            range=(0.0, 1.0),
            size=size or "dynamic",
            resize="stretch",
            multiple=multiple,
        ),
        task=TensorTask(name="tensor"),
    )


def model(
    *shape: int | str,
    path: Path = Path("face.onnx"),
    sha256: str = "a" * 64,
    of: Card | None = None,
) -> ModelSpec:
    """A graph with one input `x` and one output `y` of one shape."""
    x, y = (TensorSpec(name=name, dtype="float32", shape=shape) for name in "xy")
    return ModelSpec(path=path, sha256=sha256, inputs=(x,), outputs=(y,), card=of)


def build(spec: ModelSpec, target: Target = XEON, batch: tuple[int, int, int] = (1, 4, 8)) -> Build:
    """The plan of one engine."""
    (one,) = plan.plan(BuildOptions(model=spec.path, batch=batch), spec, [target])
    return one


def publish(root: Path, spec: ModelSpec, one: Build) -> Engine:
    """The planned engine, with its fingerprint for bytes, below `root`."""
    candidate = root / "candidate"
    root.mkdir(exist_ok=True)
    candidate.write_text(one.fingerprint)
    manifest = EngineManifest(
        schema=store.SCHEMA,
        model=spec.path.stem,
        source=spec.path.absolute(),
        engine="engine.onnx",
        engine_sha256=files.sha256(candidate),
        engine_bytes=candidate.stat().st_size,
        request=one.request,
        fingerprint=one.fingerprint,
        inputs=spec.inputs,
        outputs=spec.outputs,
        output_max=(one.request.profile[0][1].max,),
        card=spec.card,
        gates=(),
        build_s=0.0,
        trtfuse="0.1.0",
    )
    return store.publish(candidate, root / spec.path.stem / one.folder, manifest)


def edit(engine: Engine, **changes: object) -> None:
    """Change the request in the manifest's file, and nothing else: as a careless hand would."""
    request = replace(engine.manifest.request, **changes)  # type: ignore[arg-type]
    store.write_manifest(Engine(engine.folder, replace(engine.manifest, request=request)))
