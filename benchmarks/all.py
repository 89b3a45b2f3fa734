"""Measures every row of the page about cost on one device, and writes the tables of the documentation again.

    python -m benchmarks.all                          # on the GPU where there is one: nine minutes there
    python -m benchmarks.all --list                   # the parts of this device, with the minutes that they should take
    python -m benchmarks.all --parts sizes models     # some of them
    python -m benchmarks.all --no-tables              # results only

Each part appends its results to a file in `benchmarks/results`, so that a device which is available for a few minutes
at a time can do one part after the other. All parts are measured in this process, because importing torch and
transformers again for each would take minutes. A part that fails is named, and the next one begins. The parts of
`ON_REQUEST`, whose tables are on other pages or which decide what is built, are measured only where `--parts` names
them.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import sys
import time
import traceback

import torch

from docs.tables import pages

STEPS = ["benchmarks.trainer_steps", "--part"]
# device -> part -> (arguments of `python -m`, minutes)
PARTS: dict[str, dict[str, tuple[list[str], float]]] = {
    "cuda": {
        "sizes": ([*STEPS, "sizes"], 2.3),
        "family": ([*STEPS, "family"], 0.7),
        "peers": ([*STEPS, "peers"], 0.7),
        "baselines": ([*STEPS, "baselines"], 0.8),
        "long": ([*STEPS, "long"], 1.3),
        "models": ([*STEPS, "models"], 1.5),
        "bits": (
            [*("benchmarks.bits", "--calls", "15"), *("--sizes", "64x256", "8x1024", "4x2048", "2x4096", "1x8192")],
            0.7,
        ),
        "weights": (["benchmarks.weight_passes"], 0.1),
        "runs": (
            [
                *("benchmarks.whole_runs", "--models", "roberta-base", "--sizes", "300", "--rounds", "2"),
                *("--runs", "addrop eager", "addrop captured"),
            ],
            1.2,
        ),
        "evaluation": (["benchmarks.evaluation", "--rounds", "2", "--models", "roberta-base", "minilm"], 0.5),
        "profile": (["benchmarks.profile"], 0.1),  # the last one, because a profiler may slow down what follows
        "kernels": (["benchmarks.kernels", "--device", "cuda", "--calls", "30"], 0.3),
        "inference": (
            [
                *("benchmarks.inference", "--device", "cuda", "--dtype", "bfloat16", "--seconds", "0.3"),
                *("--sizes", "32x128"),
            ],
            0.8,
        ),
        "all-runs": (["benchmarks.whole_runs", "--models", "roberta-base"], 30),
        "replicas": (["benchmarks.replicas"], 9),
        "fusions": (["benchmarks.fusions"], 6),
    },
    "cpu": {
        "steps": (["benchmarks.steps", "--threads", "2"], 25),
        "inference": (["benchmarks.inference"], 30),
        "ways": (["benchmarks.cpu_steps", "--threads", "2"], 5),
        "batches": (["benchmarks.host_batches"], 0.5),
    },
}
# Their tables are on other pages, or they decide what will be built.
ON_REQUEST = ("kernels", "inference", "all-runs", "replicas", "fusions")


def run_part(command: list[str]) -> bool:
    """Runs a benchmark in this process. Returns whether it ended without an error."""
    try:
        importlib.import_module(command[0]).main(command[1:])
    except (Exception, SystemExit):
        traceback.print_exc()
        return False
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return True


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=list(PARTS), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--parts", nargs="+", help=f"by default all of the device but {', '.join(ON_REQUEST)}")
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
    for name in options.parts or [part for part in parts if part not in ON_REQUEST]:
        start = time.perf_counter()
        print(f"--- {name}", flush=True)
        if not run_part(parts[name][0]):
            failed.append(name)
        print(f"--- {name} took {time.perf_counter() - start:.0f} s", flush=True)
    if not options.no_tables:
        pages.main([])
    print(f"everything took {(time.perf_counter() - first) / 60:.1f} minutes")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
