"""The cost of a safe checkpoint: seconds of a save by a plain Trainer and by RegularizedTrainer, and of verifying it.

    python -m benchmarks.checkpoint_cost [--megabytes 400] [--repeats 5] [--folder .]

A plain Trainer returns when the operating system has the data in memory. RegularizedTrainer waits for the disk, and
computes the checksum of every file. To see what each of them costs, the plain save is also followed by `sync`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from attendrop import RegularizedTrainer
from attendrop.utils.manifest import find_problem


def make_trainer(of: type, folder: Path, megabytes: int) -> Any:
    """A Trainer after one step of AdamW, whose state has twice the size of the weights."""
    config = BertConfig(
        hidden_size=256, num_hidden_layers=1, num_attention_heads=4, intermediate_size=512,
        vocab_size=megabytes * 1_000_000 // 4 // 256,
    )  # fmt: skip
    data = [{"input_ids": torch.arange(8), "labels": torch.tensor(i % 2)} for i in range(4)]
    args = TrainingArguments(
        str(folder), max_steps=1, save_strategy="no", save_total_limit=1, report_to="none", use_cpu=True
    )
    trainer = of(model=BertForSequenceClassification(config), args=args, train_dataset=data)
    trainer.train()
    return trainer


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=400, help="size of the weights")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", default=".")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        classes = (Trainer, RegularizedTrainer)
        trainers = {of.__name__: make_trainer(of, Path(name, of.__name__), options.megabytes) for of in classes}
        measured: dict[str, list[float]] = {}

        def measure(what: str, work: Callable[[], object]) -> None:
            os.sync()
            measured.setdefault(what, []).append(seconds(work))

        for _ in range(options.repeats):
            for what, trainer in trainers.items():
                checkpoint = Path(name, what, "checkpoint-1")
                shutil.rmtree(checkpoint, ignore_errors=True)
                measure(what, lambda trainer=trainer: trainer._save_checkpoint(trainer.model, None))
            shutil.rmtree(Path(name, "Trainer", "checkpoint-1"))
            plain = trainers["Trainer"]
            measure("Trainer, then sync", lambda plain=plain: (plain._save_checkpoint(plain.model, None), os.sync()))
            measure("verify on resume", lambda checkpoint=checkpoint: find_problem(checkpoint))
        size = sum(path.stat().st_size for path in checkpoint.rglob("*")) / 1e6
    medians = {what: round(statistics.median(times), 2) for what, times in measured.items()}
    print(json.dumps({"megabytes of the checkpoint": round(size), "seconds": medians}, indent=1))


if __name__ == "__main__":
    main()
