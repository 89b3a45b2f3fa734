"""Time and peak memory of a training step inside `Trainer.train()`, with dataloader, clipping, optimizer and callbacks.

    python -m benchmarks.trainer_steps --part sizes     # RoBERTa-base shapes at four sizes, bf16
    python -m benchmarks.trainer_steps --part family    # the papers' methods, captured, at 16x128
    python -m benchmarks.trainer_steps --part baselines # averages, fine-tuning baselines and further methods, the same
    python -m benchmarks.trainer_steps --part long      # 8,192 tokens in a batch, texts of 512 to 8,192 tokens
    python -m benchmarks.trainer_steps --part models    # MiniLM, MPNet, DeBERTa-v3, ModernBERT; Qwen2-0.5B with LoRA
    python -m benchmarks.trainer_steps --part peers     # beside torch.compile and the authors' code
    python -m benchmarks.trainer_steps --part long models
    python -m benchmarks.trainer_steps --model "qwen2-0.5b lora" --sizes 4x2048 --only "plain captured" rdrop

The measurements are repeated in rounds, each of which measures every step once, so that a slow moment of the machine
does not fall on one of them alone. "train ms" is the time of a step in an undisturbed run: the mean over a window of
steps, then the median over all windows of all rounds. "spread" is the difference of the largest and the smallest round
in percent of it. "step ms" is the time from `on_step_begin` to `on_step_end`, with a synchronization at both, so
without the dataloader: the median over steps. "addrop published" is AD-DROP as in the authors' code (a backward for
each layer) in a stock Trainer. "addrop captured, bits" has masks that attention reads as bits at every length,
"addrop captured, biases" at none. In steps with "casts by layer" each linear layer converts its own weights to half
precision. A window of AttendOut contains one update of the generator. "faster" is the speed-up over "addrop published";
the floor (floors.py) and "aim", the most that a step should take, are multiples of a captured plain step of the same
model. "products ms" is the time of the matrix products of a plain step alone (products.py). "stock compiled" is the
Trainer with its `torch_compile`.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import transformers
from torch import Tensor
from transformers import Trainer, TrainerCallback, TrainingArguments

from attendrop import ADDrop, AttendOut, RDrop, RegularizedTrainer
from attendrop.capture import half_weights
from attendrop.kernels.bitmask_attention import override_limits
from attendrop.methods import parse_method
from attendrop.utils.processes import freeze_imported

from .floors import floor_as_published, floor_of
from .products import products_ms
from .published import PublishedMasks
from .records import RESULTS, append, conditions, spread_of
from .shapes import MODELS, RandomTexts, make_model

WARM_UP = 4  # steps


@dataclass(frozen=True)
class Setting:
    """What is trained."""

    model: str
    batch: int
    length: int
    device: str = "cuda"

    def make_model(self, attention: str = "sdpa") -> Any:
        return make_model(self.model, self.length, self.device, attention)


class StepTimer(TrainerCallback):
    """Times single steps, with a synchronization before and after each, and then windows of undisturbed steps.

    Args:
        single: How many single steps to time, after the warm-up.
        length: The number of steps in a window.
        windows: How many windows to time, after a first one that does not count.
    """

    def __init__(self, single: int, length: int, windows: int) -> None:
        self.last_single, self.length = WARM_UP + single, length
        self.steps = self.last_single + length * (windows + 1) + 1  # the last one is not timed: LP-FT's is another step
        self.single: list[float] = []
        self.window: list[float] = []
        self.start = 0.0

    def now(self) -> float:
        if torch.cuda.is_available():
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


Make = Callable[..., Trainer]  # creates a trainer for a setting


def stock(setting: Setting, **arguments: Any) -> Trainer:
    return Trainer(setting.make_model(), **arguments)


def published(setting: Setting, **arguments: Any) -> Trainer:
    return Published(setting.make_model("eager"), **arguments)


def with_step(step: str, *methods: Callable[[], Any], cls: type[RegularizedTrainer] = RegularizedTrainer) -> Make:
    """A function that creates a trainer with these methods and this kind of step."""

    def make(setting: Setting, **arguments: Any) -> Trainer:
        possible = step if setting.device == "cuda" else "auto"
        regularizers = [method() for method in methods]
        return cls(setting.make_model(), regularizers=regularizers, capture=possible, **arguments)

    return make


class BitsFrom(RegularizedTrainer):
    """With masks that attention reads as bits from `shortest` keys on."""

    shortest = 1

    def train(self, *args: Any, **kwargs: Any) -> Any:
        with override_limits(shortest=self.shortest):
            return super().train(*args, **kwargs)


def addrop_with_bits_from(shortest: int) -> Make:
    def make(setting: Setting, **arguments: Any) -> Trainer:
        trainer = BitsFrom(setting.make_model(), regularizers=[addrop()], capture="captured", **arguments)
        trainer.shortest = shortest
        return trainer

    return make


class AutocastsWeights(RegularizedTrainer):
    """Its captured steps leave all weights to autocast."""

    def train(self, *args: Any, **kwargs: Any) -> Any:
        with patch.object(half_weights, "LINEAR_FUNCTIONS", ()):
            return super().train(*args, **kwargs)


def addrop(**fields: Any) -> ADDrop:
    return ADDrop(layers="all", cross_tuning=False, **fields)


def attendout() -> AttendOut:
    return AttendOut(T=15, reward_on="dev", samples=64)


def integrated(steps: int, rule: str) -> Callable[[], ADDrop]:
    return lambda: addrop(attribution="iga", ig_steps=steps, ig_rule=rule)


BY_LAYER = "casts by layer"
# name -> (function that creates the trainer, floor in multiples of a plain step)
PROVIDERS: dict[str, tuple[Make, float]] = {
    "stock plain": (stock, floor_of()),
    "stock compiled": (stock, floor_of()),
    "stock compiled, reduce-overhead": (stock, floor_of()),
    "plain captured": (with_step("captured"), floor_of()),
    "addrop captured": (with_step("captured", addrop), floor_of(addrop())),
    "addrop captured, bits": (addrop_with_bits_from(1), floor_of(addrop())),
    "addrop captured, biases": (addrop_with_bits_from(sys.maxsize), floor_of(addrop())),
    "addrop first layer captured": (with_step("captured", lambda: ADDrop(cross_tuning=False)), floor_of(ADDrop())),
    "addrop eager": (with_step("eager", addrop), floor_of(addrop())),
    "addrop published": (published, floor_as_published()),
    "attendout captured": (with_step("captured", attendout), floor_of(attendout())),
    "attendout eager": (with_step("eager", attendout), floor_of(attendout())),
    f"plain captured, {BY_LAYER}": (with_step("captured", cls=AutocastsWeights), floor_of()),
    f"addrop captured, {BY_LAYER}": (with_step("captured", addrop, cls=AutocastsWeights), floor_of(addrop())),
    f"rdrop, {BY_LAYER}": (with_step("captured", RDrop, cls=AutocastsWeights), floor_of(RDrop())),
    **{
        f"addrop iga captured, {name}": (with_step("captured", method), floor_of(method()))
        for name, method in {"20-step sum": integrated(20, "sum"), "5 gauss nodes": integrated(5, "gauss")}.items()
    },
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
BASELINES: dict[str, float] = {
    "ema": 1.05,
    "swa:start=0": 1.05,
    "wise_ft:alpha=0.5": 1.05,
    "deni:models=3,ensemble=0": 3.15,  # all steps train the copies
    "l2_sp": 1.1,
    "llrd": 1.05,
    "reinit": 1.05,
    "freeze": 1.0,
    "lp_ft:share=0.99": 0.5,  # all steps but the last one train the head alone
    "sam": 2.1,
    "asam": 2.1,
    "freelb:steps=2": 3.0,
    "freelb:steps=3": 4.0,
    "smart": 4.7,
    "neftune": 1.1,
    "hype": 1.1,
    "hidden_mixup": 1.1,
    "cutoff": 2.2,
    "label_smoothing": 1.1,
    "confidence_penalty": 1.1,
}
WITH_LORA: dict[str, float] = {"hiddenkey": 2.3, "lora_dropout": 1.2}  # in multiples of a plain step with LoRA
AIMS = FAMILY | BASELINES | WITH_LORA
PROVIDERS |= {
    method: (with_step("captured", lambda method=method: parse_method(method)), floor_of(parse_method(method)))
    for method in AIMS
}


# name of a provider -> its training arguments beside the usual ones
ARGUMENTS: dict[str, dict[str, Any]] = {
    "stock compiled": {"torch_compile": True},
    "stock compiled, reduce-overhead": {"torch_compile": True, "torch_compile_mode": "reduce-overhead"},
}

# Single steps, length of a window and number of windows in a round; fewer where steps are slow: with many tokens in a
# batch, or by the provider.
ROUND, ROUND_OF_MANY = (2, 6, 2), (1, 3, 2)
MANY_TOKENS = 4096
FEWER = {
    "addrop eager": (1, 4, 1),
    "addrop published": (1, 4, 1),
    **{name: (1, 2, 1) for name in PROVIDERS if "iga" in name},
}
ATTENDOUT = (1, 15, 1)  # a window contains one update


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


def trained(name: str, setting: Setting, timer: StepTimer) -> None:
    """Trains for as many steps as the timer needs."""
    on_gpu, more = setting.device == "cuda", ARGUMENTS.get(name, {})
    if more:
        torch.compiler.reset()  # what was compiled for another mode
    # The Trainer hands `torch_compile` on in environment variables, which later Trainers would read.
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ):
        args = TrainingArguments(
            folder, max_steps=timer.steps, per_device_train_batch_size=setting.batch, bf16=on_gpu, use_cpu=not on_gpu,
            save_strategy="no", report_to=[], disable_tqdm=True, learning_rate=1e-5, logging_strategy="no", **more,
        )  # fmt: skip
        trainer = PROVIDERS[name][0](
            setting,
            args=args,
            train_dataset=RandomTexts(setting.batch * 40, setting.length, setting.model),
            eval_dataset=RandomTexts(128, setting.length, setting.model) if "attendout" in name else None,
            callbacks=[timer],
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()


def measure(name: str, setting: Setting) -> dict[str, Any]:
    """Trains for a few steps and returns the times of the windows and of the single steps, and the peak memory."""
    gc.collect()
    on_gpu = setting.device == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if on_gpu else 0
    usual = ROUND if setting.batch * setting.length < MANY_TOKENS else ROUND_OF_MANY
    timer = StepTimer(*FEWER.get(name, ATTENDOUT if "attendout" in name else usual))
    trained(name, setting, timer)
    peak = torch.cuda.max_memory_allocated() - before if on_gpu else 0
    return {"windows": timer.window[1:], "single": timer.single, "peak": peak}


def measured(names: list[str], setting: Setting, rounds: int) -> list[dict[str, Any]]:
    """A row for each provider, measured in interleaved rounds; one that fails is named and left out."""
    try:
        products: Any = round(products_ms(setting.model, setting.batch, setting.length, setting.device), 3)
    except (RuntimeError, ValueError) as error:
        print(f"the matrix products alone are left out: {type(error).__name__}: {error}", flush=True)
        products = ""
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in list(results):
            try:
                results[name].append(measure(name, setting))
            except (RuntimeError, ValueError) as error:
                print(f"{name} is left out: {type(error).__name__}: {error}", flush=True)
                del results[name]
    table = []
    for name, of in results.items():
        per_round = [statistics.median(one["windows"]) for one in of]
        train = statistics.median(time for one in of for time in one["windows"])
        table.append(
            {
                "provider": name,
                "train ms": round(train * 1e3, 2),
                "spread": spread_of(per_round, train),
                "rounds": rounds,
                "step ms": round(statistics.median(time for one in of for time in one["single"]) * 1e3, 2),
                "peak MiB": round(max(one["peak"] for one in of) / 2**20),
            }
        )
    by_name = {row["provider"]: row for row in table}
    for row in table:
        for title, (other, ratio) in RATIOS.items():
            has_both = other in by_name and (by_name[other]["peak MiB"] or title != "memory x capt")
            row[title] = ratio(row, by_name[other]) if has_both else ""
        row["floor"] = round(PROVIDERS[row["provider"]][1], 2)
        row["aim"] = AIMS.get(row["provider"], "")
        row["products ms"] = products
    return table


PLAIN = ["stock plain", "plain captured"]
CAPTURED = [*PLAIN, "addrop captured", "attendout captured"]
EAGER = ["addrop eager", "addrop published"]
IGA = "addrop iga captured, 5 gauss nodes"
PEERS = ["stock plain", *ARGUMENTS, "plain captured", "addrop published", "addrop captured"]
LONG = [*PLAIN, "addrop captured", "addrop first layer captured"]
# part -> (file of its results, rounds, [(model, size, providers)])
PARTS: dict[str, tuple[str, int, list[tuple[str, str, list[str]]]]] = {
    "sizes": (
        "trainer-steps-cuda.csv",
        2,
        [
            ("roberta-base", "16x47", CAPTURED),
            ("roberta-base", "16x128", [*CAPTURED, *EAGER, "attendout eager", IGA]),
            ("roberta-base", "32x128", CAPTURED),
            ("roberta-base", "64x256", [*CAPTURED, *EAGER]),
        ],
    ),
    "family": (
        "trainer-steps-family-cuda.csv",
        2,
        [("roberta-base", "16x128", [*PLAIN, "addrop captured", *FAMILY])],
    ),
    "baselines": (
        "trainer-steps-baselines-cuda.csv",
        2,
        [
            ("roberta-base", "16x128", [*PLAIN, *BASELINES]),
            ("roberta-base lora", "16x128", [*PLAIN, *WITH_LORA]),
        ],
    ),
    "peers": ("trainer-steps-peers-cuda.csv", 1, [("roberta-base", "16x128", PEERS)]),
    "long": (
        "trainer-steps-models-cuda.csv",
        2,
        [("roberta-base", size, LONG) for size in ("16x512", "8x1024", "4x2048", "2x4096", "1x8192")],
    ),
    "models": (
        "trainer-steps-models-cuda.csv",
        2,
        [
            *((model, "16x128", [*PLAIN, "addrop captured"]) for model in
              ("minilm", "mpnet-base", "deberta-v3-base", "modernbert-base")),
            *(("qwen2-0.5b lora", size, [*PLAIN, "addrop captured"]) for size in ("8x512", "4x2048")),
        ],
    ),
}  # fmt: skip


def show(setting: Setting, table: list[dict[str, Any]]) -> None:
    titles = ("train ms", "spread", *RATIOS, "floor", "aim", "step ms", "peak MiB")
    name = f"{setting.model}, {setting.batch}x{setting.length}"
    width = max(len(name), *(len(row["provider"]) for row in table))
    print(f"{name:<{width}} " + " ".join(f"{title:>13}" for title in titles))
    for row in table:
        print(f"{row['provider']:<{width}} " + " ".join(f"{row[title]:>13}" for title in titles), flush=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs="+", choices=list(PARTS), default=["sizes"])
    parser.add_argument("--sizes", nargs="*", help="batch x length, instead of parts")
    parser.add_argument("--only", nargs="*", choices=list(PROVIDERS))
    parser.add_argument("--model", choices=list(MODELS), default="roberta-base", help="with --sizes")
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--output", type=Path, default=None, help="CSV file to append to")
    options = parser.parse_args(arguments)
    transformers.utils.logging.set_verbosity_warning()
    freeze_imported()
    parts = {part: PARTS[part] for part in options.part}
    if options.sizes:
        wanted = [(options.model, size, LONG) for size in options.sizes]
        parts = {" ".join(options.sizes): ("trainer-steps-models-cuda.csv", 3, wanted)}
    for part, (file, rounds, wanted) in parts.items():
        start = time.perf_counter()
        for model, size, names in wanted:
            batch, length = map(int, size.split("x"))
            setting = Setting(model, batch, length, options.device)
            chosen = [n for n in options.only or names if options.sizes or n in names]
            table = measured(chosen, setting, options.rounds or rounds)
            show(setting, table)
            shared = conditions(options.device, dtype="bfloat16", model=model, batch=batch, length=length)
            append(options.output or RESULTS / file, [{**shared, **row} for row in table])
        print(f"{part} took {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
