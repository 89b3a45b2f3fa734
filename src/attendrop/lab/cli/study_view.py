"""Shows a study in the terminal: a bar with the remaining time, one line for each running worker, the last results."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..records import RunningRun, StudyRecord
from ..studies.status import Status, Watcher, duration
from .console import console, plain_table, shown

_LAST = 5  # results that the view shows
_MOST_FAILURES = 10  # failed runs that the view shows


class StudyView(Watcher):
    """Shows a study while it runs. Without a terminal, one line is printed for each run that has ended."""

    def __init__(self) -> None:
        self.is_live = console.is_interactive

    def watching(self, status: Callable[[], Status]) -> AbstractContextManager[Any]:
        if not self.is_live:
            return nullcontext()
        return Live(get_renderable=lambda: study_view(status()), console=console, refresh_per_second=2, transient=True)

    def note(self, text: str) -> None:
        console.print(f"[dim]note:[/dim] {shown(text)}", soft_wrap=True)

    def ended(self, record: StudyRecord, status: Status) -> None:
        if not self.is_live:
            console.print(f"{counts(status)}: {shown(run_name(record))}, {shown(result_of(record))}", soft_wrap=True)


def study_view(status: Status) -> RenderableType:
    """Return the progress of a study: counts, remaining time, running runs, latest results and failures."""
    parts: list[RenderableType] = [_headline(status)]
    if status.running:
        parts += ["", _running(status)]
    results = [*status.of("finished"), *status.of("stopped")]
    results.sort(key=lambda record: record.ended)
    if results:
        parts += ["", _results(results[-_LAST:])]
    if failures := status.of("failed"):
        parts += ["", _failures(failures)]
    parts += [Text(sentence, style="yellow") for sentence in status.broken]
    return Group(*parts)


def counts(status: Status) -> str:
    """Return the numbers of finished, total and failed runs, and the end of the study."""
    done = str(status.done) if status.total is None else f"{status.done}/{status.total}"
    failed = len(status.of("failed"))
    parts = [f"{done} done", *([f"{failed} failed"] if failed else [])]
    if status.eta is not None:
        parts.append(f"{_span(status.eta)} left")
    return ", ".join(parts)


def run_name(run: RunningRun | StudyRecord) -> str:
    """Return a run in a few words: its method, its seed, and its task and amount of data."""
    return f"{run.method} seed {run.seed} on {run.task}{'' if run.size == 'all' else f' {run.size}'}"


def result_of(record: StudyRecord) -> str:
    """Return how a run ended: its score, or why it failed."""
    if record.error is not None:
        return f"failed: {record.error.type}: {record.error.message}"
    score = _score(record)
    stopped = "stopped early, " if record.status == "stopped" else ""
    seconds = duration(record)
    return stopped + ", ".join([*([score] if score else []), *([] if seconds is None else [_span(seconds)])])


def _score(record: StudyRecord) -> str:
    value = record.score("validation")
    return f"{record.metric} {value:.4f}" if isinstance(value, float) else ""


def _headline(status: Status) -> Table:
    table = Table.grid(padding=(0, 2))
    cells: list[RenderableType] = [f"[bold]{shown(status.kind)}[/bold]"]
    if status.total:
        cells.append(ProgressBar(total=status.total, completed=min(status.total, len(status.records)), width=30))
    left = "" if status.left is None else f", {len(status.running)} running, {status.left} not started"
    cells.append(f"{counts(status)}{left}")
    table.add_row(*cells)
    return table


def _running(status: Status) -> Table:
    table = plain_table("running", "worker", "epoch", "score", "since")
    now = time.time()
    for run in status.running:
        epoch = f"{run.epoch or 0:.3g}/{run.epochs:g}" if run.epochs else ""
        score = "" if run.score is None else f"{run.score:.4f}"
        worker = shown(run.worker)  # empty before its first report
        table.add_row(shown(run_name(run)), worker, epoch, score, _span(now - run.since))
    return table


def _results(records: list[StudyRecord]) -> Table:
    table = plain_table("last results", "")
    for record in records:
        table.add_row(shown(run_name(record)), shown(result_of(record)))
    return table


def _failures(records: list[StudyRecord]) -> Table:
    table = plain_table("failed", "reason")
    for record in records[:_MOST_FAILURES]:
        table.add_row(shown(run_name(record)), shown(result_of(record).removeprefix("failed: ")), style="red")
    if len(records) > _MOST_FAILURES:
        table.add_row(f"… {len(records) - _MOST_FAILURES} more", "")
    return table


def _span(seconds: float) -> str:
    """Return a length of time in words: `40 s`, `3 min`, `2 h 5 min`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
