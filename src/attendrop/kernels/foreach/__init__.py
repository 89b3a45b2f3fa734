"""Passes over all weights of a model at once, in place."""

from .api import average, climb, pull, restore

__all__ = ["average", "climb", "pull", "restore"]
