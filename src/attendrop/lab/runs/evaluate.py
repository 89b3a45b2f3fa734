"""Evaluate the model of a finished run on another file with labels, as `attendrop train` does on validation data."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from ...errors import UserError
from ...utils.checks import check_whole
from ...utils.deprecation import warn_renamed
from ...utils.files import whole_folder, write_json
from .. import tasks
from ..evaluation.evaluator import EVALUATION_FILE
from ..evaluation.scores import evaluate
from ..evaluation.tables import error_columns, write_evaluation, write_table
from ..records import Scores, SplitEvaluation, flat_scores
from ..tasks.findings import listed, shortened
from .folder import check_writable
from .predict import Progress, read_finished, read_rows


@dataclasses.dataclass
class Evaluation:
    """A model evaluated on a file.

    Attributes:
        folder: The folder with the tables and pictures.
        name: The name of the file, without its folder.
        scores: Name of the file -> metric -> value.
        results: Everything else.
        notes: Notes about the file, such as excluded rows.
    """

    folder: Path
    name: str
    scores: Scores
    results: SplitEvaluation
    notes: list[str]

    @property
    def metrics(self) -> dict[str, float]:
        """Deprecated: use `scores`. The scores by `<name>/<metric>`."""
        warn_renamed("Evaluation.metrics", "Evaluation.scores")
        return flat_scores(self.scores)

    @property
    def judgement(self) -> SplitEvaluation:
        """Deprecated: use `results`."""
        warn_renamed("Evaluation.judgement", "Evaluation.results")
        return self.results


def evaluate_file(
    folder: str | Path,
    file: str | Path,
    output: str | Path | None = None,
    batch_size: int = 32,
    overwrite: bool = False,
    options: tasks.ReadOptions | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Evaluate the model of a run on a file, and write the same tables and pictures as `attendrop train`.

    Args:
        folder: The folder of a finished run.
        file: The file, with the columns of the training file and with labels; `-` = the standard input.
        output: The folder to write to; None = `<file>_evaluation` next to `file`.
        batch_size: The number of examples in a batch.
        overwrite: Whether files of an earlier evaluation in `output` may be replaced.
        options: The encoding and the separator of `file`.
        progress: Called after each batch with the number of examples that are done, and of all.
    """
    check_whole("batch_size", batch_size, 1)
    run = read_finished(folder)
    path = Path(file).stem if str(file) != "-" else "standard_input"
    place = Path(output) if output is not None else Path(file).with_name(f"{path}_evaluation")
    check_writable(place, "output", place, may_create=True)
    if place.is_dir() and any(place.iterdir()) and not overwrite:
        raise UserError(
            f"output is {str(place)!r}, which is not empty; choose another with --output or use --overwrite."
        )
    data, table = read_rows(file, run.task, options)
    if not has_labels(data):
        target = tasks.kind_of(run.task).target(run.task)
        if target not in table.columns and (others := [name for name in table.columns if name not in run.task.text]):
            shown = listed(map(shortened, others), 10)
            raise UserError(
                f"{file} has no column {target!r}, in which the labels of training were; if they are in one of "
                f"{shown}, rename it."
            )
        raise UserError(
            f"{file} has no labels, and without them there is nothing to evaluate; see `attendrop predict`."
        )
    outputs = run.load().outputs(data, batch_size, progress)
    answers = outputs.answers()
    assert answers is not None
    results = evaluate(answers, path, run.temperature)
    columns = error_columns(answers, data.test, outputs.word_starts, run.temperature, run.decimals, data.origin)
    with whole_folder(place) as draft:
        write_json(draft / EVALUATION_FILE, {path: results.to_json()})
        write_evaluation(draft, results, run.task.labels)
        write_table(draft / "errors.csv", columns, run.task, "csv")
    scores = {path: {name: results.scores[name].value for name in run.task.metrics}}
    return Evaluation(place, path, scores, results, data.notes)


def has_labels(data: tasks.Data) -> bool:
    """Return whether `data.test` has labels, or the targets of a translation."""
    return data.test is not None and tasks.kind_of(data.task).target(data.task) in data.test.column_names
