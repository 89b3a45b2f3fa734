"""Hidden states of examples that are mixed in pairs."""

from .api import mixed_rows

__all__ = ["mixed_rows"]
