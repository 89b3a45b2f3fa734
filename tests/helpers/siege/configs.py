"""Odd configurations: run.yaml, and the plan of a comparison."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from .cases import Case, Siege, forked

_VALUES: tuple[Any, ...] = (
    None, "", " ", [], {}, [None], {"a": 1}, -1, 0, 1e300, float("nan"), float("inf"), True, "nan", "x", "a\x1b[2J",
    "9" * 400, 10**30, ["rdrop", "rdrop"], "rdrop@seed=1", [1, "a"], {"shots": []}, [[]], [["x"]], "../x", "no", "1e2",
)  # fmt: skip
# What YAML has and JSON has not. Each is put in the place of a value, or of the file.
_TEXTS = (
    "!!python/object/apply:os.system ['touch pwned']", "!!python/name:os.system", "!!binary '/+8='", "2020-01-01",
    "!!set {a, b}", "0o17", "0x1f", "1_000", "12:30:45", "~", "'", "[", "{a: b", "&a [*a]", "*unknown", "<<: x", "%x",
    "? [a]\n: b", "- a\nb: c", "a: 1\na: 2", "--- a\n--- b", "\t", "\x00", "\x85", "\ufeff", "|\n x", "!x y", "\ud800",
)  # fmt: skip


def _changed(draw: random.Random, settings: dict[str, Any]) -> bytes:
    """Return a YAML file with one change."""
    way = draw.randrange(6)
    if way == 0:
        return draw.choice(_TEXTS).encode("utf-8", "surrogatepass")
    content = copy.deepcopy(settings)
    holder, key = content, draw.choice(list(content))
    while isinstance(holder[key], dict) and holder[key] and draw.random() < 0.7:
        holder, key = holder[key], draw.choice(list(holder[key]))
    if way == 1:
        holder.pop(key)
    elif way == 2:
        holder[draw.choice(("x", "", "method ", "seed", 1, None, True, "SEED", "lr", "schema"))] = draw.choice(_VALUES)
    elif way == 3:
        holder[key] = "PLACE"
        text = yaml.safe_dump(content, sort_keys=False).replace("PLACE", draw.choice(_TEXTS), 1)
        return text.encode("utf-8", "surrogatepass")
    else:
        holder[key] = draw.choice(_VALUES)
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True).encode("utf-8", "surrogatepass")


def configs(siege: Siege) -> Iterator[Case]:
    """Configurations in which one value is odd, missing or new: used as they say, or refused in one sentence."""
    flags = [
        "--model", siege.model, "--train-file", siege.train, "--use-cpu", "--max-steps", 1, "--method", "rdrop",
        "--per-device-train-batch-size", 8, "--seeds", 2,
    ]  # fmt: skip
    plan = siege.folder / "plan.yaml"
    if not plan.exists():
        done = forked(Case("a plan", ["plan", plan, *flags]))
        assert done[0] == 0, done[1]
    given: dict[str, dict[str, Any]] = {
        "run": {
            "model": str(siege.model), "train_file": str(siege.train), "use_cpu": True, "max_steps": 1, "seed": 3,
            "method": ["addrop:p=0.3", "rdrop"], "learning_rate": 1e-4, "output_dir": "out", "no_baselines": True,
            "lr_scheduler_kwargs": {}, "text": ["text"], "label": "label", "bf16": False, "max_length": 16,
        },
        "plan": yaml.safe_load(plan.read_text()),
    }  # fmt: skip
    given["run"].pop("no_baselines")
    commands: dict[str, list[list[object]]] = {
        "run": [["train", "--config", "given.yaml", "--no-baselines", "--output-dir", "out"]],
        "plan": [
            ["compare", "--plan", "given.yaml", "--workers", 0, "--output-dir", "out"],
            ["compare", "--plan", "given.yaml", "--deviate", "--seeds", 1, "--workers", 0, "--output-dir", "out"],
        ],
    }

    def check(code: int, text: str) -> str | None:
        return "a tag was run" if Path("pwned").exists() else None

    while True:
        kind = siege.draw.choice(list(given))
        content, words = _changed(siege.draw, given[kind]), siege.draw.choice(commands[kind])

        def before(content: bytes = content) -> None:
            Path("given.yaml").write_bytes(content)

        shown = _difference(content, yaml.safe_dump(given[kind], sort_keys=False))
        yield Case(f"{words[0]}: {shown}", words, before=before, check=check, megabytes=3000)


def _difference(content: bytes, usual: str) -> str:
    lines = [line for line in content.decode(errors="replace").split("\n") if line not in usual.split("\n")]
    return repr(lines)[:300]
