"""Attention with its mask as bits."""

from .api import HasBits, are_long_enough, attend, is_possible, override_limits, stored, supports
from .reference import Dropout

__all__ = ["Dropout", "HasBits", "are_long_enough", "attend", "is_possible", "override_limits", "stored", "supports"]
