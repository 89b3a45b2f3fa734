"""Evaluate the splits of a run with its Trainer, and judge the answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...utils.files import write_json
from .. import tasks
from .answers import CLASSES, Answers
from .judgement import choose_temperature, decimals, judge, write_judgement
from .tables import error_columns, prediction_columns, split_columns, write_table

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


class Judge:
    """Scores splits with the Trainer of a run, and keeps the answers, so that no split is computed twice.

    Args:
        trainer: The Trainer after training.

    Attributes:
        scores: Split -> metric -> value.
        answers: Split -> the answers on it.
        evaluation: Split -> its judgement.
        temperature: The temperature that was fitted on the validation data; 1 = none.
        temperature_note: What was done about the temperature, as a sentence.
        decimals: The decimals of a regression's predictions.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.scores: dict[str, dict[str, float]] = {}
        self.answers: dict[str, Answers] = {}
        self.evaluation: dict[str, Any] = {}
        self.temperature, self.temperature_note, self.decimals = 1.0, "", 4

    def score(self, name: str, split: Any, data: tasks.Data, prepared: tasks.Prepared, raw: str = "validation") -> None:
        """Evaluate a split that has labels.

        Args:
            name: The name of the split or task in the scores.
            split: The tokenised split.
            data: The data that it is a part of.
            prepared: The tokenised data.
            raw: The name of the split in `data`.
        """
        trainer, outputs = self.trainer, []
        before = trainer.compute_metrics

        def watch(prediction: Any) -> dict[str, float]:
            outputs.append(prediction.predictions)
            return prepared.compute_metrics(prediction)

        trainer.compute_metrics = watch
        try:
            metrics = trainer.evaluate(split)
        finally:
            trainer.compute_metrics = before
        self.scores[name] = scores_of(metrics)
        if data.task.kind == "mlm":
            return
        values = prepared.values(outputs[0], raw)
        if values is not None:
            self._judge(name, Answers.of(data.task, values, data.splits()[raw], prepared.word_starts.get(raw)))

    def _judge(self, name: str, answers: Answers) -> None:
        self.answers[name] = answers
        if name == "validation" and answers.task.kind in (*CLASSES, "multilabel"):
            self.temperature, self.temperature_note = choose_temperature(answers)
        elif name == "validation" and answers.task.kind == "regression":
            self.decimals = decimals(answers)
        self.evaluation[name] = judge(answers, name, self.temperature)

    @property
    def warnings(self) -> list[str]:
        return [warning for judged in self.evaluation.values() for warning in judged["warnings"]]

    def write(self, folder: Path, data: tasks.Data, prepared: tasks.Prepared) -> None:
        """Write the judgements and their tables and pictures.

        Args:
            folder: The output folder.
            data: The data of the run.
            prepared: The tokenised data.
        """
        if self.evaluation:
            write_json(folder / EVALUATION_FILE, self.evaluation)
        for name, split in data.splits().items():
            if name not in self.answers:
                continue
            suffix = "" if name == "validation" else f"_{name}"
            write_judgement(folder, self.evaluation[name], data.task.labels, suffix)
            starts = prepared.word_starts.get(name)
            columns = error_columns(self.answers[name], split, starts, self.temperature, self.decimals)
            write_table(folder / f"errors{suffix}.csv", columns, data.task, "csv")

    def write_predictions(self, path: Path, split: Any, values: Any, task: tasks.Task, word_starts: Any) -> None:
        """Write the predictions for a split of the run as CSV.

        Args:
            path: The file.
            split: The split as it was loaded.
            values: From `Prepared.values`.
            task: The task.
            word_starts: Those of the split from `Prepared`, in tagging.
        """
        columns = split_columns(task, split)
        columns |= prediction_columns(
            task, values, temperature=self.temperature, decimals=self.decimals,
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
