"""One paper, one file. `METHODS` is the catalogue; adding a method is one line in `_CLASSES` (see CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import importlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..regularizer import Regularizer

    METHODS: dict[str, type[Regularizer]]

_CLASSES = {
    "addrop": "ADDrop",
    "attendout": "AttendOut",
    "attention_dropout": "AttentionDropout",
    "attention_layerdrop": "AttentionLayerDrop",
    "child_tuning": "ChildTuning",
    "concrete_dropout": "ConcreteDropout",
    "dropconnect": "DropConnect",
    "drophead": "DropHead",
    "headmask": "HeadMask",
    "hiddencut": "HiddenCut",
    "layerdrop": "LayerDrop",
    "mixout": "Mixout",
    "noisytune": "NoisyTune",
    "r3f": "R3F",
    "rdrop": "RDrop",
    "scal": "SCAL",
    "scheduled_dropout": "ScheduledDropout",
    "scores_dropout": "ScoresDropout",
    "structure_mask": "StructureMask",
    "supertickets": "SuperTickets",
    "unidrop": "UniDrop",
}


def __getattr__(attribute: str) -> Any:
    # Imported on first use, so that `import attendrop` stays light and `python -m attendrop.methods.<name>` is clean.
    if attribute != "METHODS":
        raise AttributeError(f"module {__name__!r} has no attribute {attribute!r}")
    methods = {
        name: getattr(importlib.import_module(f"{__name__}.{name}"), class_name)
        for name, class_name in _CLASSES.items()
    }
    globals()["METHODS"] = methods
    return methods


def parse_method(text: str) -> Regularizer:
    """A regulariser from its name and fields: `parse_method("addrop:p=0.3,q=0.1..0.5,layers=[0,1]")`."""
    name, _, rest = text.partition(":")
    fields: dict[str, Any] = {}
    for part in re.split(r",(?![^\[(]*[\])])", rest) if rest.strip() else []:
        field, equals, value = part.partition("=")
        if not equals or not field.strip():
            raise ValueError(f"method {text!r} has {part!r}; fields are written name=value and separated by commas.")
        fields[field.strip()] = _value(value.strip())
    return make_method(name.strip(), fields)


def method_class(name: str) -> Any:
    """The class of a method, by its name in the catalogue."""
    methods = __getattr__("METHODS")
    if name not in methods:
        near = difflib.get_close_matches(name, methods, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(f"method is {name!r}{hint}; it must be one of {', '.join(sorted(methods))}.")
    return methods[name]


def make_method(name: str, fields: dict[str, Any]) -> Regularizer:
    """A regulariser from its name and a dictionary of fields."""
    cls = method_class(name)
    known = [field.name for field in dataclasses.fields(cls)]
    for field in fields:
        if field not in known:
            raise ValueError(f"method {name!r} has no field {field!r}; its fields are {', '.join(known)}.")
    return cls(**{field: _layers(value) if field == "layers" else value for field, value in fields.items()})


def load_regularizers(folder: str | Path) -> list[Regularizer]:
    """The regularisers that a training run saved beside its model."""
    from ..regularizer import CONFIG_FILE

    path = Path(folder, CONFIG_FILE)
    if not path.is_file():
        raise ValueError(f"{path} does not exist; a folder that RegularizedTrainer saved has one.")
    found = []
    for fields in json.loads(path.read_text(encoding="utf-8"))["regularizers"]:
        fields = dict(fields)
        found.append(make_method(fields.pop("method"), fields))
    return found


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _layers(value: Any) -> Any:
    """A slice may be written as in Python: 0:4, or ::2."""
    if isinstance(value, str) and re.fullmatch(r"-?\d*:-?\d*(:-?\d*)?", value):
        return slice(*(int(part) if part else None for part in value.split(":")))
    return value
