"""Measures every row of the page about cost on one device, and writes the tables of the documentation again.

    python -m benchmarks.all                          # on the GPU where there is one: about ten minutes there
    python -m benchmarks.all --list                   # the parts of this device, with the minutes that they should take
    python -m benchmarks.all --parts sizes models     # some of them
    python -m benchmarks.all --no-tables              # results only

Each part is a process of its own and appends its results to a file in `benchmarks/results`, so that a device which is
available for a few minutes at a time can do one part after the other. A part that fails does not end the others. Parts
that take long on a GPU (`ON_REQUEST`) are measured only where `--parts` names them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

import torch

from . import tables

# device -> part -> (arguments of `python -m`, minutes)
PARTS: dict[str, dict[str, tuple[list[str], float]]] = {
    "cuda": {
        "sizes": (["benchmarks.trainer_steps", "--part", "sizes"], 1.5),
        "family": (["benchmarks.trainer_steps", "--part", "family"], 1.3),
        "baselines": (["benchmarks.trainer_steps", "--part", "baselines"], 2),
        "long": (["benchmarks.trainer_steps", "--part", "long"], 1.5),
        "models": (["benchmarks.trainer_steps", "--part", "models"], 1.3),
        "profile": (["benchmarks.profile"], 0.3),
        "kernels": (["benchmarks.kernels", "--device", "cuda"], 0.4),
        "bits": (["benchmarks.bits"], 0.5),
        "weights": (["benchmarks.weight_passes"], 0.3),
        "inference": (
            [
                *("benchmarks.inference", "--device", "cuda", "--dtype", "bfloat16", "--seconds", "0.3"),
                *("--sizes", "32x128"),
            ],
            1,
        ),
        "short-runs": (
            [
                *("benchmarks.whole_runs", "--sizes", "300", "--models", "roberta-base", "--rounds", "2"),
                *("--runs", "plain eager", "plain captured", "addrop eager", "addrop captured"),
            ],
            1,
        ),
        "runs": (["benchmarks.whole_runs", "--sizes", "1000", "--rounds", "1"], 4),
        "long-runs": (["benchmarks.whole_runs", "--sizes", "3000", "--rounds", "1"], 10),
    },
    "cpu": {
        "steps": (["benchmarks.steps", "--threads", "2", "--layers", "4", "--batch", "8"], 20),
        "inference": (["benchmarks.inference"], 30),
    },
}


ON_REQUEST = ("runs", "long-runs")


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
    failed = []
    for name in options.parts or [part for part in parts if part not in ON_REQUEST]:
        start = time.perf_counter()
        print(f"--- {name}", flush=True)
        if subprocess.run([sys.executable, "-m", *parts[name][0]]).returncode:
            failed.append(name)
        print(f"--- {name} took {time.perf_counter() - start:.0f} s", flush=True)
    if not options.no_tables:
        tables.main([])
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
