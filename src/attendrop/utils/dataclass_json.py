"""Converts dataclasses to JSON data and back, with errors that say where a value is wrong."""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

_TOO_LARGE = 2**64  # seeds have at most 64 bits
_SCALARS = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}


def to_json(value: Any, keeps_nan: bool = False) -> Any:
    """Return a copy of dictionaries, lists and numbers; NaN and infinity, which JSON does not have, are None.

    Args:
        value: A dataclass, or anything made of dataclasses, mappings, lists, tuples and what JSON has.
        keeps_nan: Whether NaN and infinity stay, as Python's `json` writes and reads them.
    """
    if isinstance(value, float):
        return value if keeps_nan or math.isfinite(value) else None
    if is_dataclass(value):
        return {field.name: to_json(getattr(value, field.name), keeps_nan) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(item, keeps_nan) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item, keeps_nan) for item in value]
    return value


def from_json(hint: Any, value: Any, where: str) -> Any:
    """Convert JSON data to a dataclass, or to lists and dictionaries of them.

    A missing field or None gets the default; unknown keys are ignored. Raises a `ValueError` that names the place.

    Args:
        hint: The type, such as a dataclass or `list[Cell]`.
        value: The value.
        where: The name of the value, for errors.
    """
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if value is None and type(None) in options:
        return None
    hint = next((option for option in options if option is not type(None)), hint)
    if is_dataclass(hint):
        return _dataclass_from(hint, value, where)
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind in (list, tuple):
        _check(isinstance(value, list | tuple), value, "list", where)
        return kind(from_json(inner[0], item, f"entry {i} of {where}") for i, item in enumerate(value))
    if kind is dict:
        _check(isinstance(value, Mapping), value, "dict", where)
        return {key: from_json(inner[1], item, f"{key!r} of {where}") for key, item in value.items()}
    if kind in _SCALARS:
        _check_scalar(kind, value, where)
    return value


def _dataclass_from(kind: Any, value: Any, where: str) -> Any:
    _check(isinstance(value, Mapping), value, "dictionary", where)
    hints, known = _hints(kind), {}
    for field in fields(kind):
        name, item = field.name, value.get(field.name)
        if item is None and _has_default(field):
            continue
        if item is None and type(None) not in get_args(hints[name]):
            raise ValueError(f"{name!r} is missing" if where == "it" else f"{where} has no {name!r}")
        known[name] = from_json(hints[name], item, repr(name) if where == "it" else f"{name!r} of {where}")
    return kind(**known)


def _check_scalar(kind: type, value: Any, where: str) -> None:
    """Check a text or a number. None stands for a float that is not finite; True and False are no numbers."""
    if value is None and kind is float:
        return
    kinds = (int, float) if kind is float else (kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{where} is {value!r}; it must be {_SCALARS[kind]}")
    if isinstance(value, int) and abs(value) >= _TOO_LARGE:
        raise ValueError(f"{where} is a number of {value.bit_length()} bits; at most 64 are read")


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _has_default(field: Field[Any]) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


def _check(is_valid: bool, value: Any, wanted: str, where: str) -> None:
    if not is_valid:
        raise ValueError(f"{where} is a {type(value).__name__}, not a {wanted}")
