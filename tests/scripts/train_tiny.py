"""Trains a tiny BERT with dropout and AD-DROP: `python train_tiny.py FOLDER [--resume] [--pause-in-step N]`.

Paused, it prints "paused" in the middle of a step, between the backward and the optimizer, and waits to be killed.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from data import make_arguments, make_examples, pad, weights_of
from transformers import TrainerCallback
from zoo import make_model

from attendrop import ADDrop, RegularizedTrainer

SAVE_STEPS = 5
STEPS_PER_EPOCH = 8
EPOCHS = 3


class Pause(TrainerCallback):
    def __init__(self, in_step: int) -> None:
        self.in_step = in_step

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.in_step:
            print("paused", flush=True)
            time.sleep(600)


def train(folder: str, resume: bool = False, pause_in_step: int | None = None) -> dict[str, torch.Tensor]:
    """The weights after training. The second epoch is AD-DROP's, and its strength rises all the time."""
    model = make_model("bert", dropout=True)
    trainer = RegularizedTrainer(
        model=model,
        args=make_arguments(folder, num_train_epochs=EPOCHS, save_strategy="steps", save_steps=SAVE_STEPS),
        train_dataset=make_examples("bert", 4 * STEPS_PER_EPOCH),
        data_collator=pad,
        regularizers=[ADDrop(p="0.3..0.8", q=0.6, layers="all", end_on="plain")],
        callbacks=[] if pause_in_step is None else [Pause(pause_in_step)],
    )
    trainer.train(resume_from_checkpoint=resume)
    return weights_of(model)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--pause-in-step", type=int)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.save(train(options.folder, options.resume, options.pause_in_step), Path(options.folder, "weights.pt"))


if __name__ == "__main__":
    main()
