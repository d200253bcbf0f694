"""The options of a command's help in groups: thirty are read by what one wants to change."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

PANELS: dict[str, dict[str, str]] = {
    "export": {
        "From PyTorch": "arg weights weights_key",
        "Inputs and batch": "shape batch_input batch_axis constant static_batch",
        "The graph": "fuse target opset external_data_threshold",
        "Simplifier": "simplify simplify_timeout simplify_memory",
        "Proof": "tolerance seed",
    },
    "build": {
        "Devices": "devices gpus runtime compute_capability",
        "TensorRT": "workspace optimization_level hardware version_compatible",
        "Precision": "precision keep budget",
        "Calibration": (
            "calib_data calib_method calib_count calib_seed held_out few calibration_cache ranges"
        ),
        "Gate": "limit gate",
        "Shapes": "batch size min_shapes opt_shapes max_shapes",
    },
    "infer": {
        "Engine": "model engine precision engines",
        "Devices": "devices gpus workers lanes cuda_graph batch",
        "Memory and threads": "memory feeders writers",
        "Pictures written": "annotate format_ quality depth",
        "Videos written": "codec crf encoder_args on_error segment",
        "Reading": "max_pixels hwaccel keep_rotation",
        "What the run tells": "log_json timings report metrics sample_every",
        "Going on after faults": "restart batch_timeout restarts",
    },
    "bench": {
        "Devices": "devices gpus workers lanes cuda_graph batch",
        "Engine": "engine precision engines size",
        "Against others": "against module",
        "Measuring": "repeats seconds",
        "Held against a result": "baseline fail_below allow",
    },
}
"""By command and title, the parameters of each group; others stay under "Options"."""


class Paneled(TyperCommand):
    """A command whose help shows its options by `PANELS`."""

    def __init__(self, name: str | None, **settings: Any) -> None:
        super().__init__(name, **settings)
        titles = {
            parameter: title
            for title, parameters in PANELS.get(group_of(name), {}).items()
            for parameter in parameters.split()
        }
        for parameter in self.params:
            if parameter.name in titles:
                setattr(parameter, "rich_help_panel", titles[parameter.name])  # noqa: B010


def group_of(name: str | None) -> str:
    """What a command is called in `PANELS`; `bench MODEL` is one inside of `bench`."""
    return "bench" if name == "run" else name or ""
