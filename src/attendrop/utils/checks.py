"""Checks of a user's settings. Each raises a `UserError` that names the field, the value and what is allowed."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Any

from ..errors import UserError


def check_choice(field: str, value: Any, allowed: Iterable[Any]) -> None:
    """Raise a `UserError` unless `value` is one of `allowed`."""
    choices = tuple(allowed)
    if value not in choices:
        raise UserError(f"{field} is {value!r}; it must be one of {', '.join(map(repr, choices))}.")


def check_whole(field: str, value: Any, low: int, also: str = "") -> None:
    """Raise a `UserError` unless `value` is a whole number of at least `low`; the message adds `also`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise UserError(f"{field} is {value!r}; it must be a whole number of at least {low}{also}.")


def check_number(
    field: str, value: Any, low: float = 0, high: float = inf, is_above: bool = False, is_below: bool = False
) -> None:
    """Raise a `UserError` unless `value` is a finite number from `low` to `high`; flags exclude the ends."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    fits = is_number and low <= value <= high and value != inf
    if not fits or (is_above and value == low) or (is_below and value == high):
        begin, end = f"{'above' if is_above else 'from'} {_shown(low)}", ""
        if high != inf and is_above:
            end = f" and {'below' if is_below else 'at most'} {_shown(high)}"
        elif high != inf:
            end = f" to {'below ' if is_below else ''}{_shown(high)}"
        raise UserError(f"{field} is {value!r}; it must be a number {begin}{end}.")


def _shown(limit: float) -> str:
    return str(limit) if isinstance(limit, int) else f"{limit:g}"
