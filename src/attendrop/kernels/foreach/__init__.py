"""Passes over all weights of a model at once, in place."""

from .api import ascend, average, pull, restore

__all__ = ["ascend", "average", "pull", "restore"]
