"""Runs specifications and appends lines to a CSV file; started again, it leaves out what has its lines."""

from __future__ import annotations

import argparse
import csv
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attendrop.study.engines import WORKER, make_engine
from attendrop.study.spec import RunSpec

from .run import RECORDS, read

Record = dict[str, Any]
Line = dict[str, Any]


def make_parser(about: str | None) -> argparse.ArgumentParser:
    """The flags that all parts of the study share."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="the folder that `benchmarks.verdict.data` made")
    parser.add_argument("--model", required=True, help="the folder of the model")
    parser.add_argument("--name", default="minilm", help="name of the model in the file of the results")
    parser.add_argument("--workers", type=int, help="runs at the same time; by default as many as fit")
    parser.add_argument("--minutes", type=float, default=600, help="no run begins after this time")
    parser.add_argument("--output", type=Path, default=RECORDS, help="folder of the results")
    return parser


def append_lines(
    part: str,
    columns: Sequence[str],
    wanted: Mapping[str, Sequence[RunSpec]],
    lines_of: Callable[[str, Record], Iterable[Line]],
    options: argparse.Namespace,
    make_worker: str = WORKER,
) -> None:
    """Run what has no line yet.

    Args:
        part: The part of the study, which names the file.
        columns: The columns of the file; `id` and `status` are among them.
        wanted: Id of a line -> the runs that it needs.
        lines_of: Called with the id of the line and the record of each run; returns the lines that are now known.
        options: The flags, from `make_parser`.
        make_worker: Where the class of the workers is.
    """
    options.output.mkdir(parents=True, exist_ok=True)
    file = options.output / f"{part}-{options.name}.csv"
    kept = [row for row in read(file) if row["status"] == "finished"]
    done = {row["id"] for row in kept}
    missing = deque((name, run) for name, runs in wanted.items() if name not in done for run in runs)
    lines = {run.id: name for name, run in missing}
    total, end = len(missing), time.monotonic() + 60 * options.minutes

    def next_run() -> RunSpec | None:
        return missing.popleft()[1] if missing and time.monotonic() < end else None

    engine = make_engine("local", options.workers, make_worker=make_worker)
    with file.open("w", newline="", encoding="utf-8") as output:
        writer = csv.DictWriter(output, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept)
        output.flush()
        try:
            for number, record in enumerate(engine.results(next_run), 1):
                for line in lines_of(lines[record["id"]], record):
                    writer.writerow(line)
                output.flush()
                print(f"{number}/{total} {record['task']} {record['seed']} {record['method']}", flush=True)
        finally:
            engine.close()
