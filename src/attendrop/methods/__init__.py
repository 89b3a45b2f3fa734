"""The methods: one paper, one module. `METHODS` is the catalogue, {name: class}.

A module (or package) of this folder whose name has no leading underscore is a method. It defines a subclass of
`Regularizer` whose `name` is the module's; CONTRIBUTING.md lists what else belongs to a method. Methods of the user's
files and of installed packages are in `_own`.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import importlib
import pkgutil
import re
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..utils.files import load_json
from . import _own

if TYPE_CHECKING:
    from ..core.regularizer import Regularizer

    METHODS: dict[str, type[Regularizer]]


def method_names() -> list[str]:
    """Return the names of all methods, in alphabetical order: one module or package each. Nothing is imported."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def known_names() -> list[str]:
    """Return the names of all methods, those of installed packages included. Nothing is imported."""
    return sorted({*method_names(), *_own.installed_names()})


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
            "0.1..0.5" is a schedule, and `layers` may be a slice such as "0:4". The name may be FILE.py:CLASS, a
            method of your own; the file is run.

    Example:
        parse_method("addrop:p=0.3,q=0.1..0.5,layers=[0,1]")
        parse_method("./my_method.py:LogitNorm:tau=0.04")
    """
    before, _, settings = text.rpartition(".py:")[2].partition("@")
    if re.match(r"\s*[\w-]+\s*=", settings):  # a token may be among them, so that they are not shown
        raise ValueError(
            f"method {before.strip()!r} has settings after an @, which only methods of a comparison have; give them as "
            "settings of the run."
        )
    name, rest = split_method(text)
    fields: dict[str, Any] = {}
    for part in re.split(r",(?![^\[(]*[\])])", rest) if rest.strip() else []:
        field, equals, value = part.partition("=")
        if not equals or not field.strip():
            raise ValueError(f"method {text!r} has {part!r}; fields are written name=value and separated by commas.")
        if field.strip() in fields:
            raise ValueError(f"method {text!r} has {field.strip()!r} several times; a field has one value.")
        fields[field.strip()] = _parse_value(value.strip())
    return make_method(name, fields)


def split_method(text: str) -> tuple[str, str]:
    """Return the name of a method, or FILE.py:CLASS, and the text of its fields."""
    if own := _own.split(text):
        return own
    name, _, fields = text.partition(":")
    return name.strip(), fields


def names_file(text: str) -> bool:
    """Return whether a method is that of a file: FILE.py:CLASS."""
    return _own.split(text) is not None


def methods_in(file: str) -> list[str]:
    """Return the names of the classes of a file that are methods."""
    return list(_own.methods_in(file))


def short_name(text: str) -> str:
    """Return the name of a method without its fields; of a method in a file, its class. Nothing is imported."""
    name = split_method(text)[0]
    if not names_file(name):
        return name
    return text if "+" in name else name.rpartition(":")[2]


def method_class(name: str) -> Any:
    """Return the class of a method, by its name in the catalogue or of an entry point, or by FILE.py:CLASS."""
    if names_file(name):
        cls = _own.class_in_file(name)
        if cls.name in method_names():
            raise UserError(
                f"method is {name!r}, and its name is {cls.name!r}, which is a method of attendrop; change it."
            )
        return cls
    if name in method_names():
        return __getattr__("METHODS")[name]
    check_name(name)
    return _own.installed_class(name)


def check_name(name: str) -> None:
    """Refuse an unknown method, with the nearest name: "AD-DROP" is nearest to "addrop". Nothing is imported.

    Args:
        name: the text of the user.
    """
    names = {_letters(known): known for known in known_names()}
    if name in names.values():
        return
    near = difflib.get_close_matches(_letters(name), names, n=1)
    hint = f" (did you mean {names[near[0]]!r}?)" if near else ""
    own = "; a method of your own is written FILE.py:CLASS" if not near else ""
    raise UserError(f"method is {name!r}{hint}; it must be one of {', '.join(names.values())}{own}.")


def _letters(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def make_method(name: str, fields: dict[str, Any]) -> Regularizer:
    """Return a regulariser from its name and fields.

    Args:
        name: the name in the catalogue, or FILE.py:CLASS.
        fields: the fields and their values; all others have their defaults.
    """
    return _made(method_class(name), name, fields)


def _made(cls: Any, name: str, fields: dict[str, Any]) -> Regularizer:
    known = [field.name for field in dataclasses.fields(cls)]
    for field in fields:
        if field not in known:
            raise ValueError(f"method {name!r} has no field {field!r}; its fields are {', '.join(known)}.")
    return cls(**{field: _as_slice(value) if field == "layers" else value for field, value in fields.items()})


def load_regularizers(folder: str | Path) -> list[Regularizer]:
    """Return the regularisers that a training run saved beside its model.

    Args:
        folder: a folder that `RegularizedTrainer` saved: a checkpoint, or the final model. A method of your own must be
            loaded before, with `parse_method`: no file is run because a folder names it.

    Example:
        regularizers = load_regularizers("runs/rte/checkpoint-500")
    """
    from ..core.state import CONFIG_FILE

    path = Path(folder, CONFIG_FILE)
    if not path.is_file():
        raise ValueError(f"{path} does not exist; a folder that RegularizedTrainer saved has one.")
    regularizers = []
    for fields in load_json(path)["regularizers"]:
        fields = dict(fields)
        name, code = fields.pop("method"), fields.pop("code", None)
        cls = method_class(name) if code is None and not names_file(name) else _own.recorded_class(name, code or "")
        regularizers.append(_made(cls, name, fields))
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
