"""Runs specifications and appends lines to a CSV file; started again, it leaves out what has its lines."""

from __future__ import annotations

import argparse
import csv
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from queue import Queue
from threading import Lock, Thread
from typing import Any

from attendrop.lab.studies.executors import WORKER, Engine, make_engine
from attendrop.lab.studies.spec import RunSpec

RECORDS = Path(__file__).parents[2] / "docs" / "results" / "verdict"

TOGETHER = 10  # runs of one setting that one worker gets; enough to repay the capture of their graphs

Record = dict[str, Any]
Line = dict[str, Any]


def make_parser(about: str | None) -> argparse.ArgumentParser:
    """The flags that all parts of the study share."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="the folder that `studies.verdict.data` made")
    parser.add_argument("--model", required=True, help="the folder of the model")
    parser.add_argument("--name", default="minilm", help="name of the model in the file of the results")
    parser.add_argument("--workers", type=int, default=1, help="runs at the same time")
    parser.add_argument("--minutes", type=float, default=600, help="no run begins after this time")
    parser.add_argument("--output", type=Path, default=RECORDS, help="folder of the results")
    return parser


def read(file: Path) -> list[dict[str, str]]:
    """The lines of complete runs; the last line is left out if it was cut."""
    if not file.is_file():
        return []
    text = file.read_text(encoding="utf-8")
    return list(csv.DictReader(text[: text.rfind("\n") + 1].splitlines()))


def remove_failed(file: Path, columns: Sequence[str]) -> None:
    """Keep the lines of finished runs only, so that all others are run again. The file is created if needed.

    Args:
        file: The file of the results.
        columns: Its columns.
    """
    finished = [row for row in read(file) if row["status"] == "finished"]
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="", encoding="utf-8") as output:
        writer = csv.DictWriter(output, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(finished)


class Workers:
    """Worker processes. All runs of one setting go to one of them, which captures their graphs once.

    Args:
        count: How many; each has one run at a time. 0 = one worker in this process.
        make_worker: Where the class of the workers is.
    """

    def __init__(self, count: int, make_worker: str = WORKER) -> None:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # of each worker
        each = min(count, 1)
        self._engines = [make_engine("local", each, make_worker=make_worker) for _ in range(max(count, 1))]

    def results(self, runs: Iterable[RunSpec], end: float) -> Iterator[Record]:
        """The records of runs, as they end.

        Args:
            runs: The runs.
            end: No run begins after this time (`time.monotonic`).
        """
        groups = _Groups(runs)
        queue: Queue[Record | BaseException | None] = Queue()
        engines = self._engines[: groups.runs]
        for engine in engines:
            Thread(target=_work, args=(engine, groups, queue, end), daemon=True).start()
        at_work = len(engines)
        while at_work:
            record = queue.get()
            if isinstance(record, BaseException):
                raise record
            if record is None:
                at_work -= 1
            else:
                yield record

    def close(self) -> None:
        """End the processes."""
        for engine in self._engines:
            engine.close()


class _Groups:
    """Runs with the same setting, at most `TOGETHER` in a group; the first groups of all settings come first.

    A worker that finds no group any more takes half of the longest one that is at work.

    Args:
        runs: The runs.
    """

    def __init__(self, runs: Iterable[RunSpec]) -> None:
        settings: dict[Any, list[RunSpec]] = {}
        for run in runs:
            settings.setdefault(_setting(run), []).append(run)
        most = max(map(len, settings.values()), default=0)
        groups = (of[start : start + TOGETHER] for start in range(0, most, TOGETHER) for of in settings.values())
        self._waiting = deque(group for group in groups if group)
        self._at_work: list[list[RunSpec]] = []
        self._lock = Lock()
        self.runs = sum(map(len, self._waiting))

    def next_run(self, group: list[RunSpec]) -> RunSpec | None:
        """The next run of a worker; None if there is none.

        Args:
            group: The group of the worker, from which the run is taken. It is filled when it is empty.
        """
        with self._lock:
            if not group:
                if self._waiting:
                    group += self._waiting.popleft()
                else:
                    longest = max(self._at_work, key=len, default=group)
                    kept = (len(longest) + 1) // 2
                    group += longest[kept:]
                    del longest[kept:]
                if not any(one is group for one in self._at_work):
                    self._at_work.append(group)
            return group.pop(0) if group else None


def _setting(run: RunSpec) -> tuple[str, ...]:
    """What the runs of a group have in common: everything but their seeds."""
    seeds = ("seed", "data_seed")
    own = (f"{name}={value!r}" for name, value in sorted(run.settings.items()) if name not in seeds)
    return (run.method, run.task, str(run.size), *own)


def _work(engine: Engine, groups: _Groups, queue: Queue[Record | BaseException | None], end: float) -> None:
    """Run one group after the other, until none is left or the time is over."""
    group: list[RunSpec] = []

    def next_run() -> RunSpec | None:
        return None if time.monotonic() > end else groups.next_run(group)

    try:
        for record in engine.results(next_run):
            queue.put(record)
    except BaseException as error:
        queue.put(error)
    finally:
        queue.put(None)


def append_lines(
    file: Path,
    columns: Sequence[str],
    wanted: Mapping[str, Sequence[RunSpec]],
    lines_of: Callable[[str, Record], Iterable[Line]],
    workers: Workers,
    end: float,
) -> bool:
    """Run what has no line yet, and append the lines.

    Args:
        file: The file of the results.
        columns: Its columns; `id` and `status` are among them.
        wanted: Id of a line -> the runs that it needs.
        lines_of: Called with the id of the line and the record of each run; returns the lines that are now known.
        workers: The workers.
        end: No run begins after this time (`time.monotonic`).

    Returns:
        Whether all runs were done.
    """
    done = {row["id"] for row in read(file)}
    names = {run.id: name for name, runs in wanted.items() if name not in done for run in runs}
    missing = [run for name, runs in wanted.items() if name not in done for run in runs]
    number = 0
    with file.open("a", newline="", encoding="utf-8") as output:
        writer = csv.DictWriter(output, columns, lineterminator="\n")
        for record in workers.results(missing, end):
            number += 1
            for line in lines_of(names[record["id"]], record):
                writer.writerow(line)
            output.flush()
            result = (record.get("error") or {}).get("message") or record["status"]
            print(f"{number}/{len(missing)} {record['task']} {record['seed']} {record['method']}: {result}", flush=True)
    return number == len(missing)


def run_parts(
    columns: Sequence[str],
    wanted: Mapping[str, Mapping[str, Sequence[RunSpec]]],
    lines_of: Callable[[str, Record], Iterable[Line]],
    options: argparse.Namespace,
    make_worker: str = WORKER,
) -> None:
    """Run parts of the study one after the other with the same workers, by the options of a command line.

    Args:
        columns: See `append_lines`.
        wanted: Name of a part, which names its file -> what it needs, see `append_lines`.
        lines_of: See `append_lines`.
        options: The options, from `make_parser`.
        make_worker: Where the class of the workers is.
    """
    end = time.monotonic() + 60 * options.minutes
    workers = Workers(options.workers, make_worker)
    try:
        for part, of_part in wanted.items():
            file = options.output / f"{part}-{options.name}.csv"
            remove_failed(file, columns)
            append_lines(file, columns, of_part, lines_of, workers, end)
    finally:
        workers.close()
