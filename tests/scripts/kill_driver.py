"""Kills the driver of a study with SIGKILL at random moments, and starts it again until the study is complete.

    python tests/scripts/kill_driver.py FOLDER --runs 80 --kills 20 --seconds 0.5
    python tests/scripts/kill_driver.py FOLDER --runs 60 --kills 20 --real

With `--real` the workers train a tiny model; without it they only wait, so that more of the moments are in the driver.
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

from attendrop.lab.studies.driver import run_study
from attendrop.lab.studies.executors import WORKER, make_executor
from attendrop.lab.studies.records import read_records
from attendrop.lab.studies.spec import RunSpec
from helpers.study_workers import LIGHT, light_specs, real_specs

CONFIGURATION = {"kind": "compare"}


def specs_of(folder: Path, runs: int, seconds: float, is_real: bool) -> list[RunSpec]:
    if is_real:
        return real_specs(folder, runs // 2)
    return light_specs(runs, seconds=seconds, marks=str(folder / "marks"))


def drive(folder: Path, runs: int, seconds: float, workers: int, is_real: bool) -> None:
    """One start of the driver."""
    (folder / "marks").mkdir(parents=True, exist_ok=True)
    executor = make_executor(workers=workers, device="cpu", make_worker=WORKER if is_real else LIGHT)
    run_study(folder / "study", CONFIGURATION, specs_of(folder, runs, seconds, is_real), executor)


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


def kill_at_random_moments(
    folder: Path, runs: int, kills: int, seconds: float, workers: int, is_real: bool = False
) -> dict[str, int]:
    """Starts the driver and kills it, `kills` times, then lets it end.

    Returns:
        How often it was killed, and how many records there are, were repeated, were lost and are broken.
    """
    words = [sys.executable, __file__, str(folder), "--drive", "--runs", str(runs)]
    words += ["--seconds", str(seconds), "--workers", str(workers)]
    words += ["--real"] if is_real else []
    draw = random.Random(0)
    seen: dict[str, tuple[str, int]] = {}  # the record of each run, and how often it was started
    broken: list[str] = []
    counts = {"killed": 0, "repeated": 0, "lost": 0}
    for kill in range(kills + 1):
        driver = subprocess.Popen(words)
        if kill < kills:
            wait_for_moment(folder, draw, seconds)
            counts["killed"] += driver.poll() is None
            driver.send_signal(signal.SIGKILL)
        elif driver.wait() != 0:
            raise SystemExit(f"the driver ended with code {driver.returncode}")
        driver.wait()
        records = {
            name: (json.dumps(record.to_json(), sort_keys=True), count(folder / "marks", f"{name}-*"))
            for name, record in read_records(folder / "study", broken.append).items()
        }
        counts["lost"] += len(seen.keys() - records.keys())
        counts["repeated"] += sum(records[name] != seen[name] for name in seen.keys() & records.keys())
        seen = records
    assert seen.keys() == {spec.id for spec in specs_of(folder, runs, seconds, is_real)}
    return {**counts, "records": len(seen), "broken": len(broken)}


def main(options: Any) -> int:
    folder = Path(options.folder)
    arguments = (options.seconds, options.workers, options.real)
    if not options.drive:
        print(kill_at_random_moments(folder, options.runs, options.kills, *arguments))
        return 0
    try:
        drive(folder, options.runs, *arguments)
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--drive", action="store_true", help="be the driver")
    parser.add_argument("--real", action="store_true", help="train a tiny model")
    parser.add_argument("--runs", type=int, default=80)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--workers", type=int, default=2)
    code = main(parser.parse_args())
    sys.stdout.flush()
    os._exit(code)
