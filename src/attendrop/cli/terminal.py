"""Shows a training run in the terminal: tables of the data, a progress bar, and a summary of the scores."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from transformers import TrainerCallback

from ..experiments import Listener, Result
from ..report.judgement import score_rows
from ..tasks import Description, Task, modality_of
from .console import console, plain_table, print_sentence, shown


class Terminal(Listener):
    """Shows a run while it trains. Only the main process prints.

    Args:
        is_main_process: Whether this process prints.
    """

    def __init__(self, is_main_process: bool = True) -> None:
        self.console = console if is_main_process else Console(quiet=True)
        self.bar = ProgressBar(self.console)

    def note(self, text: str) -> None:
        is_warning = text.startswith("warning: ")
        level = "[yellow]warning:[/yellow]" if is_warning else "[dim]note:[/dim]"
        print_sentence(f"{level} {shown(text.removeprefix('warning: '))}", self.console)

    def described(self, description: Description) -> None:
        self.console.print(data_table(description))
        if description.balance:
            self.console.print(balance_table(description))

    def interrupted(self) -> None:
        self.console.print("[yellow]stopping after this step; press Ctrl-C again to stop immediately[/yellow]")

    def callbacks(self) -> Sequence[TrainerCallback]:
        return [self.bar]


def data_table(description: Description) -> Table:
    """The number of examples of each part, and their lengths."""
    lengths_titles: tuple[str, ...] = (
        f"{description.unit}: median",
        "95 %",
        "longest",
        f"cut at {description.max_length}",
    )
    lengths_titles = lengths_titles if description.lengths else ()
    table = plain_table("part", "examples", *lengths_titles, align_right=True)
    table.title, table.title_justify = f"{shown(description.task)} ({description.kind})", "left"
    table.min_width = len(table.title)  # a title is wrapped at the width of the table
    for part, rows in description.rows.items():
        cells = [""] * len(lengths_titles)
        if lengths := description.lengths.get(part):
            cells = [f"{lengths.median:g}", f"{lengths.percentile95:g}", f"{lengths.longest}"]
            cells.append(f"{lengths.truncated:.1%}")
        table.add_row(shown(part), f"{rows:,}", *cells)
    return table


def balance_table(description: Description, most: int = 12) -> Table:
    """How many examples of each part have each label; of more than `most` labels, only the most frequent."""
    parts = description.balance
    table = plain_table("label", *parts, align_right=True)
    labels = list(description.labels)
    if len(labels) > most:
        first = next(iter(parts.values()))
        labels = sorted(labels, key=lambda label: -first.get(label, 0))[:most]
    for label in labels:
        table.add_row(shown(label), *(_share(counts, label) for counts in parts.values()))
    if len(description.labels) > most:
        table.add_row(f"… {len(description.labels) - most} more", *[""] * len(parts))
    return table


def _share(counts: dict[str, int], label: str) -> str:
    count, total = counts.get(label, 0), max(1, sum(counts.values()))
    return f"{count:,} ({count / total:.0%})"


class ProgressBar(TrainerCallback):
    """A progress bar with loss, development score and remaining time, and one line for each evaluation.

    Args:
        console: Where to print. If it is not a terminal, there is no bar, only the lines.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.progress: Progress | None = None
        self.task: Any = None
        self.figures = {"loss": "", "dev": ""}
        self.is_training_over = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self.console.is_terminal or self.console.quiet:
            return
        self.progress = Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[figures]}"), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
            console=self.console,
        )  # fmt: skip
        self.progress.start()
        self.task = self.progress.add_task("training", total=state.max_steps, completed=state.global_step, figures="")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.progress is not None:
            self.progress.update(self.task, completed=state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            self.figures["loss"] = f"loss {float(logs['loss']):.3f}"
            self._update()

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        name = (args.metric_for_best_model or "loss").removeprefix("eval_")
        score = (metrics or {}).get(f"eval_{name}")
        if score is None:
            return  # the scores of another network or of another data set
        self.figures["dev"] = f"dev {name} {score:.4f}"
        self._update()
        if state.is_world_process_zero and state.global_step and not self.is_training_over:
            line = f"epoch {state.epoch or 0:.4g}: dev loss {metrics.get('eval_loss', float('nan')):.4f}"
            self.console.print(line if name == "loss" else f"{line}, {name} {score:.4f}")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.is_training_over = True
        self.stop()

    def stop(self) -> None:
        """Removes the bar."""
        if self.progress is not None:
            self.progress.stop()
            self.progress = None

    def _update(self) -> None:
        if self.progress is not None:
            self.progress.update(self.task, figures="  ".join(text for text in self.figures.values() if text))


def print_scores(metrics: Mapping[str, Any], evaluation: Mapping[str, Any], console: Console) -> None:
    """Prints every score with its interval and its baseline, then the classes of the first split.

    Args:
        metrics: The scores by `<split>/<metric>`.
        evaluation: Split -> its judgement.
        console: Where to print.
    """
    table = plain_table("scores", "", "95 % interval", "most frequent answer", align_right=True)
    for name, *cells in score_rows(metrics, evaluation):
        table.add_row(shown(name), *cells)
    console.print(table)
    for split, judged in evaluation.items():
        if judged["baseline"]:
            console.print(f"[dim]most frequent answer on {shown(split)}: {shown(judged['baseline'])}[/dim]")
    first: Mapping[str, Any] = next(iter(evaluation.values()), {})
    if first.get("classes"):
        console.print(classes_table(first["classes"]))


def classes_table(classes: Sequence[Mapping[str, Any]], most: int = 12) -> Table:
    """Precision, recall and F1 of each class; of more than `most` classes, the most frequent."""
    table = plain_table("class", "precision", "recall", "F1", "examples", "predicted", align_right=True)
    largest = sorted(classes, key=lambda row: -row["examples"])[:most]
    for row in (row for row in classes if row in largest):
        scores = (f"{row[name]:.3f}" for name in ("precision", "recall", "f1"))
        table.add_row(shown(row["label"]), *scores, f"{row['examples']:,}", f"{row['predicted']:,}")
    if len(classes) > most:
        table.add_row(f"… {len(classes) - most} more", *[""] * 5)
    return table


def print_summary(result: Result, console: Console) -> None:
    """Prints the scores of a finished run, where its files are, and what to do next."""
    evaluation = result.record.get("evaluation", {})
    folder = shlex.quote(str(result.folder))
    print_scores(result.metrics, evaluation, console)
    console.print(f"{result.record['steps']} steps in {result.record['seconds']:.0f} s, seed {result.record['seed']}")
    start = "README.md, curves.png and errors.csv" if evaluation else "README.md and curves.png"
    console.print(f"everything is in [bold]{shown(result.folder)}[/bold]; start with {start}", soft_wrap=True)
    task = Task.from_dict(result.record["task"])
    predict = f"predict {folder} {modality_of(task).on_command_line(task)}"
    following = f"train --model {folder} --task …" if task.kind == "mlm" else predict
    console.print(f"next: attendrop {following}", soft_wrap=True, markup=False)
