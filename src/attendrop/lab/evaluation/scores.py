"""Evaluate a model on a split with labels: scores with intervals beside a baseline, classes, calibration, warnings."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import tasks
from ..records import Calibration, ClassScores, IntervalScore, Probabilities, Reliability, SplitEvaluation
from ..statistics.calibration import fit_temperature, reliability, score_interval, softmax
from ..tasks.kinds import Answers
from ..tasks.metrics import f1_of
from ..tasks.outcomes import shown_outcomes

LEAST_FOR_TEMPERATURE = 50  # items; with fewer the fit says more about them than about the model


def evaluate(answers: Answers, split: str, temperature: float = 1.0) -> SplitEvaluation:
    """Evaluate predictions.

    Args:
        answers: The predictions of a model on a split, with the gold answers.
        split: The name of the split, for the sentences.
        temperature: The temperature that was fitted on the validation data; 1 = none was.
    """
    constant, description = answers.most_frequent()
    further = [name for name in tasks.kind_of(answers.task).further_metrics if name not in answers.task.metrics]
    evaluation = SplitEvaluation(
        examples=answers.examples,
        scores={name: _score(name, answers, constant) for name in (*answers.task.metrics, *further)},
        baseline=description,
    )
    if answers.has_probabilities:
        evaluation.classes = _classes(answers)
        evaluation.calibration = _calibration(answers, temperature)
    if answers.has_confusion:
        evaluation.confusion = answers.confusion().tolist()
    evaluation.warnings = _warnings(evaluation, answers, split)
    return evaluation


def _score(name: str, answers: Answers, constant: Any) -> IntervalScore:
    metric, pair = tasks.METRICS[name], answers.for_metrics(answers.predicted)
    function, columns = metric.statistic(*pair)
    low, high = score_interval(function, *columns, limits=metric.limits)
    baseline = None if constant is None else metric(*answers.for_metrics(constant))
    return IntervalScore(metric(*pair), low, high, baseline)


def _classes(answers: Answers) -> list[ClassScores]:
    """Return the precision, recall and F1 of each class."""
    true_positives, predicted, support = answers.class_counts()
    columns = {
        "precision": true_positives / np.maximum(predicted, 1),
        "recall": true_positives / np.maximum(support, 1),
        "f1": f1_of(true_positives, predicted, support),
        "examples": support,
        "predicted": predicted,
    }
    return [
        ClassScores(label, **{name: column[i].item() for name, column in columns.items()})
        for i, label in enumerate(answers.task.labels)
    ]


def _calibration(answers: Answers, temperature: float) -> Calibration:
    """Return how well the probabilities fit, as the model gives them (`raw`) and with the temperature (`scaled`)."""
    logits, gold = answers.scored()
    raw, scaled = (_measured(softmax(logits, value), gold) for value in (1.0, temperature))
    return Calibration(temperature, raw, scaled)


def _measured(probabilities: Any, gold: Any) -> Probabilities:
    shown = shown_outcomes(probabilities, gold)
    low, high = score_interval(np.mean, ((probabilities - np.eye(probabilities.shape[1])[gold]) ** 2).sum(-1))
    table = Reliability(**reliability(probabilities, gold)._asdict())
    return Probabilities(shown["ece"], shown["brier"], low, high, table, shown["loss"])


def _warnings(evaluation: SplitEvaluation, answers: Answers, split: str) -> list[str]:
    name = answers.task.metrics[0]
    score = evaluation.scores[name]
    warnings = answers.warnings(split)
    if not warnings and score.baseline is not None and answers.is_compared_with_baseline:
        sign = 1 if tasks.METRICS[name].greater_is_better else -1
        if sign * score.value <= sign * score.baseline:
            warnings.append(
                f"{name} on {split} is {score.value:.4f}, no better than {score.baseline:.4f}, which always "
                f"answering {evaluation.baseline!r} reaches"
            )
    return warnings


def choose_temperature(answers: Answers) -> tuple[float, str]:
    """Return the temperature with the smallest log loss on validation data, and what was done, as a sentence.

    Args:
        answers: The predictions on the validation data.
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
