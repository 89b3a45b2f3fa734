"""Counter-based random numbers, the same on every device and process."""

from .api import bernoulli, bernoulli_rows, uniform

__all__ = ["bernoulli", "bernoulli_rows", "uniform"]
