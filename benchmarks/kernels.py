"""Time of AD-DROP's mask kernel, of its reference, and of the attention forward of the same layer.

    python -m benchmarks.kernels --device cuda          # 12 heads of width 64, bf16, four sizes
    python -m benchmarks.kernels                        # on the CPU, fp32

Times are medians of single calls, which are made in rounds in which all that is timed takes turns. "spread" is the
difference of the largest and the smallest median of a round, in percent. The calls alternate between several sets of
inputs, so that none stays in the cache.
The first row is the attention forward of training, with dropout and without padding; two more rows are the forward
without dropout, and with a mask for padding, as in captured steps. "mask for attention" also computes the bias that
training on a GPU adds to the scores, in the precision of the query. The floor is the time that a GPU of the given
memory bandwidth needs to read gradient and value and to write the mask. Memory is the peak that a call adds to its
inputs, in multiples of the mask (1 byte for each position; an attention map in fp32 would be 4).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attendrop.kernels.attention_mask import mask_of
from attendrop.kernels.attribution_mask import DropRule, keep_from_gradient

from .records import RESULTS, append, conditions, spread_of

SIZES = ((16, 47), (16, 128), (32, 128), (64, 256))
HEADS, WIDTH = 12, 64
ROUNDS = 3

Provider = Callable[[dict[str, Tensor]], Tensor]


class Timing(NamedTuple):
    """Of the calls of one function."""

    seconds: float  # the median of all calls
    spread: float  # the difference of the largest and the smallest median of a round, in percent of it

    @property
    def microseconds(self) -> float:
        return round(self.seconds * 1e6, 1)


def make_inputs(batch: int, length: int, dtype: torch.dtype, device: str) -> dict[str, Tensor]:
    shape = (batch, length, HEADS, WIDTH)
    query, key, value, gradient = (torch.randn(shape, device=device, dtype=dtype) for _ in range(4))
    return {
        "query": query.transpose(1, 2),
        "key": key.transpose(1, 2),
        "value": value.transpose(1, 2),
        "gradient": gradient,
        "valid": torch.ones(batch, 1, 1, length, dtype=torch.bool, device=device),
        "causal": torch.ones(1, 1, length, length, dtype=torch.bool, device=device).tril(),
        "positions": torch.arange(batch, device=device),
    }


def attention(dropout: float, masked: bool = False) -> Provider:
    """The attention forward."""

    def run(x: dict[str, Tensor]) -> Tensor:
        mask = x["valid"].expand(-1, -1, x["query"].shape[2], -1) if masked else None
        return scaled_dot_product_attention(x["query"], x["key"], x["value"], mask, dropout_p=dropout)

    return run


def mask(impl: str, valid: str = "valid") -> Provider:
    """The keep mask of AD-DROP, by one of the implementations."""

    def run(x: dict[str, Tensor]) -> Tensor:
        return keep_from_gradient(x["gradient"], x["value"], x[valid], DropRule(0.3, 0.3, 12345, x["positions"]), impl)

    return run


def bias(impl: str) -> Provider:
    """The keep mask, and the bias for the scores that it becomes."""
    keep = mask(impl)
    return lambda x: mask_of(keep(x), x["valid"], x["query"].dtype).bias


def providers(device: str) -> dict[str, Provider]:
    """What is timed, by its name in the results; the first is what the others are compared with."""
    fast = "triton" if device == "cuda" else "cpu"
    return {
        "attention forward, dropout 0.1": attention(0.1),
        "attention forward": attention(0.0),
        "attention forward, dropout 0.1, masked": attention(0.1, masked=True),
        f"mask, {fast}": mask(fast),
        f"mask for attention, {fast}": bias(fast),
        f"mask, causal, {fast}": mask(fast, "causal"),
        "mask, reference": mask("reference"),
    }


def timings(runs: dict[str, Callable[..., Any]], sets: list[Any], device: str, calls: int) -> dict[str, Timing]:
    """Times functions of the same inputs in rounds in which they take turns, after three calls of each to warm up.

    Args:
        runs: The functions, by name.
        sets: Their inputs; the calls of a function alternate between them.
        device: "cpu" or "cuda".
        calls: How many calls of each function are timed at least.
    """
    time_one = _time_on_gpu if device == "cuda" else _time_on_cpu
    for run in runs.values():
        for _ in range(3):
            run(sets[0])
    rounds: dict[str, list[list[float]]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            rounds[name].append([time_one(run, sets[call % len(sets)]) for call in range(-(-calls // ROUNDS))])
    return {name: _timing_of(times) for name, times in rounds.items()}


def _timing_of(rounds: list[list[float]]) -> Timing:
    median = statistics.median(time for times in rounds for time in times)
    medians = [statistics.median(times) for times in rounds]
    return Timing(median, spread_of(medians, median))


def _time_on_gpu(run: Provider, x: dict[str, Tensor]) -> float:
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(8_000_000)  # keeps the device busy until the kernels are launched, so that only they are timed
    before.record()
    run(x)
    after.record()
    torch.cuda.synchronize()
    return before.elapsed_time(after) / 1e3


def _time_on_cpu(run: Provider, x: dict[str, Tensor]) -> float:
    start = time.perf_counter()
    run(x)
    return time.perf_counter() - start


def peak_over_mask(run: Provider, x: dict[str, Tensor], device: str) -> float | str:
    """The peak memory that a call adds, divided by the size of the mask; empty on a CPU, where it is not measured."""
    if device != "cuda":
        return ""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    size = HEADS * x["valid"].shape[-1] ** 2 * x["gradient"].shape[0]
    run(x)
    return round((torch.cuda.max_memory_allocated() - before) / size, 2)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default=None, choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--calls", type=int, default=None, help="default: 100 on a GPU, 10 on a CPU")
    parser.add_argument("--bandwidth", type=float, default=4.3e12, help="of the GPU's memory, in bytes per second")
    parser.add_argument(
        "--output", type=Path, default=None, help="CSV file to append to (default: in benchmarks/results)"
    )
    options = parser.parse_args(arguments)
    on_gpu = options.device == "cuda"
    dtype = options.dtype or ("bfloat16" if on_gpu else "float32")
    table = []
    print(f"{'size':<8} {'':<38} {'µs':>9}  {'spread':>6}  {'× attention':>11}  {'floor µs':>8}  {'memory × mask':>13}")
    for batch, length in SIZES:
        sets = [make_inputs(batch, length, getattr(torch, dtype), options.device) for _ in range(4 if on_gpu else 1)]
        runs = providers(options.device)
        times = timings(runs, sets, options.device, options.calls or (100 if on_gpu else 10))
        base = next(iter(times.values()))
        element = sets[0]["value"].element_size()
        traffic = batch * HEADS * length * (2 * WIDTH * element + length)
        for name, taken in times.items():
            row = {
                "batch": batch,
                "length": length,
                "provider": name,
                "microseconds": taken.microseconds,
                "spread": taken.spread,
                "time x attention": round(taken.seconds / base.seconds, 2),
                "floor microseconds": round(traffic / options.bandwidth * 1e6, 1) if on_gpu else "",
                "memory x mask": peak_over_mask(runs[name], sets[0], options.device),
            }
            table.append(row)
            print(
                f"{batch}×{length:<5} {name:<38} {row['microseconds']:>9.1f}  {row['spread']:>6.1f}  "
                f"{row['time x attention']:>11.2f}  {row['floor microseconds']:>8}  {row['memory x mask']:>13}",
                flush=True,
            )
    path = options.output or RESULTS / f"kernels-{options.device}.csv"
    shared = conditions(options.device, dtype=dtype, heads=HEADS, width=WIDTH)
    append(path, [{**shared, **row} for row in table])


if __name__ == "__main__":
    main()
