"""Runs and studies that are killed, or whose disk is full, and then repeated: they end as if nothing had happened."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .cases import Case, Siege, forked, full_disk, killed_at

_SIZES = (0, 100, 1000, 10_000, 100_000)
_MOST_EVENTS = 150


def resumes(siege: Siege) -> Iterator[Case]:
    """`train`, `compare` and `tune`, killed at any file event or out of space, then started again by the same words."""
    study = [
        "--model", siege.model, "--train-file", siege.train, "--use-cpu", "--max-steps", 1, "--workers", 0,
        "--per-device-train-batch-size", 8, "--method", "rdrop", "--output-dir", "out",
    ]  # fmt: skip
    # Each command, and the words with which it is started again.
    train = siege.training("out", "--save-strategy", "steps", "--save-steps", 1)
    commands: dict[str, tuple[list[object], list[object]]] = {
        "train": (train, [*train, "--overwrite"]),
        "compare": (["compare", *study, "--seeds", 1, "--keep-models"], []),
        "tune": (["tune", *study, "--trials", 1, "--repeats", 1, "--final-seeds", 1], []),
    }
    whole: dict[str, Any] = {}
    while True:
        name = siege.draw.choice(list(commands))
        words, again = commands[name]
        if name not in whole:

            def keep(code: int, text: str, name: str = name) -> str | None:
                whole[name] = _results(name) if code == 0 else None
                return None

            outcome, text = siege.outcome(Case(name, words, check=keep, seconds=120))
            assert outcome == "done", text
        check = _repeated(again or words, name, whole[name])
        case = Case(name, words, check=check, may_die=True, seconds=120)
        if siege.draw.random() < 0.3:
            size = siege.draw.choice(_SIZES)
            yield replace(case, name=f"{name}, full at {size} bytes", inside=full_disk(size))
        else:
            event = round(_MOST_EVENTS ** siege.draw.random())
            yield replace(case, name=f"{name}, killed at event {event}", inside=killed_at(event))


def _repeated(words: Sequence[object], name: str, whole: Any) -> Callable[[int, str], str | None]:
    def check(code: int, text: str) -> str | None:
        if code == 0 and _results(name) != whole:
            return "it ended with other results"
        if name == "train" and Path("out").exists() and not Path("out/run.yaml").exists():
            return None  # nothing has begun, and `--overwrite` would find no run
        code, text, _ = forked(Case(name, words, seconds=120))
        if code != 0 or "Traceback" in text:
            return f"it does not start again: exit code {code}\n{text[-800:]}"
        return None if _results(name) == whole else "the second start has other results"

    return check


def _results(name: str) -> Any:
    """Return all that a command is for: the weights of a run, the scores and settings of the runs of a study."""
    if name == "train":
        assert Path("out/record.json").exists()
        return Path("out/model.safetensors").read_bytes()
    runs = [json.loads(path.read_text()) for path in sorted(Path("out/runs").glob("*.json"))]
    assert Path("out/report.html").exists()
    models = {str(path): path.read_bytes() for path in sorted(Path("out/models").rglob("*.safetensors"))}
    return [(run["id"], run["status"], run["scores"], run["settings"]) for run in runs], models
