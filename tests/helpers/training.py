"""Short training runs of the tiny models, and a comparison of their weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainingArguments

from attendrop import RegularizedTrainer

from . import zoo
from .settings import SETTINGS


def train(
    folder: Path,
    kind: str,
    regularizers: list[Any] | None,
    resume: bool | str = False,
    model: Any = None,
    strength: str = "usual",
    **arguments: Any,
) -> tuple[Any, Trainer]:
    """Trains for six steps with dropout on; returns the model and its trainer. `None` gives the stock Trainer."""
    batch = zoo.make_batch(kind, size=12, seed=4)
    for regularizer in regularizers or []:
        batch |= SETTINGS[regularizer.name].columns(batch, strength)
    data = [{k: v[i] for k, v in batch.items()} for i in range(12)]
    model = zoo.make_model(kind) if model is None else model
    options = {
        "per_device_train_batch_size": 4, "num_train_epochs": 2, "learning_rate": 1e-3, "save_strategy": "no",
        "logging_steps": 1, "use_cpu": True, "report_to": [], "disable_tqdm": True, "seed": 3,
    }  # fmt: skip
    args = TrainingArguments(folder, **{**options, **arguments})
    stock = regularizers is None
    trainer = (
        Trainer(model=model, args=args, train_dataset=data)
        if stock
        else RegularizedTrainer(model=model, args=args, train_dataset=data, regularizers=regularizers)
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer.model, trainer


def same_parameters(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
