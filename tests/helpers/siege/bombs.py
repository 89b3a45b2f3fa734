"""Small inputs that would take all the memory or all the time."""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from .cases import Case, Siege


def _write(name: str, content: bytes) -> Callable[[], None]:
    return lambda: Path(name).write_bytes(content) and None


def bombs(siege: Siege) -> Iterator[Case]:
    """Small inputs that would take all memory, or all time."""
    aliases = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    header = ",".join(f"c{number}" for number in range(100_000))
    cases: list[tuple[str, bytes, list[object]]] = [
        ("run.yaml", aliases.encode(), ["train", "--config", "run.yaml"]),
        ("run.yaml", ("x: " + "[" * 20_000).encode(), ["train", "--config", "run.yaml"]),
        ("a.csv.gz", gzip.compress(b"text,label\n" + b"a" * 2**29, 1), ["check", "a.csv.gz"]),
        ("a.csv", (header + "\n" + header + "\n").encode(), ["check", "a.csv"]),
        (
            "a.jsonl",
            b'{"text": "' + b"a " * 2**24 + b'", "label": "x"}\n{"text": "b", "label": "y"}\n',
            ["check", "a.jsonl"],
        ),
        ("a.json", b"[" * 2_000_000, ["check", "a.json"]),
        ("a.csv", b'text,label\n"' + b"a,b\n" * 2**18, ["check", "a.csv"]),
        ("a.csv", b"text,label\n" + b'"' * 2**20, ["check", "a.csv"]),
    ]
    while True:
        for name, content, words in cases:
            yield Case(
                f"{words[0]} {name} {content[:20]!r}", words, before=_write(name, content), megabytes=2500, seconds=90
            )
        yield Case("a pipe", ["check", "pipe.csv"], before=lambda: os.mkfifo("pipe.csv"))
        yield Case(
            "/dev/zero", ["check", "zero.csv"], before=lambda: os.symlink("/dev/zero", "zero.csv"), megabytes=500
        )
        yield Case("a folder with a pipe", ["predict", "run", "a"], before=lambda: _run_with_pipe(siege))
        yield Case("many workers", siege.training("out", "--dataloader-num-workers", 100_000))


def _run_with_pipe(siege: Siege) -> None:
    shutil.copytree(siege.run, "run")
    name = siege.draw.choice(("tokenizer_config.json", "config.json", "record.json", "model.safetensors"))
    Path("run", name).unlink()
    os.mkfifo(Path("run", name))
