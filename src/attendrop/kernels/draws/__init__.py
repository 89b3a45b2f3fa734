"""Counter-based random numbers, the same on every device and process."""

from .api import bernoulli, uniform

__all__ = ["bernoulli", "uniform"]
