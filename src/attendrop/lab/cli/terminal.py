"""Shows a training run in the terminal: its notes, a progress bar, and a summary of the scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import Progress, TextColumn
from rich.table import Table
from transformers import TrainerCallback

from ...utils.shell import quoted
from ..records import ClassScores, Scores, SplitEvaluation
from ..report.evaluation import baseline_rows, scaling_sentence, score_rows
from ..runs import Listener, Result
from ..tasks import Description, Task, kind_of, modality_of
from .console import console, plain_table, print_note, print_sentence, shown, timed_bar
from .data_tables import balance_table, data_table


class Terminal(Listener):
    """Shows a run while it trains. Only the main process prints.

    Args:
        is_main_process: Whether this process prints.
    """

    def __init__(self, is_main_process: bool = True) -> None:
        self.console = console if is_main_process else Console(quiet=True)
        self.bar = ProgressBar(self.console)

    def note(self, text: str) -> None:
        print_note(text, self.console)

    def described(self, description: Description) -> None:
        self.console.print(data_table(description))
        if description.balance:
            self.console.print(balance_table(description))

    def interrupted(self) -> None:
        self.console.print("[yellow]stopping after this step; press Ctrl-C again to stop immediately[/yellow]")

    def callbacks(self) -> Sequence[TrainerCallback]:
        return [self.bar]


class ProgressBar(TrainerCallback):
    """A progress bar with loss, development score and remaining time, and one line for each evaluation.

    Args:
        console: Where to print. If it is not a terminal, or one without escape codes, there are only the lines.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.progress: Progress | None = None
        self.task: Any = None
        self.figures = {"loss": "", "dev": ""}
        self.is_training_over = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.progress = timed_bar(self.console, TextColumn("{task.fields[figures]}"))
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
        """Remove the bar."""
        if self.progress is not None:
            self.progress.stop()
            self.progress = None

    def _update(self) -> None:
        if self.progress is not None:
            self.progress.update(self.task, figures="  ".join(text for text in self.figures.values() if text))


def print_scores(scores: Scores, evaluation: Mapping[str, SplitEvaluation], console: Console) -> None:
    """Print every score with its interval and its baseline, then the classes of the first split.

    Args:
        scores: Part of the data -> metric -> value.
        evaluation: Part of the data -> its evaluation.
        console: Where to print.
    """
    table = plain_table("scores", "", "95 % interval", "most frequent answer", align_right=True)
    for name, *cells in score_rows(scores, evaluation):
        table.add_row(shown(name), *cells)
    console.print(table)
    if sentence := scaling_sentence(evaluation):
        console.print(f"[dim]{sentence}[/dim]")
    for split, of_split in evaluation.items():
        if of_split.baseline:
            console.print(f"[dim]most frequent answer on {shown(split)}: {shown(of_split.baseline)}[/dim]")
    first = next(iter(evaluation.values()), None)
    if first is not None and first.classes:
        console.print(classes_table(first.classes))


def classes_table(classes: Sequence[ClassScores], most: int = 12) -> Table:
    """Return the precision, recall and F1 of each class; of more than `most` classes, the most frequent."""
    table = plain_table("class", "precision", "recall", "F1", "examples", "predicted", align_right=True)
    largest = sorted(classes, key=lambda row: -row.examples)[:most]
    for row in (row for row in classes if row in largest):
        scores = (f"{score:.3f}" for score in (row.precision, row.recall, row.f1))
        table.add_row(shown(row.label), *scores, f"{row.examples:,}", f"{row.predicted:,}")
    if len(classes) > most:
        table.add_row(f"… {len(classes) - most} more", *[""] * 5)
    return table


def print_summary(result: Result, console: Console) -> None:
    """Print the scores of a finished run, where its files are, and what to do next."""
    record = result.record
    assert record is not None  # the run is finished
    evaluation = record.evaluation
    folder = quoted(result.folder)
    if result.sentence:
        print_sentence(f"[yellow]{shown(result.sentence)}[/yellow]", console)
    print_scores(result.scores, evaluation, console)
    if rows := baseline_rows(record.baselines):
        table = plain_table("beside simple baselines", rows[0][1], align_right=True)
        for name, value in rows[1:]:
            table.add_row(shown(name), value)
        console.print(table)
    console.print(f"{record.cost.steps} steps in {record.cost.total_seconds:.0f} s, seed {record.seed}")
    start = "README.md, curves.png and errors.csv" if evaluation else "README.md and curves.png"
    console.print(f"everything is in [bold]{shown(result.folder)}[/bold]; start with {start}", soft_wrap=True)
    task = Task.from_dict(record.task_definition)
    following = [f"train --model {folder} --task …"]
    if kind_of(task).has_answers:
        examples = modality_of(task).on_command_line(task)
        following = [f"predict {folder} {examples}", f"predict {folder} --file FILE"]
    for title, words in zip(("next:", "  or:"), following, strict=False):
        console.print(f"{title} attendrop {words}", soft_wrap=True, markup=False)
