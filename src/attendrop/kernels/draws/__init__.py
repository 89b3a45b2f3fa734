"""Counter-based random numbers, the same on every device and process."""

from .api import as_factors, bernoulli, bernoulli_rows, dropout_factors, uniform

__all__ = ["as_factors", "bernoulli", "bernoulli_rows", "dropout_factors", "uniform"]
