"""AttendOut: a generator network learns which attention positions to drop."""

from .generator import load_generator
from .method import AttendOut

__all__ = ["AttendOut", "load_generator"]
