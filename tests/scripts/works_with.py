"""Tries every method with LoRA, a causal language model, images, DDP and FSDP2, and writes what worked.

    python tests/scripts/works_with.py                  # all methods, which takes minutes
    python tests/scripts/works_with.py addrop rdrop     # these alone; the rows of the others stay

It trains a tiny model for two steps each time, on two CPU processes, and writes studies/results/works-with.csv, from
which `python -m docs.tables` makes the catalogue of the site. A cell is "yes", or the error.
"""

from __future__ import annotations

import csv
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

from accelerate import DistributedType, PartialState
from torch.distributed.tensor import DTensor
from transformers.utils import logging

from attendrop import METHODS, RegularizedTrainer, Regularizer
from attendrop.methods import make_method
from helpers.data import make_arguments
from helpers.settings import SETTINGS, bert_for
from helpers.zoo import make_batch, make_model, with_adapters
from studies import RESULTS

OF_IMAGES = {"attendout": {"reward_on": "cached"}}  # fields that replace those for texts
SHARDED = {"fsdp": True, "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": ["BertLayer"]}}


def train(method: str, kind: str, model: Any, **arguments: Any) -> Any:
    """The model after two steps with one method; raises where it does not work."""
    batch = make_batch(kind, size=16)
    batch |= SETTINGS[method].columns(batch, "usual") if "input_ids" in batch else {}
    examples = [{name: values[i] for name, values in batch.items()} for i in range(16)]
    fields = {**SETTINGS[method].usual, **(OF_IMAGES.get(method, {}) if "pixel_values" in batch else {})}
    with tempfile.TemporaryDirectory() as folder:
        args = make_arguments(folder, max_steps=2, **arguments)
        if "fsdp" in arguments:
            # Accelerate lets FSDP be used with several GPUs only, though nothing in it needs one.
            PartialState().distributed_type = DistributedType.MULTI_GPU
        trainer = RegularizedTrainer(
            model=model,
            args=args,
            train_dataset=examples,
            regularizers=[make_method(method, fields)],
        )
        trainer.train()
    return trainer.model


def with_lora(method: str) -> None:
    base = make_model("bert")
    SETTINGS[method].before_lora(base)
    train(method, "bert", with_adapters(base))


def on(kind: str, method: str, **arguments: Any) -> Any:
    """Trains a model without adapters, unless the method needs them."""
    kind += bert_for(method).removeprefix("bert")
    return train(method, kind, make_model(kind), **arguments)


def sharded(method: str) -> None:
    model = on("bert", method, **SHARDED)
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters()), "the weights were not sharded"


def captured(method: str) -> None:
    cls = METHODS[method]
    overrides = cls.plan is not Regularizer.plan or cls.penalty is not Regularizer.penalty
    if overrides and cls.capture_key is Regularizer.capture_key:
        raise ValueError("its plan or penalty runs in Python")


TRIALS: dict[str, Callable[[str], Any]] = {
    "LoRA": with_lora,
    "causal": functools.partial(on, "llama"),
    "images": functools.partial(on, "vit"),
    "captured": captured,
    "DDP": functools.partial(on, "bert"),
    "FSDP": sharded,
}


def outcome(trial: Callable[[str], Any], method: str) -> str:
    try:
        trial(method)
    except Exception as error:
        return " ".join(str(error).split()) or type(error).__name__
    return "yes"


def worker(file: str, methods: list[str], trials: list[str]) -> None:
    """One of the two processes. The way in which weights are shared is the same for its whole life."""
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    outcomes = {method: {name: outcome(TRIALS[name], method) for name in trials} for method in methods}
    if os.environ["RANK"] == "0":
        Path(file).write_text(json.dumps(outcomes), encoding="utf-8")


def main(methods: list[str]) -> None:
    if unknown := [name for name in methods if name not in METHODS]:
        raise SystemExit(f"there is no method {unknown[0]!r}.")
    path = RESULTS / "works-with.csv"
    with path.open(encoding="utf-8", newline="") as csv_file:
        known = {row["method"]: dict(row) for row in csv.DictReader(csv_file)}
    methods = methods or list(METHODS)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", __file__]
    outcomes: dict[str, dict[str, str]] = {method: {"method": method} for method in methods}
    for trials in ([name for name in TRIALS if name != "FSDP"], ["FSDP"]):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "cells.json")
            words = [*launch, "--worker", str(file), ",".join(methods), *trials]
            subprocess.run(words, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
            for method, cells in json.loads(file.read_text(encoding="utf-8")).items():
                outcomes[method] |= cells
    rows = known | outcomes
    with path.open("w", newline="", encoding="utf-8") as csv_file:
        writer = csv.DictWriter(csv_file, ["method", *TRIALS], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[method] for method in sorted(rows) if method in METHODS)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(sys.argv[2], sys.argv[3].split(","), sys.argv[4:])
    else:
        main(sys.argv[1:])
