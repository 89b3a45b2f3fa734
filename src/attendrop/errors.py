"""Mistakes of the user."""

from __future__ import annotations


class UserError(ValueError):
    """A user's mistake, told in one sentence: what is wrong, where, and what to do."""
