"""Decisions about a prediction: whether it is marked as unsure, and which classes are still possible.

What the user requires (`Required`) becomes thresholds (`Rule`) by the outputs of the model for the validation data,
which the run has saved. These examples helped to choose the epoch and the temperature, and were not trained on.
"""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UserError
from ...utils.checks import check_number
from ...utils.files import write_whole
from ...utils.manifest import check_sealed
from .. import tasks
from ..statistics.calibration import softmax
from ..statistics.selective import choose_confidence, conformal_cut, least_examples, prediction_sets
from ..tasks.kinds import Answers

OUTPUTS_FILE = "validation_outputs.npz"
UNSURE = "unsure"


@dataclass(frozen=True)
class Required:
    """What the user requires of predictions.

    Attributes:
        min_confidence: The least probability of a prediction that is given.
        target_accuracy: The accuracy that the predictions that are given must have.
        coverage: How often the right class must be in the prediction set.
    """

    min_confidence: float | None = None
    target_accuracy: float | None = None
    coverage: float | None = None

    def __bool__(self) -> bool:
        return self != Required()

    def check(self, task: tasks.Task) -> None:
        """Raise a `UserError` if a number or the kind of task does not allow it."""
        if self.min_confidence is not None and self.target_accuracy is not None:
            raise UserError("min_confidence and target_accuracy both choose what is unsure; give one of them.")
        for name in ("min_confidence", "target_accuracy", "coverage"):
            value = getattr(self, name)
            if value is None:
                continue
            check_number(name, value, 0, 1, is_above=True, is_below=True)
            if not tasks.kind_of(task).has_one_class:
                raise UserError(
                    f"{name} is {value:g}; it is for classes of which an example has one, and {task.name} is of kind "
                    f"{task.kind}."
                )


@dataclass(frozen=True)
class Rule:
    """Thresholds of the probability, and what they do, in sentences.

    Attributes:
        least: The least probability of a prediction that is given; None = all are.
        cut: The least probability of a class in the prediction set; None = there are no sets.
        sentences: Sentences about their choice and their effect.
    """

    least: float | None = None
    cut: float | None = None
    sentences: tuple[str, ...] = ()

    def columns(self, task: tasks.Task, probabilities: np.ndarray) -> dict[str, list[Any]]:
        """Return the columns `decision` and `prediction_set`, as far as they are required.

        Args:
            task: The task.
            probabilities: The probability of each class of each example.
        """
        columns: dict[str, list[Any]] = {}
        if self.least is not None:
            is_sure = probabilities.max(-1) >= self.least
            names = [task.labels[index] for index in probabilities.argmax(-1)]
            columns["decision"] = [name if sure else UNSURE for name, sure in zip(names, is_sure, strict=True)]
        if self.cut is not None:
            sets = prediction_sets(probabilities, self.cut)
            order = np.argsort(-probabilities, axis=-1, kind="stable")
            columns["prediction_set"] = [
                [task.labels[index] for index in ranked if row[index]] for row, ranked in zip(sets, order, strict=True)
            ]
        return columns


def write_outputs(folder: Path, answers: Answers) -> None:
    """Write the logits and the right classes of the validation data, for a task whose examples have one class.

    Args:
        folder: The output folder of the run.
        answers: The predictions on the validation data.
    """
    if tasks.kind_of(answers.task).has_one_class:
        content = io.BytesIO()
        np.savez_compressed(content, logits=np.asarray(answers.values, np.float32), gold=np.asarray(answers.gold, int))
        write_whole(folder / OUTPUTS_FILE, content.getvalue())


def choose_rule(folder: str | Path, task: tasks.Task, temperature: float, required: Required) -> Rule:
    """Return the thresholds that meet what is required.

    Args:
        folder: The folder of a finished run.
        task: Its task.
        temperature: Logits are divided by it.
        required: What the user requires of predictions.
    """
    required.check(task)
    outputs = _read_outputs(
        Path(folder), task, is_needed=required.target_accuracy is not None or required.coverage is not None
    )
    if outputs is None:
        return Rule(required.min_confidence)
    logits, gold = outputs
    probabilities = softmax(logits, temperature)
    confidence, is_correct = probabilities.max(-1), probabilities.argmax(-1) == gold
    count, least, sentences = len(gold), required.min_confidence, []
    if required.target_accuracy is not None:
        chosen = choose_confidence(confidence, is_correct, required.target_accuracy)
        if chosen is None:
            raise UserError(
                f"target_accuracy is {required.target_accuracy:g}, and no probability promises it on {count:,} "
                f"validation examples: the most confident {least_examples(required.target_accuracy, count):,} or more "
                f"would have to be right almost without an error (all: {is_correct.mean():.1%}); lower it, use "
                "--min-confidence, or train with more validation examples."
            )
        least = chosen.threshold
        sentences.append(
            f"below the probability {least:.4g} predictions are {UNSURE}; it was chosen on {count:,} validation "
            f"examples so that the others have an accuracy of at least {required.target_accuracy:g}, which holds in at "
            "least 9 of 10 runs"
        )
    if least is not None:
        is_sure = confidence >= least
        accuracy = f", and {is_correct[is_sure].mean():.1%} of the others were right" if is_sure.any() else ""
        sentences.append(
            f"expect {1 - is_sure.mean():.1%} to be {UNSURE}, as of the validation examples{accuracy} (of all: "
            f"{is_correct.mean():.1%})"
        )
    cut = None
    if required.coverage is not None:
        cut = conformal_cut(probabilities[np.arange(count), gold], required.coverage)
        if cut is None:
            needed = int(np.ceil(required.coverage / (1 - required.coverage) - 1e-9))
            raise UserError(
                f"coverage is {required.coverage:g}, which needs at least {needed:,} validation examples, and the run "
                f"has {count:,}; lower it, or train with more."
            )
        size = prediction_sets(probabilities, cut).sum(-1).mean()
        sentences.append(
            f"a prediction set has the right class in {required.coverage:.4g} of the cases, and {size:.2f} classes on "
            "average of the validation examples"
        )
    return Rule(least, cut, tuple(sentences))


def _read_outputs(folder: Path, task: tasks.Task, is_needed: bool) -> tuple[np.ndarray, np.ndarray] | None:
    path = folder / OUTPUTS_FILE
    if not path.is_file():
        if is_needed:
            raise UserError(
                f"{str(folder)!r} has no {OUTPUTS_FILE}, which is written with validation data and by this version on; "
                "use --min-confidence, or train again."
            )
        return None
    check_sealed(folder, [OUTPUTS_FILE])
    try:
        with np.load(path, allow_pickle=False) as content:
            logits, gold = np.asarray(content["logits"], float), np.asarray(content["gold"], int)
        if logits.shape != (len(gold), len(task.labels)) or not len(gold) or not np.isfinite(logits).all():
            raise ValueError("wrong shape")
        if gold.min() < 0 or gold.max() >= len(task.labels):
            raise ValueError("wrong classes")
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        raise UserError(f"{str(path)!r} is damaged; copy the folder again, or train again.") from None
    return logits, gold
