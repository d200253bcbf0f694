"""Requests and manifests for the graphs of `graphs`."""

from __future__ import annotations

from pathlib import Path

from trtfuse.core.specs import (
    BuildRequest,
    EngineManifest,
    Precision,
    ShapeRange,
    TensorSpec,
    TrtSettings,
)

LINE = ShapeRange(min=(1, 4), opt=(4, 4), max=(8, 4))
PICTURE = ShapeRange(min=(1, 3, 16, 16), opt=(4, 3, 32, 32), max=(8, 3, 64, 48))
PIXELS = ShapeRange(min=(1, 16, 16, 3), opt=(4, 32, 32, 3), max=(8, 64, 48, 3))


def request(
    accepted: ShapeRange, *, runtime: str = "tensorrt", settings: TrtSettings | None = None
) -> BuildRequest:
    """For one input `x`."""
    return BuildRequest(
        model_sha256="",
        precision=Precision.FP32,
        profile=(("x", accepted),),
        device_name="",
        device_features="",
        runtime=runtime,
        runtime_version="",
        settings=settings,
    )


def manifest(source: Path, accepted: ShapeRange, *, dtype: str = "float32") -> EngineManifest:
    """Of a graph with one input `x` and one output `y` of one shape."""
    axes = zip(accepted.min[1:], accepted.max[1:], strict=True)
    sizes = (low if low == high else f"size{i}" for i, (low, high) in enumerate(axes))
    shape = ("batch", *sizes)
    return EngineManifest(
        schema=1,
        model=source.stem,
        source=source,
        engine="engine.plan",
        engine_sha256="",
        request=request(accepted),
        fingerprint="",
        inputs=(TensorSpec(name="x", dtype=dtype, shape=shape),),
        outputs=(TensorSpec(name="y", dtype=dtype, shape=shape),),
        output_max=(accepted.max,),
        card=None,
        gates=(),
        build_s=0.0,
        trtfuse="",
    )
