"""Processes that are killed at a file event, or whose disk is full: the old file stays, or the new one is whole."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from .cases import Case, Siege, full_disk, killed_at, killed_in_write

OLD = b"the old file\n"
_MOST_EVENTS = 12
_SIZES = (0, 10, 100, 400, 1000, 5000)


def writers(siege: Siege) -> list[Case]:
    """Commands that replace a file or a folder. Their check compares what is there with `OLD` and the whole result."""
    table = ["--file", siege.train, "--overwrite"]
    commands: dict[str, tuple[list[object], str]] = {
        "predict": (["predict", siege.run, *table, "--output", "out.csv"], "out.csv"),
        "predict parquet": (["predict", siege.run, *table, "--output", "out.parquet"], "out.parquet"),
        "curves": (["curves", siege.run, "--output", "out.png", "--overwrite"], "out.png"),
        "robustness": (
            ["robustness", siege.run, *table, "--rates", "0,0.5", "--max-samples", 4, "--output", "out.png"],
            "out.csv",
        ),
        "evaluate": (["evaluate", siege.run, *table, "--output", "out"], "out/errors.csv"),
    }
    return [_writer(siege, name, words, output) for name, (words, output) in commands.items()]


def _writer(siege: Siege, name: str, words: list[object], output: str) -> Case:
    def before() -> None:
        Path(output).parent.mkdir(exist_ok=True)
        Path(output).write_bytes(OLD)

    whole = siege.folder / "whole" / name.replace(" ", "_")
    if not whole.exists():
        whole.parent.mkdir(exist_ok=True)

        def keep(code: int, text: str) -> str | None:
            shutil.copyfile(output, whole)
            return None if code == 0 else "failed"

        assert siege.outcome(Case(name, words, before=before, check=keep)) == ("held", "")

    def check(code: int, text: str) -> str | None:
        content = Path(output).read_bytes() if Path(output).exists() else None
        if content == whole.read_bytes() or (content == OLD and code != 0):
            return None
        return f"{output} is gone" if content is None else f"{output} is half"

    return Case(name, words, before=before, check=check)


def kills(siege: Siege) -> Iterator[Case]:
    """Commands that are killed at one of their file events, or when a file is half written."""
    cases = writers(siege)
    while True:
        case, event, size = siege.draw.choice(cases), siege.draw.randint(1, _MOST_EVENTS), siege.draw.choice(_SIZES)
        yield replace(case, name=f"{case.name}, killed at event {event}", inside=killed_at(event), may_die=True)
        yield replace(case, name=f"{case.name}, killed at {size} bytes", inside=killed_in_write(size), may_die=True)


def full(siege: Siege) -> Iterator[Case]:
    """Commands whose files may have a few bytes only, as on a full disk."""
    cases = writers(siege)
    while True:
        case, size = siege.draw.choice(cases), siege.draw.choice(_SIZES)
        yield replace(case, name=f"{case.name}, full at {size} bytes", inside=full_disk(size))
