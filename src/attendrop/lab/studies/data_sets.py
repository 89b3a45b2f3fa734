"""Several data sets in one comparison.

Either each has a name (`--data reviews=reviews.csv@text=review,label=stars`), or there are several `--train-file`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...utils.secrets import is_secret

# Settings that a study decides for each run.
SET_BY_THE_STUDY = ("method", "seed", "output_dir", "output-dir", "task", "resume", "overwrite")
OF_ONE_DATA_SET = ("train_file", "validation_file", "test_file")
_DATA = re.compile(r"(?P<name>[^=@]+)=(?P<file>.+?)(?:@(?P<settings>[\w-]+=.*))?")


def read_data_sets(named: Sequence[str], files: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Return the settings of each data set by its name.

    Args:
        named: Data sets as the user wrote them, NAME=FILE, with settings of their own after an `@`.
        files: Training files, which are called by their file names.
    """
    pairs = [_parsed(text) for text in named] + [(Path(file).name, {"train_file": file}) for file in files]
    return _by_name(pairs)


def _parsed(text: str) -> tuple[str, dict[str, Any]]:
    match = _DATA.fullmatch(text.strip())
    if match is None:
        raise UserError(
            f"data is {text!r}; a data set is written NAME=FILE, with settings of its own after an @, such as "
            "reviews=reviews.csv@text=review,label=stars."
        )
    settings: dict[str, Any] = {"train_file": match["file"].strip()}
    refuse_secrets(match["settings"] or "", f"data {match['name'].strip()!r}")
    for part in re.split(r",(?=[\w-]+=)", match["settings"] or ""):
        name, _, value = part.partition("=")
        if name.replace("-", "_") in SET_BY_THE_STUDY:
            raise UserError(f"data {text!r} has {part!r} after the @, which the study decides; leave it out.")
        if part:
            add_setting(settings, name, value, f"data {match['name'].strip()!r}")
    return match["name"].strip(), settings


def refuse_secrets(text: str, what: str) -> None:
    """Refuse a token among the settings after an `@`, before anything shows or stores them.

    Args:
        text: The settings, as the user wrote them.
        what: Their owner, for the error message.
    """
    for name in re.findall(r"([\w-]+)\s*=", text):
        if is_secret(name):
            raise UserError(
                f"{what} has {name} after the @, which would be stored with the study; use `hf auth login`, or the "
                "environment variable HF_TOKEN."
            )


def add_setting(settings: dict[str, Any], name: str, value: str, what: str) -> None:
    """Add a setting that was written after an `@`, which is stored with the study.

    Args:
        settings: The settings so far.
        name: Its name, as the user wrote it.
        value: Its value.
        what: The owner of the settings, for error messages.
    """
    name = name.strip().replace("-", "_")
    if name in settings:
        raise UserError(f"{what} has {name} several times after the @; a setting has one value.")
    settings[name] = value.strip()


def _by_name(pairs: Iterable[tuple[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    sets: dict[str, dict[str, Any]] = {}
    for name, settings in pairs:
        if name in sets:
            files = f"{sets[name]['train_file']!r} and {settings['train_file']!r}"
            raise UserError(f"two data sets are called {name!r}, {files}; give each a name with --data NAME=FILE.")
        sets[name] = settings
    return sets


def check_data_sets(tasks: Sequence[str], data: Mapping[str, Mapping[str, Any]], shared: Mapping[str, Any]) -> None:
    """Refuse data sets that are given twice, and shared settings that can belong to one of them only.

    Args:
        tasks: The names of the tasks.
        data: The settings of each data set by its name.
        shared: The settings that all runs share.
    """
    if twice := [name for name in tasks if name in data or list(tasks).count(name) > 1]:
        raise UserError(f"the data set {twice[0]!r} is given several times; every data set is compared once.")
    for name in OF_ONE_DATA_SET if data else ():
        if name in shared:
            first = next(iter(data))
            raise UserError(
                f"{name} is {shared[name]!r}, which can belong to one of the data sets only; write it after the one "
                f"that it is for, as in --data {first}={data[first]['train_file']}@{name}={shared[name]}."
            )
