"""Damaged files of a study and of a search, for the commands that read them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .cases import Case, Siege
from .damage import DAMAGE

_DEEP = "[" * 3000 + "]" * 3000
_ODD: tuple[Any, ...] = (
    None, [], {}, "x", -1, 1e300, float("nan"), True, "\ud800", [None], {"a": None}, 10**400, "../x",
)  # fmt: skip


def changed_value(siege: Siege) -> Callable[[Path], None]:
    """A change of a JSON file: one value, drawn at any depth, is missing or another one."""
    order, odd = siege.draw.random(), siege.draw.choice((*_ODD, "missing"))

    def change(path: Path) -> None:
        try:
            content = json.loads(path.read_text())
        except ValueError:  # lines of JSON
            path.write_text(path.read_text()[:-30] + json.dumps(odd) + "\n")
            return
        places: list[tuple[Any, Any]] = []

        def walk(value: Any) -> None:
            for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
                places.append((value, key))
                walk(value[key])

        walk(content)
        holder, key = places[int(order * len(places))] if places else ({}, "x")
        if odd == "missing" and isinstance(holder, dict):
            holder.pop(key, None)
        else:
            holder[key] = odd
        path.write_text(json.dumps(content))

    return change


def _deep(path: Path) -> None:
    path.write_text(_DEEP)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def studies(siege: Siege) -> Iterator[Case]:
    """Each JSON file of a study and of a search, damaged, for `report`, `study`, `soup` and a resumed `compare`."""
    folders = {"study": siege.study, "search": siege.search}
    commands: dict[str, list[object]] = {
        "report": ["report", "copy"], "study": ["study", "copy"],
        "soup": ["soup", "copy", "--method", "plain", "--output-dir", "out"],
    }  # fmt: skip
    ways = {**DAMAGE, "deep": _deep, "a folder": _folder, "a pipe": _pipe}
    while True:
        which = siege.draw.choice(list(folders))
        files = [p for p in folders[which].rglob("*.json*") if p.is_file()]
        file = siege.draw.choice(sorted(files)).relative_to(folders[which])
        name = siege.draw.choice(list(commands)) if which == "study" else siege.draw.choice(("report", "study"))
        way, change = siege.draw.choice([*ways.items(), *[("another value", changed_value(siege))] * 6])

        def before(folder: Path = folders[which], file: Path = file, change: Any = change) -> None:
            shutil.copytree(folder, "copy")
            change(Path("copy", file))

        yield Case(f"{name} {which} {file} {way}", commands[name], before=before)
