"""Runs specifications whose lines need more than one run, or have an id of their own, and appends the lines.

Started again, it leaves out what has its line.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from attendrop.study.engines import WORKER, make_engine
from attendrop.study.spec import RunSpec

from .run import read, remove_failed

Record = dict[str, Any]
Line = dict[str, Any]


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
        options: The options, from `options_of`.
        make_worker: Where the class of the workers is.
    """
    file = options.output / f"{part}-{options.name}.csv"
    remove_failed(file, columns)
    done = {row["id"] for row in read(file)}
    missing = deque((name, run) for name, runs in wanted.items() if name not in done for run in runs)
    names = {run.id: name for name, run in missing}
    total, end = len(missing), time.monotonic() + 60 * options.minutes

    def next_run() -> RunSpec | None:
        return missing.popleft()[1] if missing and time.monotonic() < end else None

    engine = make_engine("local", options.workers, make_worker=make_worker)
    with file.open("a", newline="", encoding="utf-8") as output:
        writer = csv.DictWriter(output, columns, lineterminator="\n")
        try:
            for number, record in enumerate(engine.results(next_run), 1):
                writer.writerows(lines_of(names[record["id"]], record))
                output.flush()
                print(f"{number}/{total} {record['task']} {record['seed']} {record['method']}", flush=True)
        finally:
            engine.close()
