"""Time and peak memory of one training step, as multiples of the plain step of the same run.

    python -m benchmarks.steps --threads 2         # four layers of BERT-base, batch 8 × 128, on the CPU
    python -m benchmarks.steps --layers 12 --batch 16 --only "addrop all layers"

Every provider does the same step: forward, backward, gradient clipping, AdamW. In a round the providers are timed one
after the other, with a plain step before and after them. "× plain" is the median over the rounds of the ratio to the
mean of these two, and "spread" is the difference of the largest and the smallest ratio in percent. Memory is the peak
of the GPU's allocator. On a CPU it is the growth of a separate process beyond the imported libraries. `floors.py`
derives the floors.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor

from attendrop import ADDrop, AttendOut, Engine, Loop, parse_method
from attendrop.methods import make_method

from .floors import floor_as_published, floor_of, passes
from .published import PublishedMasks
from .records import RESULTS, append, conditions, spread_of
from .shapes import with_adapters

Step = Callable[[], float | None]  # one step; it may return its own time in seconds

GROUP_SIZE = 4  # providers that are timed together with a plain step
LORA = (passes() - 1) / passes()  # of a plain step with LoRA: the pretrained weights get no gradient


def make_model(options: argparse.Namespace, attention: str = "sdpa") -> Any:
    """A model with the shapes of BERT-base."""
    torch.manual_seed(0)
    config = transformers.BertConfig(num_hidden_layers=options.layers, attn_implementation=attention)
    with torch.device(options.device):
        return transformers.BertForSequenceClassification(config).train()


def random_batch(options: argparse.Namespace) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(1)
    shape = (options.batch, options.length)
    batch = {
        "input_ids": torch.randint(1000, 30000, shape, generator=g),
        "attention_mask": torch.ones(shape, dtype=torch.long),
        "labels": torch.randint(0, 2, (options.batch,), generator=g),
    }
    return {name: value.to(options.device) for name, value in batch.items()}


def finish(model: Any, optimizer: torch.optim.Optimizer) -> None:
    """The end of a step: clipping and the optimizer."""
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def autocast(options: argparse.Namespace) -> Any:
    enabled = options.dtype != "float32"
    return torch.autocast(options.device, dtype=getattr(torch, options.dtype), enabled=enabled)


def plain(options: argparse.Namespace) -> Step:
    """Plain fine-tuning."""
    model, batch = make_model(options), random_batch(options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step() -> None:
        with autocast(options):
            loss = model(**batch).loss
        loss.backward()
        finish(model, optimizer)

    return step


def with_addrop(options: argparse.Namespace, **fields: Any) -> Step:
    """AD-DROP with these fields."""
    model, batch = make_model(options), random_batch(options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    return regularized(options, Engine(model, [ADDrop(cross_tuning=False, **fields)]), batch, optimizer)


def regularized(options: argparse.Namespace, engine: Engine, batch: dict[str, Tensor], optimizer: Any) -> Step:
    """A step with the methods of the engine."""

    def step() -> None:
        with autocast(options), engine.micro_batch(batch) as inputs:
            engine.loss(engine.model(**inputs)).backward()
        engine.before_optimizer()
        finish(engine.model, optimizer)
        engine.after_optimizer()

    return step


def as_published(options: argparse.Namespace) -> Step:
    """AD-DROP as in the authors' code."""
    model, batch = make_model(options, "eager"), random_batch(options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    masks = PublishedMasks(model.bert.encoder.layer)

    def step() -> None:
        with autocast(options):
            masks.choose(model, batch)
            loss = model(**batch).loss
        loss.backward()
        finish(model, optimizer)
        masks.clear()

    return step


def attendout(options: argparse.Namespace) -> Step:
    """AttendOut with T = 15: an ordinary step, plus a fifteenth of the update of the generator.

    A full round of 15 steps would take long and show no more than one step of each kind. The update reads a cache of 15
    batches, which is filled with copies of one.
    """
    steps = 15
    model, batch = make_model(options), random_batch(options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    method = AttendOut(T=10**9, samples=steps)
    engine = Engine(model, [method], loop=Loop(optimizer, 1.0, examples=lambda source, count, draws: batch))
    ordinary_step = regularized(options, engine, batch, optimizer)

    def step() -> float:
        seconds = _timed(ordinary_step, options.device)
        method._round[:] = [method._round[-1]] * steps
        engine.begin_step()
        method.T = 1
        start = time.perf_counter()
        engine.after_optimizer()
        synchronize(options.device)
        method.T = 10**9
        return seconds + (time.perf_counter() - start) / steps

    return step


# The other methods: name and method.
OTHER_METHODS: list[tuple[str, str]] = [
    ("attention layerdrop", "attention_layerdrop"),
    ("scheduled dropout", "scheduled_dropout"),
    ("attention dropout", "attention_dropout:p=0.1"),
    ("scores dropout", "scores_dropout:p=0.1"),
    ("scores dropout, columns", "scores_dropout:p=0.1,pattern=column"),
    ("drophead", "drophead:p=0.2"),
    ("headmask, random", "headmask:by=random"),
    ("headmask, by importance", "headmask:by=importance"),
    ("structure mask", "structure_mask"),
    ("layerdrop", "layerdrop:p=0.2"),
    ("r-drop", "rdrop"),
    ("hiddencut, by attention", "hiddencut"),
    ("hiddencut, by gradient", "hiddencut:by=gradient"),
    ("r3f", "r3f"),
    ("scal", "scal"),
    ("mixout", "mixout:p=0.7"),
    ("dropconnect", "dropconnect:p=0.1"),
    ("child-tuning F", "child_tuning:p=0.3"),
    ("noisytune", "noisytune"),
    ("super tickets, a fifth of the heads", "supertickets"),
    ("unidrop", "unidrop"),
    ("concrete dropout", "concrete_dropout"),
    ("ema", "ema"),
    ("swa", "swa:start=0"),
    ("l2-sp", "l2_sp"),
    ("re-initialisation", "reinit"),
    ("neftune", "neftune"),
    ("hype", "hype"),
    ("confidence penalty", "confidence_penalty"),
    ("label smoothing", "label_smoothing"),
    ("mixup of hidden states", "hidden_mixup"),
    ("hiddenkey", "hiddenkey"),
    ("cutoff", "cutoff"),
    ("sam", "sam"),
    ("asam", "asam"),
    ("freelb, 3 passes", "freelb"),
    ("smart", "smart"),
    ("lora without a method", "lora"),
    ("lora dropout", "lora_dropout"),
]


# AD-DROP: name and fields.
ADDROP: dict[str, dict[str, Any]] = {
    "addrop all layers": {"layers": "all"},
    "addrop first layer": {"layers": "first"},
    "addrop iga first, 20-step sum": {"attribution": "iga"},
    "addrop iga first, 5 gauss nodes": {"attribution": "iga", "ig_rule": "gauss", "ig_steps": 5},
}


def with_method(options: argparse.Namespace, method: str) -> Step:
    """A step with one of `OTHER_METHODS`."""
    model, batch = make_model(options), random_batch(options)
    if method == "structure_mask":
        distance = (torch.arange(options.length).view(-1, 1) - torch.arange(options.length)).abs()
        batch["structure_mask"] = (distance < 32).expand(options.batch, -1, -1).to(options.device)
    fields = {}
    if method == "supertickets":
        fields["tickets"] = {"heads": [[layer, head] for layer in range(options.layers) for head in (0, 5)]}
    if method.startswith("lora"):
        model = with_adapters(model)
    methods = [] if method == "lora" else [make_method(method, fields) if fields else parse_method(method)]
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5)
    # Long enough that an average has not ended when the measurement has.
    engine = Engine(model, methods, steps_per_epoch=10**6, loop=Loop(optimizer, 1.0))
    return regularized(options, engine, batch, optimizer)


def floor_with(method: str, layers: int) -> float:
    """The floor of one of `OTHER_METHODS`, in multiples of a plain step in which all weights are trained."""
    if method == "lora":
        return LORA
    return floor_of(parse_method(method), layers) * (LORA if method.startswith("lora") else 1)


# name -> (function that creates the step, its floor as a function of the number of layers)
PROVIDERS: dict[str, tuple[Callable[[argparse.Namespace], Step], Callable[[int], float]]] = {
    "plain": (plain, lambda n: floor_of()),
    **{
        name: (partial(with_addrop, **fields), lambda n, fields=fields: floor_of(ADDrop(**fields), n))
        for name, fields in ADDROP.items()
    },
    "addrop all layers, as published": (as_published, floor_as_published),
    "attendout, T = 15": (attendout, lambda n: floor_of(AttendOut(), n)),
    **{name: (partial(with_method, method=method), partial(floor_with, method)) for name, method in OTHER_METHODS},
}


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


class Times(NamedTuple):
    """The times of a step: its seconds, and its time divided by that of the plain step of the same round."""

    seconds: float
    ratios: list[float]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def spread(self) -> float:
        return spread_of(self.ratios)


def times(options: argparse.Namespace, names: list[str]) -> dict[str, Times]:
    """The times of each provider, after one step to warm up.

    Each provider has its own model, so only a few are timed together, always with a plain step.
    """
    others = [name for name in names if name != "plain"]
    groups = [others[i : i + GROUP_SIZE] for i in range(0, len(others), GROUP_SIZE)] or [[]]
    measured: dict[str, Times] = {}
    for group in groups:
        of_group = _rounds(options, ["plain", *group], options.rounds)
        measured |= {name: times for name, times in of_group.items() if name not in measured}
    return {name: measured[name] for name in names}


def _rounds(options: argparse.Namespace, names: list[str], rounds: int) -> dict[str, Times]:
    """The times of each provider; the first round warms up.

    A plain step comes before and after the others of a round, and they are compared with the mean of the two. The
    plain step itself is compared with the mean of all plain steps, which shows how much the machine varies.
    """
    seconds: dict[str, list[float]] = {name: [] for name in names}
    ratios: dict[str, list[float]] = {name: [] for name in names}
    steps = {name: PROVIDERS[name][0](options) for name in names}
    for round_number in range(rounds + 1):
        taken = {name: _timed(step, options.device) for name, step in steps.items()}
        plain_ends = [taken["plain"], _timed(steps["plain"], options.device)]
        if round_number:
            for name in names:
                seconds[name].append(taken[name])
                ratios[name].append(taken[name] / statistics.mean(plain_ends))
        print(f"  {', '.join(names[1:])}: round {round_number} of {rounds}", file=sys.stderr, flush=True)
    mean = statistics.mean(seconds["plain"])
    ratios["plain"] = [value / mean for value in seconds["plain"]]
    return {name: Times(statistics.median(seconds[name]), ratios[name]) for name in names}


def _timed(step: Step, device: str) -> float:
    """Seconds of a step."""
    synchronize(device)
    start = time.perf_counter()
    own_time = step()
    synchronize(device)
    return time.perf_counter() - start if own_time is None else own_time


def peak_bytes(options: argparse.Namespace, name: str) -> int:
    """The peak memory that two steps add to the process, or to the GPU."""
    gc.collect()  # engine and model reference each other
    if options.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    else:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    step = PROVIDERS[name][0](options)
    for _ in range(2):  # the first one creates the state of the optimizer
        _timed(step, options.device)
    if options.device == "cuda":
        return torch.cuda.max_memory_allocated() - before
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before


def peaks_of(options: argparse.Namespace, arguments: list[str], names: list[str]) -> dict[str, int]:
    """The peak memory of each provider; on a CPU each is measured in a process of its own, several at a time."""
    if options.device == "cuda":
        return {name: peak_bytes(options, name) for name in names}
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2)) as pool:
        return dict(zip(names, pool.map(partial(_peak_in_own_process, arguments), names), strict=True))


