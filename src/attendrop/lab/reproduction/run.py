"""Runs an entry as a study, and writes what came out. After an interruption, rerun it to continue.

study.json, runs/, models/   the study, see `lab/studies/driver.py`
outcome.json                 the numbers, the verdicts and the settings
outcome.md, outcome.png      the same for readers
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...utils.checks import check_choice, check_whole
from ...utils.files import write_whole
from .. import tasks
from ..records import StudyConfiguration, StudyRecord
from ..studies.driver import Study, Watcher
from ..studies.executors import Executor
from ..studies.kept_models import MODELS_FOLDER, check_space
from ..studies.spec import checksums_of_data, with_absolute_paths
from ..tasks import find_task
from .entry import Entry
from .figures import draw
from .measuring import measured, short
from .needs import check_data, check_model, is_model_of, layers_of
from .outcome import OUTCOME_FILE, Outcome, cells_of, verdicts_of
from .page import markdown_of
from .planning import SCALES, PlannedRun, Setup, of_first_seed, planned_runs, with_models

PAGE_FILE, FIGURE_FILE = "outcome.md", "outcome.png"


def make_setup(
    entry: Entry,
    model: str,
    *,
    data: str | None = None,
    scale: str = "paper",
    task: Sequence[str] = (),
    protocol: str = "both",
    seeds: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Setup:
    """Check what the user chose, and what it needs.

    Args:
        entry: The entry.
        model: The model, by name or folder.
        data: The folder of the data; None = the Hub.
        scale: "paper", or "small", which runs in minutes on a laptop.
        task: Some of the tasks of the entry; empty = all of them.
        protocol: "both", or one of the entry's.
        seeds: Runs of each row; None = the entry's.
        settings: Settings of `attendrop train` that differ from those of the entry.
    """
    check_choice("scale", scale, SCALES)
    chosen = _tasks(entry, scale, task)
    check_choice("protocol", protocol, ("both", *entry.protocols))
    if seeds is not None:
        check_whole("seeds", seeds, 1)
    check_data(entry, chosen, scale, data)
    described = tasks.load_config(model)
    check_model(entry, model, described)
    layers, width = layers_of(described)
    return Setup(
        entry=entry, model=str(with_absolute_paths({"model": model})["model"]), family=described.model_type,
        layers=layers, width=width,
        data_dir=None if data is None else str(Path(data).expanduser().absolute()), scale=scale, tasks=chosen,
        protocols=entry.protocols if protocol == "both" else (protocol,),
        seeds=seeds or (entry.small.seeds if scale == "small" else entry.seeds), settings=dict(settings or {}),
    )  # fmt: skip


def _tasks(entry: Entry, scale: str, wanted: Sequence[str]) -> tuple[str, ...]:
    known = tuple(dict.fromkeys((*entry.tasks_of(scale), *entry.tasks)))
    names = tuple(dict.fromkeys(find_task(name).name for name in wanted))
    if other := [name for name in names if name not in known]:
        raise UserError(
            f"task is {other[0]!r}, which {entry.name} does not have; it must be one of {', '.join(known)}."
        )
    return names or entry.tasks_of(scale)


def reproduce(
    setup: Setup,
    folder: str | Path,
    executor: Executor,
    *,
    command: str = "",
    retry_failed: bool = False,
    watcher: Watcher | None = None,
) -> Outcome:
    """Run an entry, and write its outcome into the folder.

    Args:
        setup: From `make_setup`.
        folder: The folder of the study.
        executor: Runs the runs; it is closed at the end.
        command: The command that the outcome shows.
        retry_failed: Whether to retry failed runs.
        watcher: Observes the study.
    """
    folder = Path(folder)
    runs = planned_runs(setup)
    if setup.entry.keeps_models:
        runs = with_models(runs, str((folder / MODELS_FOLDER).absolute()))
    specs = [run.spec for run in runs]
    configuration = StudyConfiguration(
        kind="reproduce", title=setup.entry.name, methods=list(dict.fromkeys(spec.method for spec in specs)),
        settings={"scale": setup.scale, "model": setup.model, **setup.settings}, tasks=list(setup.tasks),
        sizes=list(setup.sizes), seeds=setup.seeds, command=command,
        data_files=checksums_of_data(with_absolute_paths(spec.settings) for spec in specs),
    )  # fmt: skip
    waiting = iter(specs)
    with closing(executor), Study(folder, configuration, retry_failed=retry_failed, watcher=watcher) as study:
        checked = study.check(of_first_seed(runs), executor)
        sizes = [record.model_bytes for record in checked if record.model_bytes is not None]
        if setup.entry.keeps_models and sizes:
            study.watcher.note(check_space(folder, max(sizes), sum(not study.has_result(spec.id) for spec in specs)))
        for _ in study.run(lambda: next(waiting, None), executor, len({spec.id for spec in specs})):
            pass
        ended = [(run, study.records[run.spec.id]) for run in runs]
    outcome = _outcome(setup, ended, folder / MODELS_FOLDER, command)
    write_outcome(outcome, setup.entry, folder)
    return outcome


def _outcome(setup: Setup, ended: list[tuple[PlannedRun, StudyRecord]], models: Path, command: str) -> Outcome:
    entry = setup.entry
    finished = [(run, record) for run, record in ended if not record.has_failed]
    if not finished:
        raise UserError(f"all {len(ended)} runs failed; the first one: {ended[0][1].message.rstrip('.')}.")
    cells = cells_of(measured(setup, finished, models), entry.baseline)
    papers_model = is_model_of(entry, setup.model) or ""
    records = {record.id: record for _, record in ended}
    return Outcome(
        entry=entry.name, heading=entry.heading, title=entry.title, is_reading=entry.is_reading, setting=entry.setting,
        model=setup.model, papers_model=papers_model, scale=setup.scale, tasks=list(setup.tasks),
        examples={task: _examples(task, finished) for task in setup.tasks}, seeds=setup.seeds,
        changed={name: str(value) for name, value in setup.settings.items()}, command=command, runs=len(records),
        failed=[record.message for record in records.values() if record.has_failed],
        minutes=round(sum(record.cost.total_seconds or 0.0 for record in records.values()) / 60, 2),
        device=next(record.device for _, record in finished), cells=cells,
        verdicts=verdicts_of(entry, cells, papers_model, setup.scale),
    )  # fmt: skip


def _examples(task: str, finished: list[tuple[PlannedRun, StudyRecord]]) -> str:
    """Return how many examples the runs on a task had, and of how many they were drawn."""
    of_task = [record for run, record in finished if run.task == task]
    if not of_task:
        return "no run has ended"
    texts = []
    for split in ("train", "validation"):
        counts = sorted({record.examples.get(split, 0) for record in of_task})
        drawn = max((record.available.get(split, 0) for record in of_task), default=0)
        text = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
        texts.append(f"{text} {split}" + (f" (drawn from {drawn:,})" if drawn else ""))
    return " and ".join(texts) + " examples"


def write_outcome(outcome: Outcome, entry: Entry, folder: Path) -> None:
    """Write the outcome as JSON, its page and its figure.

    Args:
        outcome: The outcome.
        entry: Its entry.
        folder: The folder of the study.
    """
    write_whole(folder / OUTCOME_FILE, json.dumps(outcome.to_json(), indent=1) + "\n")
    has_figure = entry.drawing != "none"
    if has_figure:
        draw(outcome, entry.drawing, folder / FIGURE_FILE)
    write_whole(folder / PAGE_FILE, markdown_of(outcome, FIGURE_FILE if has_figure else None))


def needed_of(entry: Entry) -> str:
    """Return what an entry needs at the scale of the paper, as a sentence."""
    also = [name for task in entry.tasks for name in entry.also_of(task, "paper")]
    text = f"{', '.join(short(task) for task in entry.tasks)} with {' or '.join(entry.models)}"
    return text + (f", evaluated on {', '.join(also)} too" if also else "")
