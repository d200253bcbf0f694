"""ONNX in, ONNX out: export, dynamic batch, simplification, proof. No GPU in here."""
