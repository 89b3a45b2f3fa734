"""Damaged and exchanged files of a finished run: it is refused in a sentence, or it predicts the same as before."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from .cases import Case, Siege


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def scramble(path: Path) -> None:
    """Move the bytes of the last third by a few places."""
    content = path.read_bytes()
    start = len(content) * 2 // 3
    path.write_bytes(content[:start] + content[start + 40 :] + content[start : start + 40])


DAMAGE: dict[str, Callable[[Path], None]] = {
    "truncated": truncate, "zeroed": zero, "scrambled": scramble, "deleted": Path.unlink,
}  # fmt: skip

# Files that `predict` reads. The others are for people.
_READ = ("model.safetensors", "config.json", "record.json", "tokenizer.json", "tokenizer_config.json")


def damage(siege: Siege) -> Iterator[Case]:
    """Each file that predictions depend on, damaged in each way."""
    words = ["predict", "run", "--file", siege.train, "--output", "out.csv"]
    whole = siege.folder / "whole.csv"
    if not whole.exists():
        siege.outcome(Case("undamaged", ["predict", siege.run, "--file", siege.train, "--output", whole]))
    expected = whole.read_bytes()

    def check(code: int, text: str) -> str | None:
        return "other predictions" if code == 0 and Path("out.csv").read_bytes() != expected else None

    while True:
        name, how = siege.draw.choice(_READ), siege.draw.choice(list(DAMAGE))
        if not (siege.run / name).exists():
            continue

        def before(name: str = name, how: str = how) -> None:
            shutil.copytree(siege.run, "run")
            DAMAGE[how](Path("run", name))

        yield Case(f"{name} {how}", words, before=before, check=check)


def _keep(folder: Path, is_kept: Callable[[str], bool]) -> None:
    path = folder / "model.safetensors"
    save_file({name: value for name, value in load_file(path).items() if is_kept(name)}, path, {"format": "pt"})


def _other_head(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    head = next(name for name in weights if ("classifier" in name and name.endswith("weight")) or "head" in name)
    save_file(
        {**weights, head: torch.randn(5, weights[head].shape[-1])}, folder / "model.safetensors", {"format": "pt"}
    )


def _json_value(file: str, change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        content = json.loads((folder / file).read_text())
        change(content)
        (folder / file).write_text(json.dumps(content))

    return act


def _reverse_labels(record: dict[str, Any]) -> None:
    record["task_definition"]["labels"].reverse()


SWAPS: dict[str, Callable[[Path], None]] = {
    "no encoder": lambda folder: _keep(folder, lambda name: "encoder" not in name),
    "no layer": lambda folder: _keep(folder, lambda name: ".1." not in name),
    "another head": _other_head,
    "two heads of attention": _json_value("config.json", lambda c: c.update(num_attention_heads=2)),
    "one layer": _json_value("config.json", lambda c: c.update(num_hidden_layers=1)),
    "other activation": _json_value("config.json", lambda c: c.update(hidden_act="relu")),
    "reversed labels": _json_value("record.json", _reverse_labels),
    "temperature -1": _json_value("record.json", lambda c: c.update(temperature=-1)),
    "another tokenizer": _json_value("tokenizer.json", lambda c: c["model"]["vocab"].update(
        dict(zip(c["model"]["vocab"], reversed(c["model"]["vocab"].values()), strict=True)))),
}  # fmt: skip


def swaps(siege: Siege) -> Iterator[Case]:
    """A finished run or a pruned one whose files are whole but others: refused, or the same predictions."""
    whole = siege.folder / "whole.csv"
    if not whole.exists():
        siege.outcome(Case("whole", ["predict", siege.run, "--file", siege.train, "--output", whole]))
    expected = whole.read_bytes()

    def check(code: int, text: str) -> str | None:
        if code != 0:
            return None
        file = Path("out.csv")
        return "other predictions" if not file.exists() or file.read_bytes() != expected else None

    commands: dict[str, list[object]] = {
        "predict": ["predict", "run", "--file", siege.train, "--output", "out.csv"],
        "evaluate": ["evaluate", "run", "--file", siege.train],
        "robustness": ["robustness", "run", "--file", siege.train, "--rates", "0,0.5", "--max-samples", 4],
    }
    while True:
        for name, swap in SWAPS.items():
            command = siege.draw.choice(list(commands))

            def before(swap: Callable[[Path], None] = swap) -> None:
                shutil.copytree(siege.run, "run")
                swap(Path("run"))

            yield Case(f"{command}: {name}", commands[command], before=before,
                       check=check if command == "predict" else _refused)  # fmt: skip


def _refused(code: int, text: str) -> str | None:
    return "accepted" if code == 0 else None
