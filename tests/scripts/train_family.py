"""Trains a tiny model with every method in turn: `torchrun --nproc_per_node 2 train_family.py FOLDER`.

Each rank writes the weights of each run to FOLDER/rank<r>.pt. Without torchrun one process takes the batches of both.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from transformers.utils import logging

from attendrop import RegularizedTrainer
from attendrop.methods import make_method
from attendrop.utils.processes import freeze_imported
from helpers.data import SGD, make_arguments, make_examples, pad
from helpers.precision import float64
from helpers.settings import SETTINGS, bert_for
from helpers.zoo import make_model

STEPS = 4
# Without it both views or passes are the same; with it every process draws its own.
NEEDS_DROPOUT = {"rdrop", "bi_drop"}


def collate(examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    batch = pad(examples)
    for setting in SETTINGS.values():
        batch |= setting.columns(batch, "usual")
    return batch


def train(method: str | None, processes: int, kind: str = "bert") -> dict[str, torch.Tensor]:
    """The weights after a few steps with one method, or with none; in float64, so that rounding plays no part."""
    with float64(), tempfile.TemporaryDirectory() as folder:
        args = make_arguments(
            folder, max_steps=STEPS, per_device_train_batch_size=8 // processes, average_tokens_across_devices=False,
            remove_unused_columns=False, **SGD,
        )  # fmt: skip
        trainer = RegularizedTrainer(
            model=make_model(kind, dropout=method in NEEDS_DROPOUT),
            args=args,
            train_dataset=make_examples("bert", 64),
            data_collator=collate if method == "structure_mask" else pad,
            regularizers=[make_method(method, SETTINGS[method].usual)] if method else [],
        )
        trainer.train()
        return {name: value.detach().clone() for name, value in trainer.model.state_dict().items()}


def main() -> None:
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    freeze_imported()
    world = int(os.environ["WORLD_SIZE"])
    results = {f"plain {kind}": train(None, world, kind) for kind in ("bert", "bert_lora")}
    results |= {method: train(method, world, bert_for(method)) for method in SETTINGS}
    torch.save(results, Path(sys.argv[1], f"rank{os.environ['RANK']}.pt"))


if __name__ == "__main__":
    main()
