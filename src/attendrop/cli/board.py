"""A table that follows several runs while they train, one row for each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from rich.live import Live
from rich.table import Table
from transformers import TrainerCallback

from ..experiments import Listener, Result
from .show import console


@dataclass
class Row:
    """A run, as the table shows it."""

    title: str
    epochs: int
    epoch: float = 0.0
    loss: float | None = None
    accuracy: float | None = None
    dev_loss: float | None = None
    started: float | None = None
    taken: float | None = None
    status: str = "waiting"

    def begin(self) -> None:
        self.started, self.status = time.perf_counter(), "loading"

    def end(self, result: Result) -> None:
        self.taken, self.status = self.seconds, "done"
        self.accuracy = result.metrics["validation/accuracy"]
        self.dev_loss = result.metrics["validation/loss"]

    @property
    def seconds(self) -> float | None:
        if self.taken is not None or self.started is None:
            return self.taken
        return time.perf_counter() - self.started

    def cells(self) -> list[str]:
        return [
            self.title, f"{self.epoch:.1f}/{self.epochs}", _number(self.loss, 3),
            _number(self.accuracy, 3), _number(self.dev_loss, 3), _number(self.seconds, 0), self.status,
        ]  # fmt: skip


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


class Board:
    """A table that follows the runs; where there is no terminal, lines."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self.is_live = console.is_terminal and not console.is_dumb_terminal

    def shown(self) -> Any:
        return Live(get_renderable=self.table, console=console, refresh_per_second=4) if self.is_live else nullcontext()

    def table(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for column in ("run", "epoch", "loss", "dev accuracy", "dev loss", "seconds", "status"):
            is_text = column in ("run", "status")
            # as wide as it will be, so that the table does not jump
            table.add_column(column, justify="left" if is_text else "right", min_width=10 if is_text else 7)
        for row in self.rows:
            table.add_row(*row.cells(), style={"waiting": "dim", "done": ""}.get(row.status, "bold"))
        return table

    def line(self, row: Row) -> None:
        if self.is_live:
            return
        parts = [f"epoch {row.epoch:.0f}/{row.epochs}"]
        for name, value in (("loss", row.loss), ("dev accuracy", row.accuracy), ("dev loss", row.dev_loss)):
            if value is not None:
                parts.append(f"{name} {value:.3f}")
        parts += [f"{row.seconds:.0f} s", *(["done"] if row.status == "done" else [])]
        console.print(f"{row.title}: {', '.join(parts)}", soft_wrap=True)


class Watch(Listener, TrainerCallback):
    """Keeps a row up to date."""

    def __init__(self, row: Row, board: Board) -> None:
        self.row = row
        self.board = board

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
        if metrics and "eval_accuracy" in metrics:  # AttendOut's other network is evaluated too
            self.row.accuracy, self.row.dev_loss = metrics["eval_accuracy"], metrics["eval_loss"]
            if self.row.status in ("training", "evaluating"):
                self.board.line(self.row)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.row.status != "stopping":
            self.row.status = "finishing"
