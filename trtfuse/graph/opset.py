"""Older graphs brought to the operator set that every supported runtime reads."""

from __future__ import annotations

import onnx
from onnx import version_converter

from trtfuse.graph.model import NotApplied, opset, set_ir_version


def convert(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
    """A copy at operator set `version`. Raises `NotApplied` where ONNX's converter cannot.

    Only upwards: a newer operator set is kept, for what it expresses may not exist below.
    """
    current = opset(model)
    if current > version:
        raise NotApplied(f"opset {current} is newer than {version} and stays")
    try:
        new = version_converter.convert_version(model, version)
    except (RuntimeError, version_converter.ConvertError) as error:
        raise NotApplied(f"ONNX's converter from opset {current} failed: {error}") from error
    del new.metadata_props[:]
    new.metadata_props.extend(model.metadata_props)
    set_ir_version(new)
    return new
