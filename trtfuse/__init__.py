"""From a PyTorch or ONNX image model to every device in the box."""

__version__ = "0.1.0"
