"""Time and peak memory of a training step inside `Trainer.train()`: dataloader, clipping, optimizer, callbacks and all.

    python -m benchmarks.trainer_steps                              # the four sizes, RoBERTa-base shapes, bf16
    python -m benchmarks.trainer_steps --sizes 16x128 --only "stock plain" "addrop captured"

`train` is the time of a step in a run that nobody interrupts: the mean over a window of steps, the median over windows.
`step` is the time from the Trainer's step begin to its step end with the GPU idle at both, the median over steps: no
dataloader. The published way is AD-DROP by the letter (a backward for each layer) in a stock Trainer. A window of
AttendOut has one dropout step. Integrated gradients are timed at the first two sizes. "faster" is against the
published way; the floor counts matrix products, in multiples of a plain step.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import Trainer, TrainerCallback, TrainingArguments

from attendrop import ADDrop, AttendOut, RegularizedTrainer

from .published import PublishedMasks
from .records import RESULTS, append, conditions

WARM = 4
IGA = ("16x47", "16x128")  # where integrated gradients are timed


def base_shaped(attention: str = "sdpa", layers: int = 12) -> Any:
    torch.manual_seed(0)
    config = transformers.RobertaConfig(
        vocab_size=50265, max_position_embeddings=514, type_vocab_size=1, num_hidden_layers=layers,
        attn_implementation=attention,
    )  # fmt: skip
    with torch.device("cuda"):
        return transformers.RobertaForSequenceClassification(config)


class Sentences(torch.utils.data.Dataset):
    def __init__(self, count: int, length: int) -> None:
        g = torch.Generator().manual_seed(1)
        self.ids = torch.randint(1000, 30000, (count, length), generator=g).tolist()
        self.labels = torch.randint(0, 2, (count,), generator=g).tolist()

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"input_ids": self.ids[i], "attention_mask": [1] * len(self.ids[i]), "labels": self.labels[i]}


class Watch(TrainerCallback):
    """Single steps between two synchronisations, then whole windows."""

    def __init__(self, single: int, length: int, windows: int) -> None:
        self.alone, self.length = WARM + single, length
        self.steps = self.alone + length * (windows + 1)  # the first window begins where steps stop being alone
        self.single: list[float] = []
        self.window: list[float] = []
        self.start = 0.0

    def now(self) -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step < self.alone:
            self.start = self.now()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        done = state.global_step
        if done <= self.alone:
            taken = self.now() - self.start
            if done > WARM:
                self.single.append(taken)
        elif (done - self.alone) % self.length == 0:
            now = self.now()
            self.window.append((now - self.start) / self.length)
            self.start = self.now()


class Published(Trainer):
    """AD-DROP as its public code does it, in a stock Trainer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.masks = PublishedMasks(self.model.roberta.encoder.layer)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        model.train()
        inputs = self._prepare_inputs(inputs)
        self.masks.choose(model, inputs)
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.masks.clear()
        return loss


def stock(**more: Any) -> Trainer:
    return Trainer(base_shaped(), **more)


def published(**more: Any) -> Trainer:
    return Published(base_shaped("eager"), **more)


def with_step(step: str, *methods: Callable[[], Any]) -> Callable[..., Trainer]:
    return lambda **more: RegularizedTrainer(
        base_shaped(), regularizers=[make() for make in methods], step=step, **more
    )


def addrop(**fields: Any) -> ADDrop:
    return ADDrop(layers="all", cross_tuning=False, **fields)


def attendout() -> AttendOut:
    return AttendOut(T=15, reward_on="dev", samples=64)


def integrated(steps: int, rule: str) -> Callable[[], ADDrop]:
    return lambda: addrop(attribution="iga", ig_steps=steps, ig_rule=rule)


