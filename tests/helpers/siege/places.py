"""Places that a command writes to: without the right to write, or with links to files of somebody else."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path

from .cases import Case, Siege


def outputs(siege: Siege) -> Iterator[Case]:
    """Targets that cannot be written: folders without the right to write, /proc, links, names that are too long."""
    targets = {
        "a folder without rights": "shut/out", "/proc": "/proc/out", "a long name": "n" * 300,
        "a name below a file": f"{siege.train}/out", "a loop of links": "loop", "half a letter": "a\udcff",
    }  # fmt: skip
    table = ["--file", siege.train]
    commands: dict[str, Callable[[str], list[object]]] = {
        "predict": lambda to: ["predict", siege.run, *table, "--overwrite", "--output", f"{to}.csv"],
        "evaluate": lambda to: ["evaluate", siege.run, *table, "--overwrite", "--output", to],
        "curves": lambda to: ["curves", siege.run, "--overwrite", "--output", f"{to}.png"],
        "robustness": lambda to: [
            "robustness", siege.run, *table, "--rates", "0,0.5", "--max-samples", 4, "--output", f"{to}.png",
        ],
        "soup": lambda to: ["soup", siege.study, "--method", "plain", "--output-dir", to],
        "train": lambda to: siege.training(to, "--overwrite"),
    }  # fmt: skip
    while True:
        name, target = siege.draw.choice(list(commands)), siege.draw.choice(list(targets))
        yield Case(f"{name} into {target}", commands[name](targets[target]), before=_shut, inside=_without_rights)


def _shut() -> None:
    """Make a folder into which nobody may write, and links to themselves."""
    Path("shut").mkdir(mode=0o555)
    for name in ("loop", "loop.csv", "loop.png"):
        Path(name).symlink_to(name)


def _without_rights() -> None:
    """Give up what root may do besides: to write where the permissions do not allow it."""
    version_of_linux, none = (ctypes.c_uint * 2)(0x20080522, 0), (ctypes.c_uint * 6)()
    ctypes.CDLL(None).capset(version_of_linux, none)


def links(siege: Siege) -> Iterator[Case]:
    """Links at the names that a command writes: nothing that they point to is changed."""
    names = (
        "out.csv", "out.csv.unfinished", "out.unfinished", "out.png", "out.png.unfinished", "out/attendrop.lock",
        "out/record.json.unfinished", "out/README.md", "out/model.safetensors", "out/config.json.unfinished",
    )  # fmt: skip
    commands: list[list[object]] = [
        ["predict", siege.run, "--file", siege.train, "--output", "out.csv", "--overwrite"],
        siege.training("out", "--overwrite"),
        ["curves", siege.run, "--output", "out.png", "--overwrite"],
        ["soup", siege.study, "--method", "plain", "--output-dir", "out"],
    ]

    def check(code: int, text: str) -> str | None:
        content = Path("precious").read_text() if Path("precious").exists() else None
        inner = sorted(path.name for path in Path("treasure").iterdir())
        return None if content == "gold" and inner == ["coin"] else f"changed: {content!r} {inner}"

    while True:
        words, name, target = siege.draw.choice(commands), siege.draw.choice(names), siege.draw.choice(_TARGETS)

        def before(name: str = name, target: str = target) -> None:
            Path("precious").write_text("gold")
            Path("treasure").mkdir()
            Path("treasure", "coin").write_text("1")
            Path(name).parent.mkdir(exist_ok=True)
            Path(name).symlink_to(Path(target).absolute())

        yield Case(f"{words[0]}: {name} -> {target}", words, before=before, check=check)


_TARGETS = ("precious", "treasure", "treasure/new")
