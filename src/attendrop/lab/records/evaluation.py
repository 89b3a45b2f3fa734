"""The evaluation of a model on a part of the data: scores with intervals, classes, calibration."""

from __future__ import annotations

from dataclasses import dataclass, field

from .schema import Stored


@dataclass
class BaselineScores:
    """The scores of simple baselines beside that of the model, on the validation data.

    Attributes:
        metric: The name of the score.
        scores: Model or baseline -> its score; empty if no baseline was fitted.
        names: Their names.
        best: The baseline with the best score.
        is_clear: Whether it is better than the model by more than noise.
        sentence: What to know first, if it is at least as good as the model.
        kept: The baseline that took the place of the model.
    """

    metric: str = ""
    scores: dict[str, float] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    best: str | None = None
    is_clear: bool = False
    sentence: str = ""
    kept: str | None = None


@dataclass
class IntervalScore:
    """The value of a metric.

    Attributes:
        value: The value.
        low: The lower limit of its 95 % bootstrap interval over the examples.
        high: The upper limit.
        baseline: The value of the best constant prediction; None if undefined.
    """

    value: float
    low: float
    high: float
    baseline: float | None = None


@dataclass
class ClassScores:
    """Precision, recall and F1 of a class, how many examples have it, and how often it is predicted."""

    label: str
    precision: float
    recall: float
    f1: float
    examples: int
    predicted: int


@dataclass
class Reliability:
    """A reliability table, one entry for each bin of the confidence; see `statistics.calibration.Reliability`."""

    low: list[float]
    high: list[float]
    examples: list[int]
    confidence: list[float]
    accuracy: list[float]


@dataclass
class Probabilities:
    """Calibration of probabilities: calibration error, Brier score with its interval, reliability table, log loss."""

    ece: float
    brier: float
    brier_low: float
    brier_high: float
    reliability: Reliability
    loss: float | None = None


@dataclass
class Calibration:
    """Calibration of a classifier's probabilities.

    Attributes:
        temperature: The temperature that the logits are divided by.
        raw: Before temperature scaling.
        scaled: After temperature scaling.
    """

    temperature: float
    raw: Probabilities
    scaled: Probabilities


@dataclass
class SplitEvaluation(Stored):
    """The evaluation of a model on a part of the data; `evaluation.json` has one for each part.

    Attributes:
        examples: The number of examples.
        scores: Metric -> its value with an interval.
        baseline: The best constant prediction as text; None if undefined.
        classes: The scores of each class, for kinds with classes.
        calibration: The calibration, for kinds with classes.
        confusion: The confusion matrix: true classes × predicted classes.
        warnings: Sentences about unusual predictions.
    """

    examples: int
    scores: dict[str, IntervalScore]
    baseline: str | None = None
    classes: list[ClassScores] = field(default_factory=list)
    calibration: Calibration | None = None
    confusion: list[list[int]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
