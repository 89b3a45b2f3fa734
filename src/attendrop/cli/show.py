"""What a run looks like in a terminal: tables before it, a bar while it trains, a summary behind it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from transformers import TrainerCallback

from ..experiments import Listener, Result
from ..tasks import Description

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False, soft_wrap=True)


class Terminal(Listener):
    """Shows a run as it goes. Processes beside the first are silent."""

    def __init__(self, is_first: bool = True) -> None:
        self.console = console if is_first else Console(quiet=True)
        self.bar = Bar(self.console)

    def note(self, text: str) -> None:
        self.console.print(f"[dim]note:[/dim] {escape(text)}", soft_wrap=True)

    def described(self, description: Description) -> None:
        self.console.print(data_table(description))
        if description.balance:
            self.console.print(balance_table(description))

    def interrupted(self) -> None:
        self.console.print("[yellow]stopping after this step; Ctrl-C again stops at once[/yellow]")

    def callbacks(self) -> Sequence[TrainerCallback]:
        return [self.bar]


def data_table(description: Description) -> Table:
    title = f"{description.task} ({description.kind})"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="dim")
    for column in ("part", "examples", "tokens: median", "95 %", "longest", f"cut at {description.max_length}"):
        table.add_column(column, justify="left" if column == "part" else "right")
    for part, rows in description.rows.items():
        lengths = description.lengths.get(part)
        cells = [f"{lengths.median:g}", f"{lengths.percentile95:g}", str(lengths.longest)] if lengths else [""] * 3
        cut = f"{lengths.truncated:.1%}" if lengths else ""
        table.add_row(part, f"{rows:,}", *cells, cut)
    return table


def balance_table(description: Description, most: int = 12) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("label")
    parts = list(description.balance)
    for part in parts:
        table.add_column(part, justify="right")
    for label in description.labels[:most]:
        counts = []
        for part in parts:
            balance = description.balance[part]
            total = max(1, sum(balance.values()))
            counts.append(f"{balance.get(label, 0):,} ({balance.get(label, 0) / total:.0%})")
        table.add_row(escape(label), *counts)
    if len(description.labels) > most:
        table.add_row(f"… {len(description.labels) - most} more", *[""] * len(parts))
    return table


class Bar(TrainerCallback):
    """A bar with loss, development score and time left; where there is no terminal, a line for each evaluation."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.progress: Progress | None = None
        self.bar: Any = None
        self.shown = {"loss": "", "dev": ""}
        self.is_over = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self.console.is_terminal or self.console.quiet:
            return
        self.progress = Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[shown]}"), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
            console=self.console,
        )  # fmt: skip
        self.progress.start()
        self.bar = self.progress.add_task("training", total=state.max_steps, completed=state.global_step, shown="")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.progress is not None:
            self.progress.update(self.bar, completed=state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            self.shown["loss"] = f"loss {float(logs['loss']):.3f}"
            self._update()

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        name = (args.metric_for_best_model or "loss").removeprefix("eval_")
        score = (metrics or {}).get(f"eval_{name}")
        if score is None:
            return  # another network's scores, or another data set's
        self.shown["dev"] = f"dev {name} {score:.4f}"
        self._update()
        loss = metrics.get("eval_loss", float("nan"))
        line = f"epoch {state.epoch or 0:.4g}: dev loss {loss:.4f}, {name} {score:.4f}"
        if state.is_world_process_zero and state.global_step and not self.is_over:
            self.console.print(line if name != "loss" else line.partition(", ")[0])

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.is_over = True
        self.stop()

    def stop(self) -> None:
        if self.progress is not None:
            self.progress.stop()
            self.progress = None

    def _update(self) -> None:
        if self.progress is not None:
            self.progress.update(self.bar, shown="  ".join(text for text in self.shown.values() if text))


def summary(result: Result, out: Console) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("scores")
    table.add_column("", justify="right")
    for name, value in result.metrics.items():
        table.add_row(escape(name), f"{value:.4f}" if isinstance(value, float) else str(value))
    folder = shlex.quote(str(result.folder))
    out.print(table)
    out.print(f"{result.record['steps']} steps in {result.record['seconds']:.0f} s, seed {result.record['seed']}")
    out.print(f"everything is in [bold]{escape(str(result.folder))}[/bold]: README.md tells what, curves.png shows it")
    out.print(f'next: attendrop predict {folder} "a text"', soft_wrap=True)
