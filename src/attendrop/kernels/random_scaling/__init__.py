"""Weights and gradients that are changed by random factors, in place."""

from .api import mix, thin, unmix
from .reference import keep_factor, mixed

__all__ = ["keep_factor", "mix", "mixed", "thin", "unmix"]
