"""One row for each method: what the contract tests train it with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Setting:
    usual: dict[str, Any]  # strong enough to show
    zero: dict[str, Any]  # no strength: must be plain fine-tuning, bit for bit
    strongest: dict[str, Any]  # the most that the ranges allow
    models: tuple[str, ...] = field(default=("bert", "gpt2", "llama", "bart", "mpnet"))


SETTINGS = {
    "addrop": Setting(
        usual={"p": 0.5, "q": 0.5, "layers": "all", "cross_tuning": False},
        zero={"q": 0.0, "cross_tuning": False},
        strongest={"p": 1.0, "q": 1.0, "layers": "all", "cross_tuning": False},
    ),
    "attendout": Setting(
        usual={"T": 3, "init_drop": 0.4, "reward_on": "noisy", "samples": 6, "select": "attacker"},
        zero={"T": 3, "init_drop": 0.0, "reward_on": "cached"},
        strongest={"T": 3, "init_drop": 0.999, "reward_on": "cached", "select": "attacker"},
    ),
    "attention_layerdrop": Setting(usual={"p": 0.5}, zero={"p": 0.0}, strongest={"p": 1.0}),
    "scheduled_dropout": Setting(
        usual={}, zero={"start": 0, "slopes": [0, 0]}, strongest={"start": 1, "slopes": [0, 0]}
    ),
}
