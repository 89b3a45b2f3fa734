"""Evaluate the splits of a run with its Trainer, and write the tables of its output folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...utils.files import write_json
from .. import tasks
from ..records import SplitEvaluation
from ..tasks.kinds import Answers
from .scores import choose_temperature, evaluate
from .tables import error_columns, prediction_columns, split_columns, write_evaluation, write_table
from .thresholds import USUAL, choose_threshold

EVALUATION_FILE = "evaluation.json"


class Part(NamedTuple):
    """A part of the data that a run is scored on.

    Attributes:
        name: Its name in the scores.
        split: The tokenised split.
        data: The data that it is a part of.
        prepared: The tokenised data.
        raw: The name of the split in `data`.
    """

    name: str
    split: Any
    data: tasks.Data
    prepared: tasks.Prepared
    raw: str


class Evaluator:
    """Evaluates splits with the Trainer of a run, and keeps the predictions, so that no split is computed twice.

    Args:
        trainer: The Trainer of the run (`RunTrainer`) after training.

    Attributes:
        scores: Split -> metric -> value.
        answers: Split -> the predictions on it, with the gold answers.
        evaluation: Split -> its evaluation, from `scores.evaluate`.
        temperature: The temperature that was fitted on the validation data; 1 = none.
        temperature_note: A sentence about the choice of the temperature.
        threshold: The probability above which a label is predicted, for several labels; chosen on the validation data.
        threshold_note: A sentence about the choice of the threshold; empty for tasks without one.
        decimals: The decimals of a regression's predictions.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.scores: dict[str, dict[str, float]] = {}
        self.answers: dict[str, Answers] = {}
        self.evaluation: dict[str, SplitEvaluation] = {}
        self.temperature, self.temperature_note, self.decimals = 1.0, "", 4
        self.threshold, self.threshold_note = USUAL, ""

    def score(self, name: str, split: Any, data: tasks.Data, prepared: tasks.Prepared, raw: str = "validation") -> None:
        """Evaluate a split that has labels.

        Args:
            name: The name of the split or task in the scores.
            split: The tokenised split.
            data: The data that it is a part of.
            prepared: The tokenised data.
            raw: The name of the split in `data`.
        """
        outputs = []

        def watch(prediction: Any) -> dict[str, float]:
            outputs.append(prediction.predictions)
            return prepared.compute_metrics(prediction)

        self.scores[name] = scores_of(self.trainer.score(split, watch))
        kind = tasks.kind_of(data.task)
        values = prepared.values(outputs[0], raw) if kind.has_answers else None
        if values is not None:
            self._evaluate(name, kind.answers.of(data.task, values, data.splits()[raw], prepared.word_starts.get(raw)))

    def _evaluate(self, name: str, answers: Answers) -> None:
        if name == "validation":
            self.decimals = answers.decimals()
            if answers.has_probabilities:
                self.temperature, self.temperature_note = choose_temperature(answers)
            self.threshold, self.threshold_note, answers = choose_threshold(answers)
        elif answers.has_threshold:
            answers = dataclasses.replace(answers, threshold=self.threshold)
        self.answers[name] = answers
        self.evaluation[name] = evaluate(answers, name, self.temperature)
        if answers.has_threshold:  # those of the Trainer have the usual one
            scores = self.evaluation[name].scores
            self.scores[name] |= {metric: scores[metric].value for metric in answers.task.metrics}

    @property
    def warnings(self) -> list[str]:
        return [warning for evaluation in self.evaluation.values() for warning in evaluation.warnings]

    def write(self, folder: Path, data: tasks.Data, prepared: tasks.Prepared) -> None:
        """Write the evaluations and their tables and pictures.

        Args:
            folder: The output folder.
            data: The data of the run.
            prepared: The tokenised data.
        """
        if self.evaluation:
            write_json(folder / EVALUATION_FILE, {name: part.to_json() for name, part in self.evaluation.items()})
        for name, split in data.splits().items():
            if name not in self.answers:
                continue
            suffix = "" if name == "validation" else f"_{name}"
            write_evaluation(folder, self.evaluation[name], data.task.labels, suffix)
            starts = prepared.word_starts.get(name)
            columns = error_columns(self.answers[name], split, starts, self.temperature, self.decimals, data.origin)
            write_table(folder / f"errors{suffix}.csv", columns, data.task, "csv")

    def write_predictions(self, path: Path, split: Any, values: Any, data: tasks.Data, word_starts: Any) -> None:
        """Write the predictions for a split of the run as CSV.

        Args:
            path: The file.
            split: The split as it was loaded.
            values: From `Prepared.values`.
            data: The data that the split is a part of.
            word_starts: Those of the split from `Prepared`, in tagging.
        """
        task = data.task
        columns = split_columns(task, split, data.origin)
        columns |= prediction_columns(
            task, values, temperature=self.temperature, decimals=self.decimals, threshold=self.threshold,
            word_starts=word_starts, taken=tuple(columns),
        )  # fmt: skip
        write_table(path, columns, task, "csv")


def scores_of(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of an evaluation by their names, without the timings of the Trainer.

    Args:
        metrics: What `Trainer.evaluate` returned.
    """
    timings = ("runtime", "per_second", "epoch", "preparation_time")
    return {
        key.removeprefix("eval_"): value
        for key, value in metrics.items()
        if not any(timing in key for timing in timings)
    }
