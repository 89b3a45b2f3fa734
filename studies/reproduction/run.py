"""Runs the parts of the plan in order until the minutes are over; started again, it goes on where it stopped.

    python -m studies.reproduction.run --count
    python -m studies.reproduction.run gpu --data DATA --minilm FOLDER --mpnet FOLDER --minutes 28 --records FILE
    python -m studies.reproduction.run cpu --data DATA --minilm FOLDER --minutes 30 --records FILE

Where FILE exists it goes on from the records in it, of this machine or of another one: the runs see data and models
under the same paths everywhere. A run in progress is lost when the minutes are over.
"""

from __future__ import annotations

import argparse
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

from attendrop.errors import UserError
from attendrop.lab.records import StudyRecord
from attendrop.lab.reproduction.outcome import OUTCOME_FILE
from attendrop.lab.reproduction.registry import find_entry
from attendrop.lab.reproduction.run import make_setup, reproduce
from attendrop.lab.studies.driver import Watcher
from attendrop.lab.studies.executors import make_executor
from attendrop.lab.studies.status import Status
from attendrop.utils.files import whole_file

from .plan import CPU, GPU, MODELS, PARTS, Part, sittings

WORK = Path("/tmp/attendrop-reproduction")  # the paths of data and models are a part of the names of the runs
CARRIED = ("study.json", OUTCOME_FILE, "runs/*.json", "models/*.json")


class Clock(Watcher):
    """Stops the study at the end of the sitting, as Ctrl-C does.

    Args:
        end: The end, in seconds of `time.monotonic`.
    """

    def __init__(self, end: float) -> None:
        self.end = end

    def ended(self, record: StudyRecord, status: Status) -> None:
        """Check the time after each run."""
        if time.monotonic() > self.end:
            raise KeyboardInterrupt


def run_part(part: Part, work: Path, end: float, device: str | None, workers: int | None) -> bool:
    """Run a part, or go on with it; return whether it is complete.

    Args:
        part: The part.
        work: The folder with the data, the models and the studies.
        end: The end of the sitting, in seconds of `time.monotonic`.
        device: "cpu" or None.
        workers: Runs at the same time; None = as many as fit.
    """
    folder = work / "studies" / part.name
    settings = {**part.settings, **({"use_cpu": True} if device == CPU else {})}
    setup = make_setup(
        find_entry(part.entry), str(work / MODELS[part.model][3]), data=str(work / "data"), task=part.tasks,
        protocol=part.protocol, seeds=part.seeds, settings=settings,
    )  # fmt: skip
    if find_entry(part.entry).keeps_models:
        remove_unmeasured(folder)
    try:
        executor = make_executor("local", 1 if part.alone else workers, device=device)
        reproduce(setup, folder, executor, command=command_of(part), watcher=Clock(end))
    except KeyboardInterrupt:
        return False
    return True


def remove_unmeasured(folder: Path) -> None:
    """Remove the records of runs whose model was kept on another machine, and was not measured there."""
    for record in folder.glob("runs/*.json"):
        kept = folder / "models" / record.stem
        if not kept.is_dir() and not any(kept.parent.glob(f"{record.stem}-*.json")):
            record.unlink()


def command_of(part: Part) -> str:
    """Return the command of a part, as readers would type it."""
    words = ["attendrop reproduce", part.entry, f"--model {part.model.upper()} --data DATA --seeds {part.seeds}"]
    words += [f"--task {task}" for task in part.tasks]
    words += [] if part.protocol == "both" else [f"--protocol {part.protocol}"]
    return " ".join([*words, *(f"--{name.replace('_', '-')} {value}" for name, value in part.settings.items())])


def unpack(archive: Path, work: Path) -> None:
    """Put the records of an earlier sitting into the folder of the studies."""
    with tarfile.open(archive) as file:
        file.extractall(work / "studies", filter="data")


def pack(work: Path, archive: Path) -> None:
    """Store the records and the complete outcomes of all parts in one file."""
    studies = work / "studies"
    archive.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(archive) as place, tarfile.open(fileobj=place, mode="w:gz") as file:
        for path in sorted(path for pattern in CARRIED for path in studies.glob(f"*/{pattern}")):
            file.add(path, path.relative_to(studies))


def counted() -> Iterator[str]:
    """Return lines with the runs and expected minutes of the parts for a GPU, by sitting."""
    for number, parts in enumerate(sittings(), 1):
        yield f"sitting {number}, {sum(part.minutes for part in parts):.0f} minutes"
        yield from (f"  {part.name:34}{part.count:5} runs{part.minutes:8.1f} minutes" for part in parts)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="?", choices=(GPU, CPU))
    parser.add_argument("--count", action="store_true", help="show runs and expected minutes")
    parser.add_argument("--only", action="append", help="the name of a part; may be repeated")
    parser.add_argument("--data", type=Path, help="the folder with the data sets")
    for name, of in MODELS.items():
        parser.add_argument(f"--{name}", type=Path, help=f"the folder of {of[3]}")
    parser.add_argument("--minutes", type=float, default=28, help="no run begins after this time")
    parser.add_argument("--workers", type=int, help="runs at the same time; by default as many as fit")
    parser.add_argument("--records", type=Path, help="records of the sittings before, and of this one")
    parser.add_argument("--work", type=Path, default=WORK, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.count:
        print("\n".join(counted()))
        return 0
    if options.parts is None or options.data is None or options.records is None:
        parser.error("the parts, --data and --records are needed")
    end = time.monotonic() + 60 * options.minutes
    folders = {name: getattr(options, name) for name in MODELS}
    work = options.work
    work.mkdir(parents=True, exist_ok=True)
    for name, folder in {"data": options.data, **{MODELS[name][3]: of for name, of in folders.items()}}.items():
        if folder is not None:
            (work / name).unlink(missing_ok=True)
            (work / name).symlink_to(folder.absolute(), target_is_directory=True)
    if options.records.is_file():
        unpack(options.records, work)
    failed = 0
    for part in PARTS[options.parts]:
        if (options.only and part.name not in options.only) or (work / "studies" / part.name / OUTCOME_FILE).is_file():
            continue
        if time.monotonic() > end:
            break
        if folders[part.model] is None:
            print(f"{part.name}: left out, because --{part.model} is not given", flush=True)
            continue
        started = time.monotonic()
        try:
            done = run_part(part, work, end, CPU if options.parts == CPU else None, options.workers)
        except UserError as error:
            failed += 1
            print(f"{part.name}: {error}", flush=True)
            continue
        minutes = (time.monotonic() - started) / 60
        print(f"{part.name}: {'complete' if done else 'continued next time'}, {minutes:.1f} minutes", flush=True)
        pack(work, options.records)
        if not done:
            break
    pack(work, options.records)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
