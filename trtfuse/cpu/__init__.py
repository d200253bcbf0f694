"""The two doors of a device, builder and runner, over ONNX Runtime on the CPU."""
