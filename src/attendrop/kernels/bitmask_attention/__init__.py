"""Attention with its mask as bits."""

from .api import HasBits, are_long_enough, attend, is_possible, serves, serving, stored
from .reference import Dropout

__all__ = ["Dropout", "HasBits", "are_long_enough", "attend", "is_possible", "serves", "serving", "stored"]
