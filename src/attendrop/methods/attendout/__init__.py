"""AttendOut: a generator network learns which attention positions to drop."""

from .method import AttendOut

__all__ = ["AttendOut"]
