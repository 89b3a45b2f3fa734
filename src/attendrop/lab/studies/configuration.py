"""study.json: the configuration of a study. A resumed study must have the same one; some lists and numbers may grow."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from ...errors import UserError, on_one_line
from ...utils.files import load_json, write_whole
from ...utils.secrets import is_secret
from ..records import SCHEMA
from .records import now

STUDY_FILE = "study.json"

_MAY_DIFFER = ("format", "schema", "created", "command")  # these may differ
_ABSENT = "absent"


def write_configuration(folder: Path, configuration: Mapping[str, Any], may_grow: Collection[str]) -> None:
    """Write study.json, or compare the configuration with the existing file.

    Args:
        folder: The folder of the study.
        configuration: The configuration.
        may_grow: Names whose list or mapping may get longer, or whose number may grow.

    Raises:
        UserError: The configuration differs. The sentence names the first difference.
    """
    path = folder / STUDY_FILE
    new = _without_secrets(json.loads(json.dumps(dict(configuration), default=str)))
    old = read_configuration(folder) if path.exists() else None
    if old is None:
        write_whole(path, json.dumps({"schema": SCHEMA, "created": now(), **new}, indent=1) + "\n")
        return
    before, after = ({k: v for k, v in values.items() if k not in _MAY_DIFFER} for values in (old, new))
    for name in may_grow:
        value = after.get(name)
        if has_grown(before.get(name, {} if isinstance(value, dict) else None), value):
            before[name] = value
    difference = next(_differences(before, after), None)
    if difference is not None:
        name, was, value = difference
        raise UserError(
            f"{name} is {value!r}, and {was!r} in the study that {str(folder)!r} holds; start it with the same "
            "settings, or choose another folder."
        )
    if any(old.get(name) != new.get(name) for name in may_grow):
        write_whole(path, json.dumps({**_of_this_schema(old), **new, "created": old.get("created")}, indent=1) + "\n")


def read_configuration(folder: str | Path) -> dict[str, Any]:
    """Read study.json.

    Args:
        folder: The folder of the study.

    Raises:
        UserError: There is no study in the folder, or the file is damaged.
    """
    path = Path(folder, STUDY_FILE)
    if not path.is_file():
        raise UserError(
            f"{str(folder)!r} has no {STUDY_FILE}; it must be the folder of `attendrop compare` or `attendrop tune`."
        )
    try:
        content = load_json(path)
        if not isinstance(content, dict):
            raise ValueError(f"it holds a {type(content).__name__}")
        if content.get("schema", 1) not in (1, SCHEMA):
            schema = content["schema"]
            raise ValueError(f"its schema is {schema!r}, and this version of attendrop reads schemas up to {SCHEMA}")
    except (OSError, ValueError) as error:
        raise UserError(f"{str(path)!r} cannot be read ({type(error).__name__}: {on_one_line(error)}).") from None
    return content


def _of_this_schema(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration of schema 1, which called the schema `format`, with the number of the present schema."""
    return {"schema": SCHEMA, **{name: value for name, value in configuration.items() if name != "format"}}


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_secrets(inner) for name, inner in value.items() if not is_secret(name)}
    return value


def has_grown(old: Any, new: Any) -> bool:
    """Return whether the new value contains the old one: a longer list or mapping, or a greater number."""
    if isinstance(old, list) and isinstance(new, list):
        return all(value in new for value in old)
    if isinstance(old, dict) and isinstance(new, dict):
        return all(name in new and new[name] == value for name, value in old.items())
    numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in (old, new))
    return numbers and new >= old


def _differences(old: Any, new: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the fields in which two configurations differ, with both values."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            inner = f"{name}.{key}" if name else key
            yield from _differences(old.get(key, _ABSENT), new.get(key, _ABSENT), inner)
    elif old != new:
        yield name, old, new
