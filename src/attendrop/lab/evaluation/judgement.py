"""Judge a model on a split with labels: scores with intervals beside a baseline, classes, calibration."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import tasks
from ..statistics.calibration import (
    brier_score,
    calibration_error,
    fit_temperature,
    reliability,
    score_interval,
    softmax,
)
from ..tasks.findings import shortened
from ..tasks.metrics import f1_of
from ..tasks.predictions import cell
from .answers import CLASSES, Answers

LEAST_FOR_TEMPERATURE = 50  # items; with fewer the fit says more about them than about the model


def judge(answers: Answers, split: str, temperature: float = 1.0) -> dict[str, Any]:
    """Judge answers. The result can be written as JSON.

    Args:
        answers: The answers of a model on a split.
        split: The name of the split, for the sentences.
        temperature: The temperature that was fitted on the validation data; 1 = none was.

    Returns:
        `examples`; `scores`, which has `value`, `low`, `high` (95 % bootstrap interval over the examples) and
        `baseline` for each metric; `baseline`, what the baseline always answers; `classes`, `confusion` and
        `calibration` for the kinds that have them; and `warnings`.
    """
    constant, description = _most_frequent(answers)
    judged: dict[str, Any] = {
        "examples": answers.examples,
        "baseline": description,
        "scores": {name: _score(name, answers, constant) for name in _metrics(answers.task)},
    }
    if answers.task.kind in (*CLASSES, "multilabel"):
        judged["classes"] = _classes(answers)
        judged["calibration"] = _calibration(answers, temperature)
    if answers.task.kind in CLASSES:
        judged["confusion"] = _confusion(answers).tolist()
    judged["warnings"] = _warnings(judged, answers, split)
    return judged


def _metrics(task: tasks.Task) -> Sequence[str]:
    is_short = task.kind == "classification" and "macro_f1" not in task.metrics
    return (*task.metrics, "macro_f1") if is_short else task.metrics


def _score(name: str, answers: Answers, constant: Any) -> dict[str, float | None]:
    metric, pair = tasks.METRICS[name], answers.for_metrics(answers.predicted)
    function, columns = metric.statistic(*pair)
    low, high = score_interval(function, *columns)
    baseline = None if constant is None else metric(*answers.for_metrics(constant))
    return {"value": metric(*pair), "low": low, "high": high, "baseline": baseline}


def _most_frequent(answers: Answers) -> tuple[Any, str | None]:
    """The best constant answer for every item, and in words; None where there is none."""
    task, gold = answers.task, answers.gold
    if task.kind == "translation":
        return None, None
    if task.kind == "regression":
        return np.full(len(gold), gold.mean()), f"the mean, {gold.mean():.4g}"
    if task.kind == "multilabel":
        usual = gold.mean(0) > 0.5
        names = [name for name, is_usual in zip(task.labels, usual, strict=True) if is_usual]
        return np.tile(usual.astype(int), (len(gold), 1)), f"{', '.join(names) or 'no label'}"
    first = int(np.bincount(answers.scored()[1]).argmax())
    return np.full(len(gold), first), f"{task.labels[first]}"


def _confusion(answers: Answers) -> np.ndarray:
    logits, gold = answers.scored()
    size = len(answers.task.labels)
    return np.bincount(gold * size + logits.argmax(-1), minlength=size * size).reshape(size, size)


def _classes(answers: Answers) -> list[dict[str, Any]]:
    """Precision, recall and F1 of each class."""
    if answers.task.kind == "multilabel":
        said, gold = answers.predicted, answers.gold
        right, predicted, there = (said & gold).sum(0), said.sum(0), gold.sum(0)
    else:
        counts = _confusion(answers)
        right, predicted, there = np.diag(counts), counts.sum(0), counts.sum(1)
    columns = {
        "precision": right / np.maximum(predicted, 1),
        "recall": right / np.maximum(there, 1),
        "f1": f1_of(right, predicted, there),
        "examples": there,
        "predicted": predicted,
    }
    return [
        {"label": label, **{name: column[i].item() for name, column in columns.items()}}
        for i, label in enumerate(answers.task.labels)
    ]


def _calibration(answers: Answers, temperature: float) -> dict[str, Any]:
    """How well the probabilities fit, as the model gives them and with the temperature."""
    logits, gold = answers.scored()
    found: dict[str, Any] = {"temperature": temperature}
    for name, value in (("raw", 1.0), ("scaled", temperature)):
        chances = softmax(logits, value)
        table = reliability(chances, gold)
        found[name] = {
            "ece": calibration_error(chances, gold),
            "brier": brier_score(chances, gold),
            "reliability": table._asdict(),
        }
        squares = ((chances - np.eye(chances.shape[1])[gold]) ** 2).sum(-1)
        found[name]["brier_low"], found[name]["brier_high"] = score_interval(np.mean, squares)
    return found


def choose_temperature(answers: Answers) -> tuple[float, str]:
    """The temperature with the smallest log loss on validation data, and what was done, as a sentence.

    Args:
        answers: The answers on the validation data.
    """
    logits, gold = answers.scored()
    if len(gold) < LEAST_FOR_TEMPERATURE:
        return 1.0, f"no temperature is fitted to fewer than {LEAST_FOR_TEMPERATURE} validation answers"
    if (logits.argmax(-1) == gold).all():
        return 1.0, "no temperature is fitted, because every validation answer is right"
    temperature = fit_temperature(logits, gold)
    return (
        temperature,
        f"probabilities are scaled with the temperature {temperature:.3g}, fitted on the validation data",
    )


def decimals(answers: Answers) -> int:
    """How many decimals of a regression's predictions mean something.

    They go down to a hundredth of the validation error, or of the spread of the predictions where that is smaller, so
    that predictions keep their order.

    Args:
        answers: The answers on the validation data.
    """
    error = float(np.sqrt(np.mean((answers.values - answers.gold) ** 2)))
    smallest = min(error, float(np.std(answers.values)))
    if not smallest > 0 or not math.isfinite(smallest):
        return 4
    return min(6, max(0, math.ceil(-math.log10(smallest / 100))))


def _warnings(judged: Mapping[str, Any], answers: Answers, split: str) -> list[str]:
    found = []
    name = answers.task.metrics[0]
    score = judged["scores"][name]
    if answers.task.kind in CLASSES and np.count_nonzero(gold := np.bincount(answers.scored()[1])) > 1:
        said = np.unique(answers.predicted)
        if len(said) == 1:
            share = gold[said[0]] / gold.sum() if said[0] < len(gold) else 0.0
            found.append(
                f"the model answers {answers.task.labels[said[0]]!r} for every item of {split}, which is right for "
                f"{share:.1%}: it has not learned to tell the classes apart; train longer, raise --learning-rate, or "
                "use --class-weights balanced"
            )
    if not found and score["baseline"] is not None and answers.task.kind != "regression":
        sign = 1 if tasks.METRICS[name].greater_is_better else -1
        if sign * score["value"] <= sign * score["baseline"]:
            found.append(
                f"{name} on {split} is {score['value']:.4f}, no better than {score['baseline']:.4f}, which always "
                f"answering {judged['baseline']!r} reaches"
            )
    if answers.task.kind == "regression" and np.ptp(answers.values) < 1e-3 * max(np.ptp(answers.gold), 1e-12):
        found.append(f"the model predicts almost the same number for every example of {split}")
    if answers.task.kind == "translation" and len(set(answers.values)) == 1 < len(set(answers.gold)):
        found.append(f"the model writes the same text for every example of {split}: {shortened(answers.values[0])!r}")
    return found


def write_judgement(folder: Path, judged: Mapping[str, Any], labels: Sequence[str], suffix: str = "") -> None:
    """Write the tables and pictures of a judgement: classes, confusion matrix and reliability diagram.

    Args:
        folder: The folder to write to.
        judged: From `judge`.
        labels: The names of the classes.
        suffix: Added to the names of the files, such as `_test`.
    """
    from ..report.judgement import SHOWN_CLASSES, plot_confusion, plot_reliability

    if "classes" in judged:
        with (folder / f"classes{suffix}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(judged["classes"][0])
            for row in judged["classes"]:
                writer.writerow([round(v, 4) if isinstance(v, float) else cell(v) for v in row.values()])
        plot_reliability(judged["calibration"], folder / f"reliability{suffix}.png")
    if "confusion" in judged:
        with (folder / f"confusion{suffix}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["right answer", *map(cell, labels)])
            for label, counts in zip(labels, judged["confusion"], strict=True):
                writer.writerow([cell(label), *counts])
        if len(labels) <= SHOWN_CLASSES:
            plot_confusion(judged["confusion"], labels, folder / f"confusion{suffix}.png")
