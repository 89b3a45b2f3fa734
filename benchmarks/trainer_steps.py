"""Time and peak memory of a training step inside `Trainer.train()`, with dataloader, clipping, optimizer and callbacks.

    python -m benchmarks.trainer_steps                              # the four sizes, RoBERTa-base shapes, bf16
    python -m benchmarks.trainer_steps --sizes 16x128 --only "stock plain" "addrop captured"
    python -m benchmarks.trainer_steps --family                     # every method, captured, at 16x128
    python -m benchmarks.trainer_steps --lengths                    # 8192 tokens in batches of 512 to 8192 tokens

"train ms" is the time of a step in an undisturbed run: the mean over a window of steps, then the median over windows.
"step ms" is the time from `on_step_begin` to `on_step_end`, with a synchronization at both, so without the dataloader:
the median over steps. "addrop published" is AD-DROP as in the authors' code (a backward for each layer) in a stock
Trainer. A window of AttendOut contains one update of the generator. Integrated gradients are timed only at the first
two sizes. "faster" is the speed-up over "addrop published"; the floor counts matrix products, in multiples of a plain
step.

With `--lengths`, "addrop captured, bias" is AD-DROP with its masks as biases at every length; "addrop captured" reads
them as bits where the library does.

With `--family` the measurements are repeated in rounds, each of which measures every method once, so that a slow moment
of the machine does not fall on one method alone. "train ms" is then the median over the rounds, and "spread" is the
difference of the largest and the smallest in percent of it. "aim" is the most that a method should take, in multiples
of a captured plain step.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
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
from attendrop.kernels.bits_attention import serving
from attendrop.kernels.bits_attention.api import SHORTEST
from attendrop.methods import parse_method

from .published import PublishedMasks
from .records import RESULTS, append, conditions

WARM_UP = 4  # steps
IGA = ("16x47", "16x128")  # where integrated gradients are timed


# The sizes of `--lengths`, and what is measured there.
LENGTHS = ("16x512", "8x1024", "4x2048", "2x4096", "1x8192")
AT_LENGTHS = ("stock plain", "plain captured", "addrop captured", "addrop captured, bias")

positions = 514  # of the models; longer batches need more


def make_model(attention: str = "sdpa", layers: int = 12) -> Any:
    """A model with the shapes of RoBERTa-base."""
    torch.manual_seed(0)
    config = transformers.RobertaConfig(
        vocab_size=50265, max_position_embeddings=positions, type_vocab_size=1, num_hidden_layers=layers,
        attn_implementation=attention,
    )  # fmt: skip
    with torch.device("cuda"):
        return transformers.RobertaForSequenceClassification(config)


class RandomSentences(torch.utils.data.Dataset):
    """Random tokens with random labels."""

    def __init__(self, count: int, length: int) -> None:
        g = torch.Generator().manual_seed(1)
        self.ids = torch.randint(1000, 30000, (count, length), generator=g).tolist()
        self.labels = torch.randint(0, 2, (count,), generator=g).tolist()

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"input_ids": self.ids[i], "attention_mask": [1] * len(self.ids[i]), "labels": self.labels[i]}


class StepTimer(TrainerCallback):
    """Times single steps, with a synchronization before and after each, and then windows of undisturbed steps.

    Args:
        single: How many single steps to time, after the warm-up.
        length: The number of steps in a window.
        windows: How many windows to time, after a first one that does not count.
    """

    def __init__(self, single: int, length: int, windows: int) -> None:
        self.last_single, self.length = WARM_UP + single, length
        self.steps = self.last_single + length * (windows + 1)
        self.single: list[float] = []
        self.window: list[float] = []
        self.start = 0.0

    def now(self) -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step < self.last_single:
            self.start = self.now()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        step = state.global_step
        if step <= self.last_single:
            seconds = self.now() - self.start
            if step > WARM_UP:
                self.single.append(seconds)
        elif (step - self.last_single) % self.length == 0:
            now = self.now()
            self.window.append((now - self.start) / self.length)
            self.start = self.now()


class Published(Trainer):
    """AD-DROP as in the authors' code, in a stock Trainer."""

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


def stock(**arguments: Any) -> Trainer:
    return Trainer(make_model(), **arguments)


def published(**arguments: Any) -> Trainer:
    return Published(make_model("eager"), **arguments)


