"""The nouns of trtfuse. NumPy and the standard library only; imports nothing of the project."""
