"""Why work is not captured. The text of each is the end of a sentence that begins with "because"."""

from __future__ import annotations


class NotCaptured(Exception):
    """No step of this run can be captured."""


class RunEagerly(Exception):
    """This one micro-batch is not captured; others are."""
