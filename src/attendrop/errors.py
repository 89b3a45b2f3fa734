"""Errors that a user can correct."""

from __future__ import annotations


class UserError(ValueError):
    """A mistake in the user's input. The message is one sentence: what is wrong, where, and what to do."""
