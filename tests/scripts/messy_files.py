"""Walks from messy files to predictions on the command line, and prints what was typed and said as a table.

    python tests/scripts/messy_files.py FOLDER --model MODEL [--rows 90] [--data DATA] [--sets Excel,CLINC] [--verbose]

`DATA` is a folder of real sets, as `arena/<name>/train.parquet`; without it the sentences are made up.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.messy import SETS, Texts, walk


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--rows", type=int, default=90)
    parser.add_argument("--sets", default="")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    settings = [
        "--num-train-epochs",
        "1",
        "--max-length",
        "48",
        "--no-baselines",
        "--head-start",
        "random",
        "--use-cpu",
    ]
    print("| set | commands | asked | predictions | last sentence |\n|---|---|---|---|---|", flush=True)
    for messy in SETS:
        if not any(name in messy.name for name in options.sets.split(",")):
            continue
        folder = (options.folder / messy.write.__name__).absolute()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        done = walk(messy, folder, options.model.absolute(), Texts(options.data), options.rows, settings)
        last = f"{done.predictions} in {done.form}" if done.predictions else "none"
        print(
            f"| {messy.name} | {len(done.commands)} | {done.asked} | {last} | {done.outcomes[-1][:150]} |", flush=True
        )
        if options.verbose:
            for command, outcome in zip(done.commands, done.outcomes, strict=True):
                print(f"    $ {command}\n      {outcome[:400]}", flush=True)


if __name__ == "__main__":
    main()
