"""Weights and gradients that are changed by random factors, in place."""

from .api import dropout_, mix, unmix
from .reference import keep_factor, mixed

__all__ = ["dropout_", "keep_factor", "mix", "mixed", "unmix"]
