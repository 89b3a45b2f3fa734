"""Time of the passes over all weights that some methods need in each step, and the memory bandwidth that they reach.

    python -m benchmarks.weight_passes                      # RoBERTa-base, 125 million weights in float32
    python -m benchmarks.weight_passes --tiles 1024 4096    # with other sizes of what a program works on at a time

On a GPU each pass is a CUDA graph, as in captured steps, and its replay is timed. "passes" counts how often a list of
all weights is read or written; the bandwidth is that number of bytes divided by the time. "foreach" is the same by
torch's functions for lists of tensors, where there are any. Times and spread are as in benchmarks/kernels.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from attendrop.kernels import foreach

from .kernels import timings
from .records import RESULTS, append, conditions
from .shapes import MODELS, make_model

Work = Callable[[], Any]


def works(model: str, device: str) -> dict[str, tuple[int, Work]]:
    """What is timed: the number of passes over all weights, and the function."""
    weights = [p.detach() for p in make_model(model, 128, device).parameters()]
    others, gradients = ([torch.randn_like(x) for x in weights] for _ in range(2))
    is_moved = torch.zeros((), dtype=torch.bool, device=device)
    share = torch.full((), 0.01, device=device)

    def sub_and_add() -> None:
        torch._foreach_add_(gradients, torch._foreach_sub(weights, others), alpha=0.1)

    def ascend(eta: float | None) -> Work:
        return lambda: foreach.ascend(weights, others, gradients, 0.05, eta, is_moved)

    def restore() -> None:
        is_moved.fill_(True)
        foreach.restore(weights, others, is_moved)

    return {
        "copy, foreach": (2, lambda: torch._foreach_copy_(others, weights)),
        "average": (3, lambda: foreach.average(others, weights, share)),
        "average, foreach": (3, lambda: torch._foreach_lerp_(others, weights, 0.01)),
        "pull": (4, lambda: foreach.pull(gradients, weights, others, share)),
        "pull, foreach": (6, sub_and_add),
        "ascent of SAM": (5, ascend(None)),
        "ascent of ASAM": (6, ascend(0.01)),
        "restore": (2, restore),
        "restore what has not moved": (0, lambda: foreach.restore(weights, others, is_moved)),
    }


def as_graph(work: Work) -> Work:
    """The work as a CUDA graph."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def as_run(work: Work, device: str) -> Callable[[None], Any]:
    """The work as a function that `timings` can call; on a GPU it is a CUDA graph."""
    run = as_graph(work) if device == "cuda" else work
    return lambda _: run()


def use_tile(size: int | None) -> None:
    """From now on, a program of the kernels works on so many numbers at a time."""
    if size is not None:
        from attendrop.kernels.foreach import triton

        triton.TILE = size


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(MODELS), default="roberta-base")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--calls", type=int, default=50)
    parser.add_argument("--tiles", type=int, nargs="+", default=[None])
    parser.add_argument("--output", type=Path, default=None, help="CSV file to append to")
    options = parser.parse_args(arguments)
    of_all = sum(p.numel() * p.element_size() for p in make_model(options.model, 128, "meta").parameters())
    table = []
    for tile in options.tiles:
        use_tile(tile)
        all_works = works(options.model, options.device)
        runs = {name: as_run(work, options.device) for name, (_, work) in all_works.items()}
        for name, taken in timings(runs, [None], options.device, options.calls).items():
            passes = all_works[name][0]
            row = {
                "tile": tile or "",
                "provider": name,
                "passes": passes,
                "microseconds": taken.microseconds,
                "spread": taken.spread,
                "GB/s": round(passes * of_all / taken.seconds / 1e9),
            }
            print("  ".join(f"{value:<28}" if title == "provider" else f"{value:>9}" for title, value in row.items()))
            table.append({"model": options.model, **row})
    shared = conditions(options.device, dtype="float32")
    append(options.output or RESULTS / f"weight-passes-{options.device}.csv", [{**shared, **row} for row in table])


if __name__ == "__main__":
    main()