def _peak_in_own_process(arguments: list[str], name: str) -> int:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.steps", *arguments, "--peak-of", name],
        env={**os.environ, "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.strip().splitlines()[-1])


def main(arguments: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=None, help="of torch (default: one for each core)")
    parser.add_argument("--only", nargs="*", choices=list(PROVIDERS), help="providers to time; plain always is")
    parser.add_argument(
        "--output", type=Path, default=None, help="CSV file to append to (default: in benchmarks/results)"
    )
    parser.add_argument("--peak-of", choices=list(PROVIDERS), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.peak_of:
        print(json.dumps(peak_bytes(options, options.peak_of)))
        return
    if options.threads:
        torch.set_num_threads(options.threads)
    names = [name for name in PROVIDERS if not options.only or name in options.only or name == "plain"]
    peaks = peaks_of(options, arguments, names)
    write(options, rows_of(options, times(options, names), peaks))


def rows_of(options: argparse.Namespace, measured: dict[str, Times], peaks: dict[str, int]) -> list[dict[str, Any]]:
    """One row of results for each provider."""
    return [
        {
            "provider": name,
            "milliseconds": round(times.seconds * 1e3, 2),
            "time x plain": 1.0 if name == "plain" else round(times.ratio, 2),
            "spread": times.spread,
            "rounds": len(times.ratios),
            "floor x plain": round(PROVIDERS[name][1](options.layers), 2),
            "peak MiB": round(peaks[name] / 2**20),
            "memory x plain": round(peaks[name] / peaks["plain"], 2),
        }
        for name, times in measured.items()
    ]


def write(options: argparse.Namespace, table: list[dict[str, Any]]) -> None:
    """Prints the rows and appends them to the CSV file."""
    width = max(len(row["provider"]) for row in table)
    print(f"{'step':<{width}}  {'ms':>9}  {'× plain':>7}  {'spread':>7}  {'floor':>6}  {'peak MiB':>8}  {'× plain':>7}")
    for row in table:
        print(
            f"{row['provider']:<{width}}  {row['milliseconds']:>9.1f}  {row['time x plain']:>7.2f}  "
            f"{row['spread']:>6.1f}%  "
            f"{row['floor x plain']:>6.2f}  {row['peak MiB']:>8}  {row['memory x plain']:>7}"
        )
    path = options.output or RESULTS / f"steps-{options.device}.csv"
    shared = conditions(
        options.device, dtype=options.dtype, layers=options.layers, batch=options.batch, length=options.length
    )
    append(path, [{**shared, **row} for row in table])


if __name__ == "__main__":
    main()
