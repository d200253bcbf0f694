"""Ranges of activations: chosen inputs, one FP32 pass, and files that cannot go stale unseen."""
