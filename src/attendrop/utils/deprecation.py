"""Warnings about names that have changed."""

from __future__ import annotations

import warnings


def warn_renamed(old: str, new: str) -> None:
    """Warn the caller's caller that a name is deprecated."""
    warnings.warn(f"{old} is deprecated and will be removed; use {new} instead.", FutureWarning, stacklevel=3)