def with_step(step: str, *methods: Callable[[], Any]) -> Callable[..., Trainer]:
    """A function that creates a trainer with these methods and this kind of step."""
    return lambda **arguments: RegularizedTrainer(
        make_model(), regularizers=[make() for make in methods], step=step, **arguments
    )


class ByBias(RegularizedTrainer):
    """With masks as biases, also where attention would read them as bits."""

    def train(self, *args: Any, **kwargs: Any) -> Any:
        with serving(shortest=sys.maxsize):
            return super().train(*args, **kwargs)


def addrop_by_bias(**arguments: Any) -> Trainer:
    return ByBias(make_model(), regularizers=[addrop()], step="captured", **arguments)


def addrop(**fields: Any) -> ADDrop:
    return ADDrop(layers="all", cross_tuning=False, **fields)


def attendout() -> AttendOut:
    return AttendOut(T=15, reward_on="dev", samples=64)


def integrated(steps: int, rule: str) -> Callable[[], ADDrop]:
    return lambda: addrop(attribution="iga", ig_steps=steps, ig_rule=rule)


# name -> (function that creates the trainer, matrix products in thirds of a plain step)
PROVIDERS: dict[str, tuple[Callable[..., Trainer], float]] = {
    "stock plain": (stock, 3),
    "plain captured": (with_step("captured"), 3),
    "addrop captured": (with_step("captured", addrop), 5),
    "addrop captured, bias": (addrop_by_bias, 5),
    "addrop eager": (with_step("eager", addrop), 5),
    "addrop published": (published, 4 + 13 / 2),
    "attendout captured": (with_step("captured", attendout), 3 * (2 + 4 / 9)),
    "attendout eager": (with_step("eager", attendout), 3 * (2 + 4 / 9)),
    "addrop iga captured, 20-step sum": (with_step("captured", integrated(20, "sum")), 4 + 20 * 13),
    "addrop iga captured, 5 gauss nodes": (with_step("captured", integrated(5, "gauss")), 4 + 5 * 13),
}
# method -> the most that a step should take, in multiples of a captured plain step
FAMILY: dict[str, float] = {
    "rdrop": 2.1,
    "r3f": 2.1,
    "hiddencut": 2.3,
    "hiddencut:by=random": 2.3,
    "hiddencut:by=gradient": 3.0,
    "scal": 3.0,
    "layerdrop": 1.1,
    "attention_layerdrop": 1.1,
    "headmask": 1.1,
    "headmask:by=importance": 1.75,
    "scores_dropout:pattern=element": 1.25,
    "scores_dropout:pattern=column": 1.25,
    "scheduled_dropout": 1.25,
    "drophead": 1.25,
    "attention_dropout": 1.6,
    "unidrop": 1.6,
    "concrete_dropout": 1.6,
    "mixout": 1.5,
    "dropconnect": 1.5,
    "child_tuning": 1.25,
}
PROVIDERS |= {method: (with_step("captured", lambda method=method: parse_method(method)), 3) for method in FAMILY}


# Single steps, length of a window and number of windows, for the providers whose steps are slow.
FEWER = {name: (3, 3, 2) for name in PROVIDERS if "iga" in name} | {"addrop published": (8, 10, 2)}


def _ratio(title: str, digits: int = 2) -> Callable[[dict, dict], float]:
    """Of a column of two rows."""
    return lambda row, other: round(row[title] / other[title], digits)


# column -> (provider that a row is compared with, ratio of the two rows)
RATIOS: dict[str, tuple[str, Callable[[dict, dict], float]]] = {
    "x stock": ("stock plain", _ratio("train ms")),
    "x captured": ("plain captured", _ratio("train ms")),
    "faster": ("addrop published", lambda row, published: _ratio("train ms")(published, row)),
    "step x stock": ("stock plain", _ratio("step ms")),
    "step x capt": ("plain captured", _ratio("step ms")),
    "memory x capt": ("plain captured", _ratio("peak MiB", 3)),
}


