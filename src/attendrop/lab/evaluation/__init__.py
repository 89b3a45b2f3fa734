"""From the logits of a model to its scores, their intervals, calibration, tables and errors."""
