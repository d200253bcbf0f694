"""Measuring, and writing down what was measured with the conditions it was measured under."""