def measure(name: str, batch: int, length: int, windows: int) -> dict[str, Any]:
    """Trains for a few steps and returns the times and the peak memory."""
    global positions
    positions = max(514, length + 2)
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    timer = StepTimer(*FEWER.get(name, (12, 15, windows)))
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder, max_steps=timer.steps, per_device_train_batch_size=batch, bf16=True, save_strategy="no",
            report_to=[], disable_tqdm=True, learning_rate=1e-5, logging_strategy="no",
        )  # fmt: skip
        trainer = PROVIDERS[name][0](
            args=args,
            train_dataset=RandomSentences(batch * 40, length),
            eval_dataset=RandomSentences(128, length) if "attendout" in name else None,
            callbacks=[timer],
        )
        trainer.train()
    return {
        "provider": name,
        "train ms": round(statistics.median(timer.window[1:]) * 1e3, 2),
        "step ms": round(statistics.median(timer.single) * 1e3, 2),
        "peak MiB": round((torch.cuda.max_memory_allocated() - before) / 2**20),
    }


def measure_family(rounds: int, batch: int = 16, length: int = 128) -> list[dict[str, Any]]:
    """Every method, with the plain steps, in interleaved rounds: a row for each."""
    names = ["stock plain", "plain captured", "addrop captured", *FAMILY]
    FEWER.update(dict.fromkeys(names, (2, 10, 2)))
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            found[name].append(measure(name, batch, length, 2))
    times = {name: [row["train ms"] for row in rows] for name, rows in found.items()}
    medians = {name: statistics.median(values) for name, values in times.items()}
    print(f"{'':<32} train ms  spread  x captured   aim  x stock  peak MiB")
    table = []
    for name in names:
        row = {
            "provider": name,
            "train ms": medians[name],
            "spread": round(100 * (max(times[name]) - min(times[name])) / medians[name], 1),
            "x captured": round(medians[name] / medians["plain captured"], 2),
            "aim": FAMILY.get(name, ""),
            "x stock": round(medians[name] / medians["stock plain"], 2),
            "peak MiB": max(row["peak MiB"] for row in found[name]),
            "rounds": rounds,
        }
        print(
            f"{name:<32} {row['train ms']:>8} {row['spread']:>6}% {row['x captured']:>11} {row['aim']:>5} "
            f"{row['x stock']:>8} {row['peak MiB']:>9}",
            flush=True,
        )
        table.append({**conditions("cuda", dtype="bfloat16", layers=12, batch=batch, length=length), **row})
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="*", default=["16x47", "16x128", "32x128", "64x256"], help="batch x length")
    parser.add_argument("--only", nargs="*", choices=list(PROVIDERS))
    parser.add_argument("--windows", type=int, default=6)
    parser.add_argument("--family", action="store_true", help="every method, at 16x128")
    parser.add_argument("--lengths", action="store_true", help="8192 tokens in batches of 512 to 8192 tokens")
    parser.add_argument("--bits-from", type=int, default=SHORTEST, help="keys from which on masks are read as bits")
    parser.add_argument("--rounds", type=int, default=3, help="of the family's measurements")
    parser.add_argument("--output", type=Path, help="CSV file to append to (default: in benchmarks/results)")
    options = parser.parse_args()
    transformers.utils.logging.set_verbosity_warning()
    with serving(shortest=options.bits_from):
        run(options)


def run(options: argparse.Namespace) -> None:
    if options.family:
        append(RESULTS / "trainer-steps-family-cuda.csv", measure_family(options.rounds))
        return
    table = []
    for size in LENGTHS if options.lengths else options.sizes:
        batch, length = map(int, size.split("x"))
        only = options.only or (AT_LENGTHS if options.lengths else [n for n in PROVIDERS if "bias" not in n])
        names = [n for n in only if n not in FAMILY and ("iga" not in n or size in IGA)]
        rows = [measure(name, batch, length, options.windows) for name in names]
        width = max(map(len, names))
        by_name = {row["provider"]: row for row in rows}
        print(f"{size:<{width}} " + " ".join(f"{title:>13}" for title in ("train ms", *RATIOS, "step ms", "peak MiB")))
        for row in rows:
            for title, (other, ratio) in RATIOS.items():
                row[title] = ratio(row, by_name[other]) if other in by_name else ""
            row["floor"] = round(PROVIDERS[row["provider"]][1] / 3, 2)
            shown = (row[title] for title in ("train ms", *RATIOS, "step ms", "peak MiB"))
            print(f"{row['provider']:<{width}} " + " ".join(f"{value:>13}" for value in shown), flush=True)
            table.append({**conditions("cuda", dtype="bfloat16", layers=12, batch=batch, length=length), **row})
    name = "trainer-steps-lengths-cuda.csv" if options.lengths else "trainer-steps-cuda.csv"
    append(options.output or RESULTS / name, table)


if __name__ == "__main__":
    main()
