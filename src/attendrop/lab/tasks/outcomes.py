"""The outcomes that a study compares methods on: their measurement, location in a record, name and presentation.

A new outcome is one entry of `OUTCOMES`, in the order in which they are shown. With a `measure`, every evaluation of a
classifier computes it; the terminal, the Markdown, the tables and the page then show it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from ..records import StudyRecord
from ..statistics.calibration import brier_score, debiased_calibration_error, log_loss
from .metrics import is_share, limits_of, metric_label

Measure = Callable[[np.ndarray, np.ndarray], float]
MeasureEach = Callable[[np.ndarray, np.ndarray], np.ndarray]
Read = Callable[[StudyRecord, str], float | None]


@dataclass(frozen=True)
class Outcome:
    """A number on which methods are compared.

    Attributes:
        name: Its name in scores, records and files, and the title of its column in the terminal.
        label: Its name in tables and on pages; `title` is that of the score, which is called after its metric.
        delta: The smallest difference that matters, unless the user gives another.
        measure: Computes it from the probabilities of the classes and the true classes; None = it is computed
            elsewhere.
        measure_each: Computes the value of each example, whose mean it is; None = `measure` of groups of examples
            says how much of it is noise.
        is_scaled: Whether the probabilities are those after temperature scaling.
        is_of_trainer: Whether the Trainer computes it in each evaluation, so that runs do not use `measure`.
        is_debiased: Whether `measure` may be a little below 0; a single evaluation then shows 0.
        reads: Reads it from the record of a run, for a part of the data; None = it is the score called `name`.
        greater_is_better: None = as it is for the metric of the task.
        delta_option: The option that gives its smallest difference, such as "delta_loss"; "" = no option does.
        phrase: Its name in the sentence of a comparison; None = its label.
        short: Its name in lists of several outcomes; None = its label.
        curve: Its name on a curve during training; None = its label.
        verdicts: Words for verdicts, where they are not the verdict itself.
        of_ensemble: Its value for an ensemble of `{seeds}` models, where it is not computed from predictions.
        is_relative: Whether it is shown as a multiple of the baseline's mean.
        is_compared: Whether studies compare it; otherwise it is only stored.
        is_in_terminal: Whether it has a column in the terminal, where about five fit.
        is_in_headline: Whether it appears in the headline of the report.
        limits: The lowest and the highest value that it can have; those of the score are its metric's.
    """

    name: str
    label: str
    delta: float
    measure: Measure | None = None
    measure_each: MeasureEach | None = None
    is_scaled: bool = False
    is_of_trainer: bool = False
    is_debiased: bool = False
    reads: Read | None = None
    greater_is_better: bool | None = False
    delta_option: str = ""
    phrase: str | None = None
    short: str | None = None
    curve: str | None = None
    verdicts: Mapping[str, str] = field(default_factory=dict)
    of_ensemble: str = ""
    is_relative: bool = False
    is_compared: bool = True
    is_in_terminal: bool = True
    is_in_headline: bool = False
    limits: tuple[float, float] = (0.0, math.inf)

    def read(self, record: StudyRecord, part: str) -> float | None:
        """Its value in a finished run; None if the run has none.

        Args:
            record: The record of the run.
            part: The part of the data.
        """
        return record.score(part, self.name) if self.reads is None else self.reads(record, part)

    @property
    def is_score(self) -> bool:
        """Whether it is the score: its name, limits and direction are those of the metric of the task."""
        return self.reads is _score

    def title(self, metric: str) -> str:
        """Its name in tables and on pages; that of the score is the name of the metric."""
        return metric_label(metric) if self.is_score else self.label

    def name_in_sentences(self, metric: str) -> str:
        """Return its name in the sentence of a comparison."""
        return metric if self.is_score else self.phrase or self.label

    def column(self, metric: str) -> str:
        """Return the title of its column in the terminal."""
        return metric if self.is_score else self.name

    def limits_for(self, metric: str) -> tuple[float, float]:
        """Return the lowest and the highest value that it can have."""
        return limits_of(metric) if self.is_score else self.limits

    def resolution(self, metric: str, examples: int | None) -> float | None:
        """Return the step in which it moves on so many examples; None if it does not move in steps."""
        return 1 / examples if self.is_score and is_share(metric) and examples else None

    def is_better_if_greater(self, metric_is: bool) -> bool:
        """Return whether a larger value is better, where `metric_is` says it for the metric of the task."""
        return metric_is if self.greater_is_better is None else self.greater_is_better

    @property
    def verbs(self) -> dict[str, str]:
        """Verbs for its verdicts, such as "improves"."""
        if self.greater_is_better is None:
            return {"helps": "improve", "hurts": "worsen"}
        return dict(zip(("helps", "hurts"), ("raise", "lower")[:: 1 if self.greater_is_better else -1], strict=True))


def _score(record: StudyRecord, part: str) -> float | None:
    return record.score(part)


def _losses(probabilities: np.ndarray, gold: np.ndarray) -> np.ndarray:
    return np.asarray(-np.log(np.maximum(probabilities[np.arange(len(gold)), gold], 1e-12)))


def _cost(record: StudyRecord, part: str) -> float | None:
    return record.cost.seconds if part == "validation" else None


SCORE = Outcome("score", "score", 0.01, reads=_score, greater_is_better=None, delta_option="delta")
OUTCOMES: dict[str, Outcome] = {
    outcome.name: outcome
    for outcome in (
        SCORE,
        Outcome(
            "loss", "loss", 0.02, log_loss, _losses, is_of_trainer=True, delta_option="delta_loss",
            curve="development loss", is_in_headline=True,
        ),
        Outcome(
            "ece", "calibration error", 0.01, debiased_calibration_error, is_debiased=True,
            delta_option="delta_calibration", short="ECE", is_in_headline=True, limits=(-1.0, 1.0),
        ),
        Outcome("brier", "Brier score", 0.01, brier_score, delta_option="delta_calibration", limits=(0.0, 2.0)),
        Outcome(
            "scaled_loss", "loss after temperature scaling", 0.02, log_loss, _losses, is_scaled=True,
            delta_option="delta_loss", is_in_terminal=False,
        ),
        Outcome(
            "scaled_ece", "calibration error after temperature scaling", 0.01, debiased_calibration_error,
            is_scaled=True, is_debiased=True, delta_option="delta_calibration", is_compared=False, limits=(-1.0, 1.0),
        ),
        Outcome(
            "cost", "cost", 0.05, reads=_cost, phrase="training time", is_relative=True,
            verdicts={"helps": "cheaper", "hurts": "costs more"}, of_ensemble="{seeds} × at inference",
        ),
    )
}  # fmt: skip
_TRAINING_LOSS = "train_loss"  # a curve that is no outcome


def compared_outcomes() -> list[Outcome]:
    """Return the outcomes that studies compare, in the order in which they are shown."""
    return [outcome for outcome in OUTCOMES.values() if outcome.is_compared]


def measured_outcomes(probabilities: np.ndarray, gold: np.ndarray, is_scaled: bool = False) -> dict[str, float]:
    """Return the outcomes that are measured on the probabilities of a classifier.

    Args:
        probabilities: The probability of each class of each example.
        gold: The true classes.
        is_scaled: Whether the probabilities are those after temperature scaling.
    """
    of = [outcome for outcome in OUTCOMES.values() if outcome.is_scaled is is_scaled and not outcome.is_of_trainer]
    return {outcome.name: outcome.measure(probabilities, gold) for outcome in of if outcome.measure}


def shown_outcomes(probabilities: np.ndarray, gold: np.ndarray) -> dict[str, float]:
    """Return the outcomes of one evaluation as they are shown: also the loss, and no debiased error below 0.

    Args:
        probabilities: The probability of each class of each example.
        gold: The true classes.
    """
    shown = {}
    for outcome in OUTCOMES.values():
        if outcome.measure and not outcome.is_scaled:
            value = outcome.measure(probabilities, gold)
            shown[outcome.name] = max(0.0, value) if outcome.is_debiased else value
    return shown


def curve_titles(names: Iterable[str], metric: str) -> dict[str, str]:
    """Return the title of each curve during training: the metric first, then the losses, then all others.

    Args:
        names: The names of the curves: metrics, outcomes and the training loss.
        metric: The metric of the task.
    """
    order = [metric, "loss", _TRAINING_LOSS]
    titles = {_TRAINING_LOSS: "training loss", **{name: of.curve or of.label for name, of in OUTCOMES.items()}}
    ordered = sorted(names, key=lambda name: order.index(name) if name in order else len(order))
    return {name: titles.get(name) or metric_label(name) for name in ordered}


def all_deltas(given: Mapping[str, float] | None = None) -> dict[str, float]:
    """Return the smallest difference of each outcome that matters.

    Args:
        given: Those of the user, which take precedence.
    """
    return {**{name: outcome.delta for name, outcome in OUTCOMES.items()}, **(given or {})}


def delta_options() -> dict[str, float]:
    """Return the options that give the smallest differences, with their defaults."""
    return {outcome.delta_option: outcome.delta for outcome in OUTCOMES.values() if outcome.delta_option}
