"""A table with one row for each of several runs, updated while they train."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from rich.live import Live
from rich.table import Table
from transformers import TrainerCallback

from ..runs import Listener, Result
from .console import console, plain_table


@dataclass
class RunRow:
    """The row of one run.

    Args:
        title: The name of the row.
        epochs: How many epochs the run will have.
    """

    title: str
    epochs: int
    epoch: float = 0.0
    loss: float | None = None
    accuracy: float | None = None
    dev_loss: float | None = None
    started_at: float | None = None
    duration: float | None = None  # set at the end
    status: str = "waiting"

    def begin(self) -> None:
        self.started_at, self.status = time.perf_counter(), "loading"

    def end(self, result: Result) -> None:
        self.duration, self.status = self.seconds, "done"
        self.accuracy = result.scores["validation"]["accuracy"]
        self.dev_loss = result.scores["validation"]["loss"]

    @property
    def seconds(self) -> float | None:
        """The time since the run began, up to its end."""
        if self.duration is not None or self.started_at is None:
            return self.duration
        return time.perf_counter() - self.started_at

    def cells(self) -> list[str]:
        return [
            self.title, f"{self.epoch:.1f}/{self.epochs}", _number(self.loss, 3),
            _number(self.accuracy, 3), _number(self.dev_loss, 3), _number(self.seconds, 0), self.status,
        ]  # fmt: skip

    def line(self) -> str:
        """Return the row as a line of text."""
        parts = [f"epoch {self.epoch:.0f}/{self.epochs}"]
        for name, value in (("loss", self.loss), ("dev accuracy", self.accuracy), ("dev loss", self.dev_loss)):
            if value is not None:
                parts.append(f"{name} {value:.3f}")
        parts += [f"{self.seconds:.0f} s", *(["done"] if self.status == "done" else [])]
        return f"{self.title}: {', '.join(parts)}"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


class LiveTable:
    """The table. If the console is not a terminal, lines of text are printed instead.

    Args:
        rows: One for each run, in the order in which they train.
    """

    def __init__(self, rows: list[RunRow]) -> None:
        self.rows = rows
        self.is_live = console.is_interactive

    def shown(self) -> AbstractContextManager[Any]:
        """Show and update the table inside the context."""
        return Live(get_renderable=self.table, console=console, refresh_per_second=4) if self.is_live else nullcontext()

    def table(self) -> Table:
        table = plain_table()
        for column in ("run", "epoch", "loss", "dev accuracy", "dev loss", "seconds", "status"):
            is_text = column in ("run", "status")
            # The width is fixed, so that the columns do not move when their content changes.
            table.add_column(column, justify="left" if is_text else "right", min_width=10 if is_text else 7)
        for row in self.rows:
            table.add_row(*row.cells(), style={"waiting": "dim", "done": ""}.get(row.status, "bold"))
        return table

    def print_line(self, row: RunRow) -> None:
        """Print the row as a line, where the table cannot be shown."""
        if not self.is_live:
            console.print(row.line(), soft_wrap=True)


class RowUpdater(Listener, TrainerCallback):
    """Listens to a run and updates its row.

    Args:
        row: The row of the run.
        table: The table that the row is in.
    """

    def __init__(self, row: RunRow, table: LiveTable) -> None:
        self.row = row
        self.table = table

    def interrupted(self) -> None:
        self.row.status = "stopping"

    def callbacks(self) -> Sequence[TrainerCallback]:
        return [self]

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.row.epoch = float(state.epoch or 0)
        if self.row.status != "stopping":
            self.row.status = "training"

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.row.status == "training":
            self.row.status = "evaluating"

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            self.row.loss = float(logs["loss"])

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        if metrics and "eval_accuracy" in metrics:  # AttendOut's second network is evaluated too, under other names
            self.row.accuracy, self.row.dev_loss = metrics["eval_accuracy"], metrics["eval_loss"]
            if self.row.status in ("training", "evaluating"):
                self.table.print_line(self.row)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.row.status != "stopping":
            self.row.status = "finishing"
