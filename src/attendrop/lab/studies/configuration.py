"""study.json: the configuration of a study. A resumed study must have the same one; some lists and numbers may grow."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...utils.files import damaged, write_whole
from ..records import StudyConfiguration
from .records import RUNS_FOLDER, now
from .spec import digest_of

STUDY_FILE = "study.json"

_MAY_DIFFER = ("schema", "created", "command", "title", "data_files")  # they are compared by `check_data`
_ABSENT = "absent"
_REMEDY = "copy it again, or repeat the study"


def write_configuration(folder: Path, configuration: StudyConfiguration, may_grow: Collection[str]) -> None:
    """Write study.json, or compare the configuration with the existing file.

    Args:
        folder: The folder of the study.
        configuration: The configuration.
        may_grow: Fields whose list or mapping may get longer, or whose number may grow.

    Raises:
        UserError: The configuration differs. The sentence names the first difference.
    """
    path = folder / STUDY_FILE
    old = read_configuration(folder) if path.exists() else None
    if old is None:
        _write(path, replace(configuration, created=now()))
        return
    check_data(folder, old, configuration.data_files)
    before, after = (
        {name: value for name, value in _content(of).items() if name not in _MAY_DIFFER} for of in (old, configuration)
    )
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
    if _content(old) != _content(configuration):
        _write(path, replace(configuration, created=old.created))


def check_data(folder: Path, study: StudyConfiguration, known: Mapping[str, str] | None = None) -> None:
    """Refuse examples whose content is another one than that of the runs that have ended.

    Args:
        folder: The folder of the study.
        study: Its configuration.
        known: Present checksums of files.

    Raises:
        UserError: A file has changed, or one in a folder of images or sounds.
    """
    if not any((folder / RUNS_FOLDER).glob("*.json")):
        return
    for path, digest in study.data_files.items():
        if ((known or {}).get(path) or digest_of(Path(path))) not in (digest, None):
            what = "what is in the folder" if Path(path).is_dir() else "the file"
            raise UserError(
                f"{what} {path!r} changed after runs of the study in {str(folder)!r} had read it; restore it, or "
                "choose another folder for the new runs."
            )


def _content(configuration: StudyConfiguration) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(json.dumps(configuration.to_json(), default=str))
    return content


def _write(path: Path, configuration: StudyConfiguration) -> None:
    write_whole(path, json.dumps(_content(configuration), indent=1) + "\n")


def read_configuration(folder: str | Path) -> StudyConfiguration:
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
    study = StudyConfiguration.read(path, _REMEDY)
    if study.plan and study.plan.get("hash") != plan_hash(study.plan):
        raise damaged(path, "'plan' does not match its hash", _REMEDY)
    return study


def plan_hash(plan: Mapping[str, Any]) -> str:
    """Return the hash of the content of a plan, without the hash in it."""
    content = {name: value for name, value in plan.items() if name != "hash"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


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
