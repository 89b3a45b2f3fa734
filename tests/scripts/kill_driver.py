"""Kills the driver of a study with SIGKILL at random moments, and starts it again until the study is complete.

    python tests/scripts/kill_driver.py FOLDER --runs 80 --kills 20 --seconds 0.5

No finished run may be repeated or lost, and every record must be valid.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from attendrop.study.design import RunSpec
from attendrop.study.driver import run_study
from attendrop.study.engines import make_engine
from attendrop.study.records import read_records
from helpers.study_workers import LIGHT, light_specs

CONFIGURATION = {"kind": "compare", "seeds": "all"}


def specs_of(folder: Path, runs: int, seconds: float) -> list[RunSpec]:
    return light_specs(runs, seconds=seconds, marks=str(folder / "marks"))


def drive(folder: Path, runs: int, seconds: float, workers: int) -> None:
    """One start of the driver."""
    (folder / "marks").mkdir(parents=True, exist_ok=True)
    engine = make_engine(workers=workers, device="cpu", make_worker=LIGHT)
    run_study(folder / "study", CONFIGURATION, specs_of(folder, runs, seconds), engine)


def wait_for_moment(folder: Path, draw: random.Random, seconds: float) -> None:
    """Waits for a random moment: while the driver starts, or after up to two more records and a part of a run."""
    if draw.random() < 0.25:
        time.sleep(draw.uniform(0, 0.5))
        return
    before, more, deadline = count(folder / "study" / "runs"), draw.randint(0, 2), time.monotonic() + 120
    while count(folder / "study" / "runs") < before + more and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(draw.uniform(0, seconds))


def count(folder: Path, pattern: str = "*.json") -> int:
    return len(list(folder.glob(pattern)))


def kill_at_random_moments(folder: Path, runs: int, kills: int, seconds: float, workers: int) -> dict[str, int]:
    """Starts the driver and kills it, `kills` times, then lets it end.

    Returns:
        How often it was killed, and how many records there are, were repeated, were lost and are broken.
    """
    words = [
        sys.executable,
        __file__,
        str(folder),
        "--drive",
        "--runs",
        runs,
        "--seconds",
        seconds,
        "--workers",
        workers,
    ]
    draw = random.Random(0)
    seen: dict[str, tuple[str, int]] = {}  # the record of each run, and how often it was started
    broken: list[str] = []
    counts = {"killed": 0, "repeated": 0, "lost": 0}
    for kill in range(kills + 1):
        driver = subprocess.Popen(list(map(str, words)))
        if kill < kills:
            wait_for_moment(folder, draw, seconds)
            counts["killed"] += driver.poll() is None
            driver.send_signal(signal.SIGKILL)
        elif driver.wait() != 0:
            raise SystemExit(f"the driver ended with code {driver.returncode}")
        driver.wait()
        found = {
            name: (json.dumps(record, sort_keys=True), count(folder / "marks", f"{name}-*"))
            for name, record in read_records(folder / "study", broken.append).items()
        }
        counts["lost"] += len(seen.keys() - found.keys())
        counts["repeated"] += sum(found[name] != seen[name] for name in seen.keys() & found.keys())
        seen = found
    assert seen.keys() == {spec.id for spec in specs_of(folder, runs, seconds)}
    return {**counts, "records": len(seen), "broken": len(broken)}


def main(options: Any) -> int:
    if not options.drive:
        print(
            kill_at_random_moments(Path(options.folder), options.runs, options.kills, options.seconds, options.workers)
        )
        return 0
    try:
        drive(Path(options.folder), options.runs, options.seconds, options.workers)
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--drive", action="store_true", help="be the driver")
    parser.add_argument("--runs", type=int, default=80)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--workers", type=int, default=2)
    code = main(parser.parse_args())
    sys.stdout.flush()
    os._exit(code)
