"""Attention with its mask as bits."""

from .api import HasBits, attend, is_possible, serves, serving, stored
from .reference import Dropout

__all__ = ["Dropout", "HasBits", "attend", "is_possible", "serves", "serving", "stored"]
