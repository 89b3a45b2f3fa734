"""When a method acts and how strongly: functions of the progress of training, so that resuming needs no state."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from math import inf
from typing import Any

from ..errors import UserError


@dataclass(frozen=True)
class Progress:
    """How far training has come when a step begins.

    Args:
        step: optimizer steps that have been taken.
        total_steps: optimizer steps of the whole training.
        epoch: epochs that have been completed.
        epochs: epochs of the whole training.
    """

    step: int = 0
    total_steps: int = 1
    epoch: int = 0
    epochs: int = 1

    @property
    def fraction(self) -> float:
        """The share of training that has been completed, from 0 to 1."""
        return min(1.0, self.step / max(1, self.total_steps))


@dataclass(frozen=True)
class Schedule:
    """A piecewise-linear function of the share of training that has been completed.

    Args:
        points: two or more pairs (share, value), with shares rising from 0 to 1.

    Example:
        Schedule([(0, 0.1), (1, 0.5)])  # rises from 0.1 to 0.5, as Schedule.parse("0.1..0.5") does
    """

    points: tuple[tuple[float, float], ...]

    def __init__(self, points: Any) -> None:
        pairs = tuple((float(at), float(value)) for at, value in points)
        object.__setattr__(self, "points", pairs)
        times = [at for at, _ in pairs]
        if len(pairs) < 2 or times != sorted(set(times)) or times[0] != 0 or times[-1] != 1:
            raise ValueError(
                f"Schedule.points is {list(pairs)}; it must be two or more (share, value) pairs with shares rising "
                "from 0 to 1."
            )

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Return a schedule from values at equal distances: "0.1..0.5", or "0..0.3..0.1"."""
        values = text.split("..")
        return cls([(i / (len(values) - 1), float(value)) for i, value in enumerate(values)])

    def __call__(self, fraction: float) -> float:
        right = min(max(1, bisect_right([at for at, _ in self.points], fraction)), len(self.points) - 1)
        (t0, v0), (t1, v1) = self.points[right - 1], self.points[right]
        return v0 + (v1 - v0) * (fraction - t0) / (t1 - t0)


Strength = float | Schedule

_NUMBERS = re.compile(r"[-+.0-9eE]+(\.\.[-+.0-9eE]+)+")


def as_strength(owner: str, field: str, value: Any, low: float, high: float, is_below: bool = False) -> Strength:
    """`value` as a number or a schedule, or a `ValueError` that names the field, the value and the range.

    Args:
        owner: the class of the method.
        field: the field of the method.
        value: the value of the user: a number, a `Schedule`, its points, or a text such as "0.1..0.5".
        low: the smallest value that is allowed.
        high: the largest value that is allowed.
        is_below: whether `high` itself is not allowed.
    """
    given, end = value, "" if high == inf else f" to {'below ' if is_below else ''}{high:g}"
    try:
        if isinstance(value, str) and _NUMBERS.fullmatch(value):
            value = Schedule.parse(value)
        elif isinstance(value, (list, tuple)):
            value = Schedule(value)
        strength: Strength = value if isinstance(value, Schedule) else float(value)
    except (TypeError, ValueError):
        example = f"'{low:g}..{1 if high == inf else high:g}'"
        raise UserError(
            f"{owner}.{field} is {given!r}; it must be a number from {low:g}{end}, or a schedule such as {example}."
        ) from None
    if not all(low <= v <= high and v != inf and not (is_below and v == high) for v in values_of(strength)):
        raise UserError(f"{owner}.{field} is {given!r}; it must be from {low:g}{end}.")
    return strength


def value_at(strength: Strength, progress: Progress) -> float:
    """Return the strength at this point of training."""
    return strength(progress.fraction) if isinstance(strength, Schedule) else strength


def values_of(strength: Strength) -> list[float]:
    """Return the number itself, or the values at the points of a schedule."""
    return [value for _, value in strength.points] if isinstance(strength, Schedule) else [strength]


def largest(strength: Strength) -> float:
    """Return the largest value of the strength: if it is zero, the method never acts."""
    return max(values_of(strength))


END_ON = ("plain", "method", "either")


def is_method_epoch(epoch: int, epochs: int, end_on: str) -> bool:
    """Return whether a method with cross-tuning acts in this epoch: it acts in every other one.

    "plain" and "method" count backwards from the last epoch; "either" is the paper's order, epochs 1, 3, 5 … plain.
    """
    if end_on == "either":
        return epoch % 2 == 1
    from_the_end = max(0, epochs - 1 - epoch)
    return from_the_end % 2 == (1 if end_on == "plain" else 0)
