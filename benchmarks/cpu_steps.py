"""What bounds a training step on a CPU, and what bf16, oneDNN and torch.compile make of it.

    python -m benchmarks.cpu_steps --threads 2          # four layers of BERT-base, batch 8 × 64
    python -m benchmarks.cpu_steps --only bfloat16 --layers 12

Plain fine-tuning, AD-DROP on all layers, and SAM, each with forward, backward, clipping and the fused AdamW that is the
Trainer's default. The ways to compute take turns in each round. "processor ms" is the time of all threads, which other
programs on the machine disturb less than the clock; compare it between rows with one thread. "× float32" compares with
the same step in float32. The kinds of operations are shares of the processor time of a step under the profiler.
torch.compile is tried on the plain step alone: the plans of methods change from step to step, in Python.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from attendrop import ADDrop, Engine, Loop, parse_method

from .profile import by_kind, kernels_of
from .records import RESULTS, append, conditions, spread_of
from .steps import Step, autocast, finish, make_model, random_batch, regularized

STEPS = ("plain", "addrop", "sam")
WAYS = ("float32", "without oneDNN", "bfloat16", "compiled", "bfloat16, compiled")


def make_step(options: argparse.Namespace, name: str, way: str) -> Step:
    """A step of one of `STEPS`, computed in one of `WAYS`."""
    options = argparse.Namespace(**{**vars(options), "dtype": "bfloat16" if "bfloat16" in way else "float32"})
    model, batch = make_model(options), random_batch(options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    if "compiled" in way:
        fast = torch.compile(model, dynamic=False)

        def step() -> None:
            with autocast(options):
                loss = fast(**batch).loss
            loss.backward()
            finish(model, optimizer)

        return step
    methods = {"plain": [], "addrop": [ADDrop(layers="all", cross_tuning=False)], "sam": [parse_method("sam")]}
    return regularized(options, Engine(model, methods[name], loop=Loop(optimizer, 1.0)), batch, optimizer)


def computing(way: str) -> AbstractContextManager[Any]:
    """The setting of torch in which a way computes."""
    return torch.backends.mkldnn.flags(enabled=False) if way == "without oneDNN" else nullcontext()


def taken(step: Step, way: str) -> tuple[float, float]:
    """Seconds of the processor and of the clock in a step."""
    with computing(way):
        start, clock = time.process_time(), time.perf_counter()
        step()
        return time.process_time() - start, time.perf_counter() - clock


def measured(options: argparse.Namespace, name: str) -> list[dict[str, Any]]:
    """A row for each way to compute a step."""
    ways = [way for way in WAYS if way in options.only and (name == "plain" or "compiled" not in way)]
    steps = {way: make_step(options, name, way) for way in ways}
    times: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for number in range(options.rounds + 1):
        for way, step in steps.items():
            both = taken(step, way)
            if number:  # the first one compiles and fills the state of the optimizer
                times[way].append(both)
    rows: list[dict[str, Any]] = []
    for way, of_way in times.items():
        processor = [seconds for seconds, _ in of_way]
        row: dict[str, Any] = {"step": name, "way": way, "processor ms": round(statistics.median(processor) * 1e3, 1)}
        row |= {"spread": spread_of(processor), "ms": round(statistics.median(x for _, x in of_way) * 1e3, 1)}
        row["x float32"] = round(row["processor ms"] / rows[0]["processor ms"], 2) if rows else 1.0
        rows.append({**row, "rounds": options.rounds, **shares(steps[way], way)})
        print("  ".join(f"{title}: {value}" for title, value in rows[-1].items()), flush=True)
    return rows


def shares(step: Step, way: str) -> dict[str, float]:
    """The share of a step that operations of each kind take, in percent."""
    with computing(way), profile(activities=[ProfilerActivity.CPU]) as profiler:
        step()
    kinds = [kind for kind in by_kind(kernels_of(profiler, 1), 0.0) if kind.name != "gaps"]
    whole = sum(kind.milliseconds for kind in kinds)
    of = {kind.name: round(100 * kind.milliseconds / whole, 1) for kind in kinds}
    return {f"{name} %": of.get(name, 0.0) for name in ("matrix products", "optimizer", "dropout", "casts")}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=WAYS, default=list(WAYS), help="float32 always is")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--output", type=Path, default=RESULTS / "cpu-steps.csv", help="CSV file to append to")
    options = parser.parse_args(arguments)
    options.device, options.only = "cpu", ["float32", *options.only]
    torch.set_num_threads(options.threads)
    rows = [row for name in options.steps for row in measured(options, name)]
    shared = conditions("cpu", layers=options.layers, batch=options.batch, length=options.length)
    append(options.output, [{**shared, **row} for row in rows])


if __name__ == "__main__":
    main()
