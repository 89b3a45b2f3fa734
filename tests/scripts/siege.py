"""Besieges the command line: damage, kills, full disks, fuzz, bombs, threads and links, in bounded time.

    python tests/scripts/siege.py FOLDER [--seconds 60] [--only damage,kills] [--seed 0]

Each class (`tests/helpers/siege/`) yields cases without an end, and takes its turn until the time is over. Every case
runs in a forked process, so that nothing is imported twice. The last line that is printed is JSON: for each class the
number of cases with each outcome, and the first bad ones. The exit code is 1 if there is a bad one.

    done       exit code 0 and the right result
    refused    exit code 2 and one sentence, or killed, and nothing was lost
    silent     exit code 0 and something else than was asked for, or half a file under the final name
    traceback  a traceback, an internal error, or an exit code that nobody promised
    hang       not ended in the time of the case
    memory     more memory than such an input may take
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
sys.path.insert(0, str(Path(__file__).parents[1]))

import matplotlib.figure  # noqa: F401 - imported here, so that no forked process imports it again
import pyarrow.parquet  # noqa: F401
import sklearn.metrics  # noqa: F401
import torch

import attendrop.lab.cli.check
import attendrop.lab.cli.predict
import attendrop.lab.cli.robustness
import attendrop.lab.cli.train
import attendrop.lab.report.learning_curves  # noqa: F401
from attendrop.utils.processes import freeze_imported
from helpers.siege import CLASSES, GOOD, OUTCOMES, Siege

_SHOWN = 40  # bad cases that are printed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=60, help="time of all classes together")
    parser.add_argument("--only", default=",".join(CLASSES), help="some of the classes")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    freeze_imported()
    options.folder.mkdir(parents=True, exist_ok=True)
    siege = Siege(options.folder, options.seed)
    generators = {name: CLASSES[name](siege) for name in options.only.split(",")}
    counts = {name: Counter[str]() for name in generators}
    bad: list[str] = []
    end = time.monotonic() + options.seconds
    while generators and time.monotonic() < end:
        for name in list(generators):
            case = next(generators[name], None)
            if case is None:
                del generators[name]
                continue
            outcome, text = siege.outcome(case)
            counts[name][outcome] += 1
            if outcome not in GOOD:
                shown = text if len(text) < 1500 else f"{text[:500]} … {text[-900:]}"
                bad.append(f"{name}: {case.name}: {outcome}: {shown}")
    for name, outcomes in counts.items():
        listed = ", ".join(f"{outcomes[outcome]} {outcome}" for outcome in OUTCOMES)
        print(f"{name:12} {outcomes.total():5} cases: {listed}")
    print(
        json.dumps({"counts": {name: {o: c[o] for o in OUTCOMES} for name, c in counts.items()}, "bad": bad[:_SHOWN]})
    )
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
