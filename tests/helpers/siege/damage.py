"""Damaged files of a finished run: it is refused in a sentence, or it predicts the same as before."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

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
