"""`attendrop demo`: one small fine-tuning three times (plain, with AD-DROP, with AttendOut), and the scores.

The model and the reviews are downloaded from the Python package index, so it needs no Hub. Each run is what
`attendrop train` does with the same settings.
"""

from .command import command

__all__ = ["command"]
