"""Time of a forward with 11 of 12 attention layers pruned, against the stock model of the same run.

    python -m benchmarks.prune                     # RoBERTa-base shapes on the CPU
    python -m benchmarks.prune --device cuda

Random weights, eval mode, no gradients, no padding. Times are medians over rounds in which the contenders take turns,
so that a slow minute hits all of them. The ceiling is the ratio of the matrix products, counted from their shapes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from attendrop import prune

from .records import RESULTS, append, conditions

# batch, length, the stock model's attention, the least speed-up that was aimed for on a CPU
CASES = [(8, 128, "sdpa", 1.35), (8, 256, "sdpa", 1.45), (4, 512, "sdpa", 1.55), (4, 512, "eager", 1.85)]


def base_shaped(options: argparse.Namespace, attention: str) -> Any:
    torch.manual_seed(0)
    config = transformers.RobertaConfig(
        vocab_size=50265,
        max_position_embeddings=514,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        num_hidden_layers=options.layers,
        attn_implementation=attention,
    )
    model = transformers.RobertaForSequenceClassification(config).eval()
    return model.to(options.device, getattr(torch, options.dtype))


def random_batch(options: argparse.Namespace, size: int, length: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(1)
    ids = torch.randint(1000, 50000, (size, length), generator=g)
    return {"input_ids": ids.to(options.device), "attention_mask": torch.ones_like(ids).to(options.device)}


def seconds_of(model: Any, batch: dict[str, Tensor]) -> float:
    if batch["input_ids"].is_cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    model(**batch)
    if batch["input_ids"].is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


@torch.no_grad()
def times(options: argparse.Namespace, models: dict[str, Any], size: int, length: int) -> dict[str, list[float]]:
    """Seconds of each round for each contender, after one round to warm up."""
    batch = random_batch(options, size, length)
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for round_number in range(options.rounds + 1):
        for name, model in models.items():
            taken = seconds_of(model, batch)
            if round_number:
                seconds[name].append(taken)
    print(f"  {size} × {length}: {options.rounds} rounds", file=sys.stderr, flush=True)
    return seconds


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--output", type=Path, default=None, help="a CSV to append to (default: benchmarks/results)")
    options = parser.parse_args(arguments)
    models = {attention: base_shaped(options, attention) for attention in ("sdpa", "eager")}
    pruned = base_shaped(options, "sdpa")
    print(prune.prune(pruned, range(1, options.layers)))
    models["pruned"] = pruned
    costs: dict[tuple[str, int, int], prune.Cost] = {}
    seconds: dict[tuple[int, int], dict[str, list[float]]] = {}
    table = []
    for size, length, attention, target in CASES:
        if (size, length) not in seconds:
            wanted = {case[2] for case in CASES if case[:2] == (size, length)} | {"pruned"}
            contenders = {name: model for name, model in models.items() if name in wanted}
            seconds[size, length] = times(options, contenders, size, length)
            for name in ("sdpa", "pruned"):
                costs[name, size, length] = prune.cost_of(models[name], size, length, rounds=0)
        stock, ours = (statistics.median(seconds[size, length][name]) for name in (attention, "pruned"))
        before, after = costs["sdpa", size, length], costs["pruned", size, length]
        table.append(
            {
                "batch": size,
                "length": length,
                "against": attention,
                "stock ms": round(stock * 1e3, 2),
                "pruned ms": round(ours * 1e3, 2),
                "speed-up": round(stock / ours, 3),
                "target": target,
                "ceiling": round(before.flops / after.flops, 2),
                "parameters before": before.parameters,
                "parameters after": after.parameters,
            }
        )
    write(options, table)


def write(options: argparse.Namespace, table: list[dict[str, Any]]) -> None:
    print(f"{'shape':<8}  {'against':<7}  {'stock ms':>9}  {'pruned ms':>9}  {'speed-up':>8}  {'target':>6}  ceiling")
    for row in table:
        shape = f"{row['batch']} × {row['length']}"
        print(
            f"{shape:<8}  {row['against']:<7}  {row['stock ms']:>9.1f}  {row['pruned ms']:>9.1f}  "
            f"{row['speed-up']:>7.2f}×  {row['target']:>5.2f}×  {row['ceiling']:>6.2f}×"
        )
    path = options.output or RESULTS / f"prune-{options.device}.csv"
    shared = conditions(
        options.device, dtype=options.dtype, layers=options.layers, pruned=options.layers - 1, rounds=options.rounds
    )
    append(path, [{**shared, **row} for row in table])


if __name__ == "__main__":
    main()
