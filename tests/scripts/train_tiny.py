"""Trains a tiny BERT with dropout: `python train_tiny.py METHOD FOLDER [--resume] [--pause-in-step N]`.

The final weights of the model and state of the method are written to FOLDER/end.safetensors and FOLDER/end.json. With
--pause-in-step it prints "paused" between the backward pass and the optimizer step, and waits to be killed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parents[1]))

from transformers import TrainerCallback

from attendrop import KeepsState, RegularizedTrainer, parse_method
from helpers.data import make_arguments, make_examples, pad, weights_of
from helpers.zoo import make_model

SAVE_STEPS = 5
STEPS_PER_EPOCH = 8
EPOCHS = 3
METHODS = {
    # the second epoch is AD-DROP's, and its strength rises all the time
    "addrop": "addrop:p=0.3..0.8,q=0.6,layers=all,end_on=plain",
    "dev": "attendout:T=4,init_drop=0.4,samples=8,reward_on=dev",
    "cached": "attendout:T=4,init_drop=0.4,reward_on=cached,monte_carlo=2",
}


class Pause(TrainerCallback):
    def __init__(self, in_step: int) -> None:
        self.in_step = in_step

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.in_step:
            print("paused", flush=True)
            time.sleep(600)


def train(method: str, folder: str, resume: bool = False, pause_in_step: int | None = None) -> None:
    model = make_model("bert", dropout=True)
    regularizer = parse_method(METHODS[method])
    trainer = RegularizedTrainer(
        model=model,
        args=make_arguments(folder, num_train_epochs=EPOCHS, save_strategy="steps", save_steps=SAVE_STEPS),
        train_dataset=make_examples("bert", 4 * STEPS_PER_EPOCH),
        eval_dataset=make_examples("bert", 12, seed=8),
        data_collator=pad,
        regularizers=[regularizer],
        callbacks=[] if pause_in_step is None else [Pause(pause_in_step)],
    )
    trainer.train(resume_from_checkpoint=resume)
    tensors, values = regularizer.state() if isinstance(regularizer, KeepsState) else ({}, {})
    tensors = {**{f"model.{name}": value for name, value in weights_of(model).items()}, **tensors}
    save_file(
        {name: value.detach().contiguous().clone() for name, value in tensors.items()}, f"{folder}/end.safetensors"
    )
    Path(folder, "end.json").write_text(json.dumps(values), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("folder")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--pause-in-step", type=int)
    options = parser.parse_args()
    torch.set_num_threads(1)
    train(options.method, options.folder, options.resume, options.pause_in_step)


if __name__ == "__main__":
    main()