# name -> (how to make the trainer, matrix products in thirds of a plain step)
PROVIDERS: dict[str, tuple[Callable[..., Trainer], float]] = {
    "stock plain": (stock, 3),
    "plain captured": (with_step("captured"), 3),
    "addrop captured": (with_step("captured", addrop), 5),
    "addrop eager": (with_step("eager", addrop), 5),
    "addrop published": (published, 4 + 13 / 2),
    "attendout captured": (with_step("captured", attendout), 3 * (2 + 4 / 9)),
    "attendout eager": (with_step("eager", attendout), 3 * (2 + 4 / 9)),
    "addrop iga captured, 20-step sum": (with_step("captured", integrated(20, "sum")), 4 + 20 * 13),
    "addrop iga captured, 5 gauss nodes": (with_step("captured", integrated(5, "gauss")), 4 + 5 * 13),
}
# single steps, length of a window, and windows, where a step takes long
FEWER = {name: (3, 3, 2) for name in PROVIDERS if "iga" in name} | {"addrop published": (8, 10, 2)}


def _by(title: str, digits: int = 2) -> Callable[[dict, dict], float]:
    return lambda row, other: round(row[title] / other[title], digits)


# column -> the provider that a row is compared with, and how
RATIOS: dict[str, tuple[str, Callable[[dict, dict], float]]] = {
    "x stock": ("stock plain", _by("train ms")),
    "x captured": ("plain captured", _by("train ms")),
    "faster": ("addrop published", lambda row, published: _by("train ms")(published, row)),
    "step x stock": ("stock plain", _by("step ms")),
    "step x capt": ("plain captured", _by("step ms")),
    "memory x capt": ("plain captured", _by("peak MiB", 3)),
}


def measured(name: str, batch: int, length: int, windows: int) -> dict[str, Any]:
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    watch = Watch(*FEWER.get(name, (12, 15, windows)))
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder, max_steps=watch.steps, per_device_train_batch_size=batch, bf16=True, save_strategy="no",
            report_to=[], disable_tqdm=True, learning_rate=1e-5, logging_strategy="no",
        )  # fmt: skip
        trainer = PROVIDERS[name][0](
            args=args,
            train_dataset=Sentences(batch * 40, length),
            eval_dataset=Sentences(128, length) if "attendout" in name else None,
            callbacks=[watch],
        )
        trainer.train()
    return {
        "provider": name,
        "train ms": round(statistics.median(watch.window[1:]) * 1e3, 2),
        "step ms": round(statistics.median(watch.single) * 1e3, 2),
        "peak MiB": round((torch.cuda.max_memory_allocated() - before) / 2**20),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="*", default=["16x47", "16x128", "32x128", "64x256"], help="batch x length")
    parser.add_argument("--only", nargs="*", choices=list(PROVIDERS))
    parser.add_argument("--windows", type=int, default=6)
    parser.add_argument("--output", type=Path, default=RESULTS / "trainer-steps-cuda.csv")
    options = parser.parse_args()
    transformers.utils.logging.set_verbosity_warning()
    table = []
    for size in options.sizes:
        batch, length = map(int, size.split("x"))
        names = [name for name in options.only or PROVIDERS if "iga" not in name or size in IGA]
        rows = [measured(name, batch, length, options.windows) for name in names]
        width = max(map(len, names))
        by_name = {row["provider"]: row for row in rows}
        print(f"{size:<{width}} " + " ".join(f"{title:>13}" for title in ("train ms", *RATIOS, "step ms", "peak MiB")))
        for row in rows:
            for title, (other, quotient) in RATIOS.items():
                row[title] = quotient(row, by_name[other]) if other in by_name else ""
            row["floor"] = round(PROVIDERS[row["provider"]][1] / 3, 2)
            shown = (row[title] for title in ("train ms", *RATIOS, "step ms", "peak MiB"))
            print(f"{row['provider']:<{width}} " + " ".join(f"{value:>13}" for value in shown), flush=True)
            table.append({**conditions("cuda", dtype="bfloat16", layers=12, batch=batch, length=length), **row})
    append(options.output, table)


if __name__ == "__main__":
    main()
