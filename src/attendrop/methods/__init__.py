"""The methods: one paper, one module. `METHODS` is the catalogue, {name: class}.

A module (or package) of this folder whose name has no leading underscore is a method. It defines a subclass of
`Regularizer` whose `name` is the module's; CONTRIBUTING.md lists what else belongs to a method.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import importlib
import json
import pkgutil
import re
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..errors import UserError

if TYPE_CHECKING:
    from ..core.regularizer import Regularizer

    METHODS: dict[str, type[Regularizer]]


def method_names() -> list[str]:
    """Return the names of all methods, in alphabetical order: one module or package each. Nothing is imported."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def __getattr__(attribute: str) -> Any:
    # `METHODS` imports every method and torch, so it is computed only when it is first used.
    if attribute != "METHODS":
        raise AttributeError(f"module {__name__!r} has no attribute {attribute!r}")
    methods = {name: _class_in(importlib.import_module(f"{__name__}.{name}"), name) for name in method_names()}
    globals()["METHODS"] = methods
    return methods


def _class_in(module: ModuleType, name: str) -> Any:
    """Return the class of the module whose `name` is the module's."""
    return next(value for value in vars(module).values() if isinstance(value, type) and vars(value).get("name") == name)


def parse_method(text: str) -> Regularizer:
    """Return a regulariser from a text with its name and fields.

    Args:
        text: "name" or "name:field=value,field=value". A value is written as in Python; quotation marks are optional,
            "0.1..0.5" is a schedule, and `layers` may be a slice such as "0:4".

    Example:
        parse_method("addrop:p=0.3,q=0.1..0.5,layers=[0,1]")
    """
    name, _, rest = text.partition(":")
    fields: dict[str, Any] = {}
    for part in re.split(r",(?![^\[(]*[\])])", rest) if rest.strip() else []:
        field, equals, value = part.partition("=")
        if not equals or not field.strip():
            raise ValueError(f"method {text!r} has {part!r}; fields are written name=value and separated by commas.")
        if field.strip() in fields:
            raise ValueError(f"method {text!r} has {field.strip()!r} several times; a field has one value.")
        fields[field.strip()] = _parse_value(value.strip())
    return make_method(name.strip(), fields)


def method_class(name: str) -> Any:
    """Return the class of a method, by its name in the catalogue."""
    check_name(name)
    return __getattr__("METHODS")[name]


def check_name(name: str) -> None:
    """Refuse an unknown method, with the nearest name: "AD-DROP" is nearest to "addrop". Nothing is imported.

    Args:
        name: what the user wrote.
    """
    names = {_letters(known): known for known in method_names()}
    if name in names.values():
        return
    near = difflib.get_close_matches(_letters(name), names, n=1)
    hint = f" (did you mean {names[near[0]]!r}?)" if near else ""
    raise UserError(f"method is {name!r}{hint}; it must be one of {', '.join(names.values())}.")


def _letters(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def make_method(name: str, fields: dict[str, Any]) -> Regularizer:
    """Return a regulariser from its name and fields.

    Args:
        name: the name in the catalogue.
        fields: the fields and their values; all others have their defaults.
    """
    cls = method_class(name)
    known = [field.name for field in dataclasses.fields(cls)]
    for field in fields:
        if field not in known:
            raise ValueError(f"method {name!r} has no field {field!r}; its fields are {', '.join(known)}.")
    return cls(**{field: _as_slice(value) if field == "layers" else value for field, value in fields.items()})


def load_regularizers(folder: str | Path) -> list[Regularizer]:
    """Return the regularisers that a training run saved beside its model.

    Args:
        folder: a folder that `RegularizedTrainer` saved: a checkpoint, or the final model.

    Example:
        regularizers = load_regularizers("runs/rte/checkpoint-500")
    """
    from ..core.state import CONFIG_FILE

    path = Path(folder, CONFIG_FILE)
    if not path.is_file():
        raise ValueError(f"{path} does not exist; a folder that RegularizedTrainer saved has one.")
    regularizers = []
    for fields in json.loads(path.read_text(encoding="utf-8"))["regularizers"]:
        fields = dict(fields)
        regularizers.append(make_method(fields.pop("method"), fields))
    return regularizers


def _parse_value(text: str) -> Any:
    """Return a Python literal, or the text itself where it is none."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _as_slice(value: Any) -> Any:
    """Return a slice where `value` is written as one, 0:4 or ::2; else `value`."""
    if isinstance(value, str) and re.fullmatch(r"-?\d*:-?\d*(:-?\d*)?", value):
        return slice(*(int(part) if part else None for part in value.split(":")))
    return value
