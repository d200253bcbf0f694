"""The two doors of a device, builder and runner, over TensorRT on NVIDIA GPUs."""
