"""Processes that are killed at a file event, or whose disk is full: the old file stays, or the new one is whole."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from transformers import AutoModelForSequenceClassification

from attendrop import prune
from attendrop.utils.files import is_no_space

from .cases import Case, Siege, full_disk, killed_at, killed_in_write

OLD = b"the old file\n"
_MODEL = ("config.json", "model.safetensors", "README.md")
_MOST_EVENTS = 12
_SIZES = (0, 10, 100, 400, 1000, 5000)


def writers(siege: Siege) -> list[Case]:
    """Commands that replace a file or a folder, each with a check that the result is old or whole."""
    table = ["--file", siege.train, "--overwrite"]
    files: dict[str, tuple[list[object], str]] = {
        "predict": (["predict", siege.run, *table, "--output", "out.csv"], "out.csv"),
        "predict parquet": (["predict", siege.run, *table, "--output", "out.parquet"], "out.parquet"),
        "curves": (["curves", siege.run, "--output", "out.png", "--overwrite"], "out.png"),
        "robustness": (
            ["robustness", siege.run, *table, "--rates", "0,0.5", "--max-samples", 4, "--output", "out.png"],
            "out.csv",
        ),
        "evaluate": (["evaluate", siege.run, *table, "--output", "out"], "out/errors.csv"),
    }
    words = ["soup", siege.study, "--method", "plain", "--output-dir", "out"]
    soup = Case("soup", words, check=lambda code, text: _half("out", _MODEL))
    prune = Case("prune.save", act=lambda: _save_pruned(siege), check=lambda code, text: _half("out", _MODEL))
    return [*(_writer(siege, name, words, output) for name, (words, output) in files.items()), soup, prune]


def _save_pruned(siege: Siege) -> int:
    model = AutoModelForSequenceClassification.from_pretrained(siege.model)
    prune.prune(model, [0])
    try:
        prune.save(model, "out")
    except Exception as error:  # for a Python caller, a full disk is the error that it is
        if not is_no_space(error):
            raise
        return 2
    return 0


def _half(folder: str, files: Sequence[str]) -> str | None:
    """What is missing in a folder that should be absent, empty or whole."""
    missing = [name for name in files if not Path(folder, name).is_file()]
    return f"{folder} has no {missing}" if missing and any(Path(folder).glob("*")) else None


def _writer(siege: Siege, name: str, words: list[object], output: str) -> Case:
    def before() -> None:
        place = Path(output)
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(OLD)

    whole = siege.folder / "whole" / name.replace(" ", "_")
    if not whole.exists():
        whole.parent.mkdir(exist_ok=True)

        def keep(code: int, text: str) -> str | None:
            shutil.copyfile(output, whole)
            return None if code == 0 else "failed"

        assert siege.outcome(Case(name, words, before=before, check=keep))[0] == "done"

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
