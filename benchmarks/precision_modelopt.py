"""Quantize a model with nvidia-modelopt: the reference of benchmarks/precision.py.

    python precision_modelopt.py MODEL.onnx DATA.npy METHOD OUTPUT.onnx

Runs in an environment of its own (modelopt patches ONNX Runtime and overwrites its input), so it
imports nothing of trtfuse. Batches of four: one batch alone leaves modelopt's entropy at the
largest value.
"""

import shutil
import sys
from pathlib import Path

import numpy as np
from modelopt.onnx.quantization import quantize  # type: ignore[import-not-found]


def main() -> None:
    """Quantize to INT8 with FP32 around it."""
    model, data, method, output = sys.argv[1:]
    copy = Path(output).with_suffix(".source.onnx")
    shutil.copyfile(model, copy)
    inputs = np.load(data)
    quantize(
        str(copy),
        "int8",
        calibration_data={"input": inputs},
        calibration_method=method,
        calibration_shapes="input:" + "x".join(map(str, (4, *inputs.shape[1:]))),
        calibration_eps=["cpu"],
        high_precision_dtype="fp32",
        output_path=output,
    )


if __name__ == "__main__":
    main()
