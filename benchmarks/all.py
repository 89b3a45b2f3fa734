"""Measures every row of the page about cost on one device, and writes the tables of the documentation again.

    python -m benchmarks.all                          # on the GPU where there is one: about ten minutes there
    python -m benchmarks.all --list                   # the parts of this device, with the minutes that they should take
    python -m benchmarks.all --parts sizes models     # some of them
    python -m benchmarks.all --no-tables              # results only

Each part appends its results to a file in `benchmarks/results`, so that a device which is available for a few minutes
at a time can do one part after the other. Parts of one benchmark that follow each other are one process; one that fails
does not end the others. Whole runs on many texts (`ON_REQUEST`), which take minutes with eager steps, are measured only
where `--parts` names them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

import torch

from . import tables

STEPS = ["benchmarks.trainer_steps", "--part"]
RUNS = [
    *("benchmarks.whole_runs", "--models", "roberta-base", "--rounds", "1"),
    *("--runs", "plain eager", "plain captured", "addrop eager", "addrop captured"),
]
# device -> part -> (arguments of `python -m`, minutes)
PARTS: dict[str, dict[str, tuple[list[str], float]]] = {
    "cuda": {
        "sizes": ([*STEPS, "sizes"], 1.5),
        "family": ([*STEPS, "family"], 1),
        "baselines": ([*STEPS, "baselines"], 1.2),
        "long": ([*STEPS, "long"], 1.7),
        "models": ([*STEPS, "models"], 1.2),
        "profile": (["benchmarks.profile"], 0.3),
        "kernels": (["benchmarks.kernels", "--device", "cuda"], 0.4),
        "bits": (
            [*("benchmarks.bits", "--calls", "15"), *("--sizes", "64x256", "8x1024", "4x2048", "2x4096", "1x8192")],
            1,
        ),
        "weights": (["benchmarks.weight_passes"], 0.3),
        "inference": (
            [
                *("benchmarks.inference", "--device", "cuda", "--dtype", "bfloat16", "--seconds", "0.3"),
                *("--sizes", "32x128"),
            ],
            1,
        ),
        "short-runs": ([*RUNS, "--sizes", "300"], 1),
        "runs": ([*RUNS, "--sizes", "1000"], 2.2),
        "long-runs": ([*RUNS, "--sizes", "3000"], 5.5),
    },
    "cpu": {
        "steps": (["benchmarks.steps", "--threads", "2", "--layers", "4", "--batch", "8"], 20),
        "inference": (["benchmarks.inference"], 30),
    },
}


ON_REQUEST = ("runs", "long-runs")


def commands(parts: dict[str, tuple[list[str], float]], names: list[str]) -> list[tuple[str, list[str]]]:
    """The processes that measure these parts, each with the names of its parts."""
    found: list[tuple[str, list[str]]] = []
    for name in names:
        command = parts[name][0]
        if found and found[-1][1][:2] == command[:2] == STEPS:
            before, joined = found.pop()
            found.append((f"{before}, {name}", [*joined, *command[2:]]))
        else:
            found.append((name, command))
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=list(PARTS), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--parts", nargs="+", help=f"by default all of the device but {' and '.join(ON_REQUEST)}")
    parser.add_argument("--list", action="store_true", help="show the parts and measure nothing")
    parser.add_argument("--no-tables", action="store_true", help="do not write the tables of the documentation")
    options = parser.parse_args(arguments)
    parts = PARTS[options.device]
    unknown = sorted(set(options.parts or ()) - set(parts))
    if unknown:
        parser.error(f"--parts has {', '.join(unknown)}; on {options.device} it may have {', '.join(parts)}")
    if options.list:
        for name, (command, minutes) in parts.items():
            note = "  (on request)" if name in ON_REQUEST else ""
            print(f"{name:<11} {minutes:>4g} min  python -m {' '.join(command)}{note}")
        return 0
    failed, first = [], time.perf_counter()
    for name, command in commands(parts, options.parts or [part for part in parts if part not in ON_REQUEST]):
        start = time.perf_counter()
        print(f"--- {name}", flush=True)
        if subprocess.run([sys.executable, "-m", *command]).returncode:
            failed.append(name)
        print(f"--- {name} took {time.perf_counter() - start:.0f} s", flush=True)
    if not options.no_tables:
        tables.main([])
    print(f"everything took {(time.perf_counter() - first) / 60:.1f} minutes")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
