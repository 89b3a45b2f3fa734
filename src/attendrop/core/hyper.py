"""Hyper-parameters: a field of a method says which values it allows, and which ones `attendrop tune` searches."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, TypeVar

from ..errors import UserError
from ..utils.checks import check_choice, check_number, check_whole
from .schedule import Strength, as_strength

T = TypeVar("T")


@dataclass(frozen=True)
class Hyper:
    """The allowed values of a field; see `hyper`."""

    low: float
    high: float
    is_above: bool
    is_below: bool
    choices: tuple[Any, ...]
    also: tuple[Any, ...]
    search: str
    paper: str

    def checked(self, owner: str, field: dataclasses.Field[Any], value: Any) -> Any:
        """Return `value`, as a schedule where it describes one, or raise a `UserError`.

        Args:
            owner: the class of the method.
            field: the field.
            value: the value of the user.
        """
        name, kinds = f"{owner}.{field.name}", _kinds(field)
        if self.choices:
            check_choice(name, value, self.choices)
        elif "Strength" in kinds:
            return as_strength(owner, field.name, value, self.low, self.high, self.is_below)
        elif kinds & {"int", "float"} and value not in self.also:
            try:
                if "int" in kinds:
                    check_whole(name, value, int(self.low))
                else:
                    check_number(name, value, self.low, self.high, self.is_above, self.is_below)
            except UserError as error:
                raise UserError(f"{str(error).removesuffix('.')}{self._others()}.") from None
        return value

    def _others(self) -> str:
        return "".join(f", or {value!r}" for value in self.also)

    def described(self, field: dataclasses.Field[Any]) -> str:
        """Describe the allowed values for the help of a field; empty for a bool or for any value."""
        kinds = _kinds(field)
        if self.choices and "bool" not in kinds:
            return f"one of {', '.join(map(json.dumps, self.choices))}"
        if not kinds & {"Strength", "int", "float"}:
            return ""
        begin, end = f"{'above' if self.is_above else 'from'} {self.low:g}", ""
        if self.high != inf:
            end = f" and {'below' if self.is_below else 'at most'} {self.high:g}"
            end = end if self.is_above else f" to {'below ' if self.is_below else ''}{self.high:g}"
        others = ", or a schedule" if "Strength" in kinds else self._others()
        return f"a {'whole ' if 'int' in kinds else ''}number {begin}{end}{others}"


def hyper(
    default: T,
    *,
    low: float = 0,
    high: float = inf,
    above: float | None = None,
    below: float | None = None,
    choices: Sequence[Any] = (),
    also: Sequence[Any] = (),
    search: str = "",
    paper: str = "",
) -> T:
    """Return a field of a method whose value is checked when the method is created.

    The annotation says what it holds: `float`, `int`, `Strength` (a number or a schedule), `bool` or, with `choices`,
    anything.

    Args:
        default: the default value.
        low: the smallest number that is allowed.
        high: the largest number that is allowed.
        above: the number that it must exceed, instead of `low`.
        below: the number that it must not reach, instead of `high`.
        choices: the values that are allowed; of a `bool`, True and False.
        also: values that are allowed beside the numbers.
        search: what `attendrop tune` searches by default, such as "0.1..0.9", "log:0.1..10" or "first,all".
        paper: the grid of the paper, for `attendrop tune --protocol paper`.

    Example:
        p: Strength = hyper(0.3, high=1, search="0.1..0.9", paper="0.1..0.9:0.1")
    """
    if isinstance(default, bool):
        choices = (True, False)
    bounds = Hyper(
        low if above is None else above, high if below is None else below, above is not None, below is not None,
        tuple(choices), tuple(also), search, paper,
    )  # fmt: skip
    return dataclasses.field(default=default, metadata={"hyper": bounds})


def hyper_of(field: dataclasses.Field[Any]) -> Hyper | None:
    """Return the bounds of a field; None if it was not made with `hyper`."""
    bounds: Hyper | None = field.metadata.get("hyper")
    return bounds


def check_fields(method: Any) -> None:
    """Check the fields of a method that were made with `hyper`, and turn texts and lists into schedules."""
    for field in dataclasses.fields(method):
        bounds = hyper_of(field)
        if bounds is not None:
            setattr(method, field.name, bounds.checked(type(method).__name__, field, getattr(method, field.name)))


def _kinds(field: dataclasses.Field[Any]) -> set[str]:
    """Return the names in the annotation, "Strength" for its value `float | Schedule`."""
    if field.type == Strength:
        return {"Strength"}
    text = field.type.__name__ if isinstance(field.type, type) else str(field.type)
    return {part.strip().rpartition(".")[2] for part in text.split("|")}
