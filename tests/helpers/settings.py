"""The fields that the contract tests train each method with: from its bounds, or from its row."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from attendrop import METHODS
from attendrop.core.hyper import hyper_of
from attendrop.methods.supertickets.tickets import Tickets

MODELS = ("bert", "gpt2", "llama", "bart")
ADAPTED = (*MODELS, "mpnet")  # for methods that act inside attention, which MPNet has an adapter for

FEW = ("bert", "llama")  # for methods whose work does not depend on the architecture
ONE = ("bert",)


@dataclass(frozen=True)
class Setting:
    usual: dict[str, Any] = field(default_factory=dict)  # strong enough to show
    zero: dict[str, Any] = field(default_factory=dict)  # no strength: must be plain fine-tuning, bit for bit
    zero_error: str = ""  # why training without strength is refused, where it is
    strongest: dict[str, Any] = field(default_factory=dict)  # the most that the ranges allow
    models: tuple[str, ...] = field(default=MODELS)
    lora_error: str | None = None  # a part of the error where only adapters are trained; None: it works there
    # what a user does to the model before adapters are added and it is frozen
    before_lora: Callable[[Any], None] = field(default=lambda model: None)
    # columns that the method reads, for a batch and "usual", "zero" or "strongest"
    columns: Callable[[dict[str, Tensor], str], dict[str, Tensor]] = field(default=lambda batch, strength: {})


def structure(batch: dict[str, Tensor], strength: str) -> dict[str, Tensor]:
    """Matrices of ones (no structure), of every other token, or of nothing at all."""
    rows, length = batch["input_ids"].shape
    far = (torch.arange(length).view(-1, 1) - torch.arange(length)).abs()
    mask = {"usual": far % 2 == 0, "zero": far >= 0, "strongest": far < 0}[strength]
    return {"structure_mask": mask.expand(rows, length, length).clone()}


ROWS = {
    "addrop": Setting(
        models=ADAPTED,
        usual={"p": 0.5, "q": 0.5, "layers": "all", "cross_tuning": False},
        zero={"q": 0.0, "cross_tuning": False},
        strongest={"p": 1.0, "q": 1.0, "layers": "all", "cross_tuning": False},
    ),
    "attendout": Setting(
        models=ADAPTED,
        usual={"T": 3, "init_drop": 0.4, "reward_on": "noisy", "samples": 6, "select": "attacker"},
        zero={"T": 3, "init_drop": 0.0, "reward_on": "cached"},
        strongest={"T": 3, "init_drop": 0.999, "reward_on": "cached", "select": "attacker"},
    ),
    "attention_layerdrop": Setting(usual={"p": 0.5}),
    "child_tuning": Setting(usual={"p": 0.4}, zero={"p": 1.0}, strongest={"p": 0.01}),
    "dropconnect": Setting(usual={"p": 0.3}, strongest={"p": 0.99}),
    "mixout": Setting(usual={"p": 0.7}, strongest={"p": 0.99}),
    "noisytune": Setting(usual={"strength": 0.5}),
    "scheduled_dropout": Setting(zero={"start": 0, "slopes": [0, 0]}, strongest={"start": 1, "slopes": [0, 0]}),
    "concrete_dropout": Setting(usual={"init": 0.3, "lr": 0.05}, strongest={"init": 0.99, "lr": 1.0, "entropy": 1.0}),
    "hiddencut": Setting(usual={"ratio": 0.3}, strongest={"ratio": 1.0, "pool": 1.0, "weight": 100.0}),
    "layerdrop": Setting(usual={"p": 0.5}),
    "r3f": Setting(
        usual={"epsilon": 1.0, "weight": 10.0}, zero={"weight": 0}, strongest={"epsilon": 100.0, "weight": 100.0}
    ),
    "rdrop": Setting(strongest={"alpha": 100.0, "reduction": "sum"}),
    "scal": Setting(
        usual={"epsilon": 0.5, "alpha": 0.2},
        zero={"epsilon": 0, "alpha": 0},
        strongest={"epsilon": 100.0, "alpha": 100.0, "tau": 0.01},
    ),
    "supertickets": Setting(
        zero_error="tickets is empty, so nothing would be masked",
        usual={"tickets": {"heads": [[0, 1], [1, 0], [1, 2]], "feed_forwards": [1]}},
        before_lora=lambda model: Tickets(heads=[[0, 1], [1, 0], [1, 2]], feed_forwards=[1]).apply(model),
        strongest={
            "tickets": {"heads": [[site, head] for site in (0, 1) for head in range(4)], "feed_forwards": [0, 1]}
        },
    ),
    "unidrop": Setting(
        usual={"p_k": 0.2, "p_d": 0.3},
        zero={"fd1": 0, "fd2": 0, "fd3": 0, "fd4": 0, "layerdrop": 0, "p_d": 0},
        strongest={"fd1": 1, "fd2": 1, "fd3": 1, "fd4": 1, "layerdrop": 0.99, "p_k": 0, "p_d": 1},
    ),
    "attention_dropout": Setting(
        models=ADAPTED, usual={"p": 0.3}, strongest={"p": 1, "pattern": "column", "renormalise": True}
    ),
    "scores_dropout": Setting(models=ADAPTED, usual={"p": 0.3}),
    "drophead": Setting(usual={"p": 0.4}, strongest={"p": 1, "schedule": "constant"}),
    "headmask": Setting(
        usual={"share": 0.25, "by": "importance"},
        strongest={"share": 1, "by": "importance"},
    ),
    "neftune": Setting(models=FEW, strongest={"alpha": 1000.0}),
    "hype": Setting(models=FEW, usual={"sigma": 0.3}),
    "confidence_penalty": Setting(models=FEW, usual={"beta": 0.5}),
    "label_smoothing": Setting(models=FEW, usual={"epsilon": 0.3}),
    "sam": Setting(models=FEW, usual={"rho": 0.5}, strongest={"rho": 5.0}),
    "asam": Setting(models=FEW, strongest={"rho": 5.0, "eta": 1.0}),
    "freelb": Setting(
        models=FEW,
        usual={"epsilon": 0.5, "step_size": 0.3},
        strongest={"epsilon": 100.0, "step_size": 50.0, "steps": 4},
    ),
    "smart": Setting(
        models=FEW,
        usual={"epsilon": 0.3, "sigma": 0.1, "step_size": 0.2},
        zero={"weight": 0, "mu": 0},
        strongest={"epsilon": 100.0, "sigma": 100.0, "step_size": 100.0, "weight": 100.0, "mu": 100.0, "steps": 2},
    ),
    "lora_dropout": Setting(models=("bert_lora",), usual={"samples": 2}, strongest={"p": 0.99, "samples": 3}),
    "hiddenkey": Setting(
        models=FEW,
        usual={"p_key": 0.3, "p_hidden": 0.3},
        zero={"p_key": 0, "p_hidden": 0, "alpha": 0},
        strongest={"p_key": 1, "p_hidden": 0.99, "alpha": 100.0},
    ),
    "cutoff": Setting(models=FEW, usual={"ratio": 0.3}, strongest={"ratio": 1.0, "weight": 100.0, "kind": "token"}),
    "hidden_mixup": Setting(models=ONE, usual={"alpha": 1.0}),
    "supcon": Setting(models=ONE, usual={"weight": 0.5}, strongest={"weight": 1.0, "tau": 0.01, "reduction": "sum"}),
    "softtriple": Setting(
        models=ONE,
        usual={"weight": 0.5, "centers": 3},
        strongest={"weight": 1.0, "scale": 100.0, "gamma": 0.01, "margin": 1.0, "tau": 100.0, "lr": 1.0},
    ),
    "agm": Setting(usual={"share": 0.3}, zero={"weight": 0}, strongest={"weight": 100.0, "share": 1.0}),
    # by "perturbation" only where there is dropout
    "bi_drop": Setting(models=("bert", "gpt2", "bart"), usual={"p": 0.4}, zero={"p": 1.0}, strongest={"p": 0.01}),
    "functional_sam": Setting(models=FEW, usual={"rho": 0.5}, strongest={"rho": 5.0}),
    "structure_mask": Setting(columns=structure),
    # averages and baselines of fine-tuning
    "ema": Setting(usual={"decay": 0.5}, strongest={"decay": 0.9999, "warmup": False}),
    "l2_sp": Setting(zero={"alpha": 0, "beta": 0}, strongest={"alpha": 100.0, "beta": 100.0}),
    "reinit": Setting(zero={"blocks": 0}, strongest={"blocks": 2}, lora_error="is not trained"),
    "llrd": Setting(models=FEW, usual={"decay": 0.3}, zero={"decay": 1}, strongest={"decay": 0.001}),
    "freeze": Setting(
        models=FEW, usual={"blocks": 1}, zero={"blocks": 0, "embeddings": False}, strongest={"blocks": 2}
    ),
    "lp_ft": Setting(models=ONE, usual={"share": 0.5}, lora_error="has no head"),
    "wise_ft": Setting(models=ONE, usual={"alpha": 0.4}, zero={"alpha": 1}, strongest={"alpha": 0}),
    "deni": Setting(
        models=ONE,
        usual={"models": 3, "noise": 0.1, "noise_on": "trained", "start": 0.5, "end": 1, "every": 0.5},
        zero={"models": 1},
        strongest={"models": 3, "noise": 10.0, "noise_on": "trained", "start": 0, "end": 1, "every": 0.1},
    ),
    "swa": Setting(usual={"start": 0.3}, zero={"start": 1}, strongest={"start": 0}),
}


def derived(name: str) -> Setting:
    """The row of a method. Without `zero` or `strongest`, its first number has its lowest or its highest value."""
    row = ROWS.get(name, Setting())
    for number in dataclasses.fields(METHODS[name]):
        bounds = hyper_of(number)
        if bounds is not None and number.type in ("Strength", "float"):
            highest = bounds.high - 0.01 if bounds.is_below else min(bounds.high, 100.0)
            zero, strongest = ({number.name: float(value)} for value in (bounds.low, highest))
            return dataclasses.replace(row, zero=row.zero or zero, strongest=row.strongest or strongest)
    return row


# in the order of the rows, and then those without a row
SETTINGS = {name: derived(name) for name in {**ROWS, **METHODS}}


def bert_for(*methods: str | None) -> str:
    """The BERT of `zoo` that all of these methods work on: one with adapters where a method needs them."""
    needs_adapters = any(method is not None and SETTINGS[method].models == ("bert_lora",) for method in methods)
    return "bert_lora" if needs_adapters else "bert"
