"""The record of a run: its settings, data, scores and cost.

`RunRecord` has the fields that all records share. `FolderRecord` is `record.json` in the output folder of `attendrop
train`, `StudyRecord` is `runs/<id>.json` in the folder of a study. Keys that users choose (scores, settings, splits)
stay mappings; everything else is a field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .compression import CompressionRecord
from .evaluation import BaselineScores, SplitEvaluation
from .older import folder_record_from_1, study_record_from_1
from .schema import Stored

STATUSES = ("finished", "failed", "stopped")  # of runs whose record is written
CHECKED = "checked"  # the status of a run that was only checked

Scores = dict[str, dict[str, float]]  # part of the data -> metric -> value


def flat_scores(scores: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the scores by `<part>/<metric>`, as `metrics.json` and tables have them.

    Args:
        scores: Part of the data -> metric -> value.
    """
    return {f"{part}/{metric}": value for part, of_part in scores.items() for metric, value in of_part.items()}


@dataclass
class RunError:
    """The error of a failed run: its type, its message, and the traceback."""

    type: str
    message: str
    traceback: str = ""


@dataclass
class ModelFacts:
    """The pretrained model.

    Attributes:
        name: Its name or folder, as the user gave it.
        fingerprint: Its class, with a checksum of the names and shapes of its weights.
        content: Part ("weights", "configuration", "tokenizer") -> the checksum of its files.
    """

    name: str
    fingerprint: str = ""
    content: dict[str, str] = field(default_factory=dict)


@dataclass
class Cost:
    """The cost of a run.

    Attributes:
        seconds: Seconds of training, without the evaluations.
        total_seconds: Seconds of training and evaluation.
        evaluation_seconds: Seconds of all evaluations.
        overhead_seconds: Seconds of everything else, such as loading the data.
        steps: The number of optimizer steps.
        peak_memory_mib: The most memory that was allocated on the GPU.
        captured: Whether steps were captured as CUDA graphs.
        processes: The number of processes.
    """

    seconds: float | None = None
    total_seconds: float | None = None
    evaluation_seconds: float | None = None
    overhead_seconds: float | None = None
    steps: int | None = None
    peak_memory_mib: int | None = None
    captured: bool | None = None
    processes: int = 1


@dataclass
class Kept:
    """The epoch whose model is kept and scored.

    Attributes:
        epoch: The epoch.
        step: The step after it.
        rule: How a study chooses it, see `RunSpec.keep`.
        sentences: Why it is kept, for the user.
        chosen: Method -> the coefficient that it chose on the validation examples.
    """

    epoch: float | None = None
    step: int | None = None
    rule: str | None = None
    sentences: list[str] = field(default_factory=list)
    chosen: dict[str, float] = field(default_factory=dict)


@dataclass
class ClassPredictions:
    """The true and the predicted class of each example, and the probability of the predicted one."""

    gold: list[int]
    predicted: list[int]
    confidence: list[float] = field(default_factory=list)


@dataclass
class Averaged:
    """The runs whose weights were averaged: how, of which method, which seeds, and sentences about it."""

    kind: str
    method: str
    seeds: list[int]
    sentences: list[str]


@dataclass(kw_only=True)
class RunRecord(Stored):
    """The record of a run.

    Attributes:
        task: The name of the task, or of the training file.
        seed: The seed.
        settings: Every setting of the run, without tokens and passwords.
        regularizers: The fields of each method.
        versions: Library -> its version.
        device: The device that it was trained on.
        examples: Split -> its number of examples.
        available: Split of which only a sample is used -> the number of examples that it was drawn from.
        metric: The name of the score.
        greater_is_better: Whether greater values of the metric are better.
        notes: The notes about data and model that the user saw.
        scores: Part of the data -> metric -> value.
        kept: The epoch whose model is scored.
        cost: The cost of the run.
    """

    task: str
    seed: int
    settings: dict[str, Any]
    regularizers: list[dict[str, Any]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    device: str = ""
    examples: dict[str, int] = field(default_factory=dict)
    available: dict[str, int] = field(default_factory=dict)
    metric: str | None = None
    greater_is_better: bool = True
    notes: list[str] = field(default_factory=list)
    scores: Scores = field(default_factory=dict)
    kept: Kept = field(default_factory=Kept)
    cost: Cost = field(default_factory=Cost)

    def score(self, part: str, metric: str | None = None) -> float | None:
        """Return a score; None if the run has none.

        Args:
            part: The part of the data.
            metric: The name of the score; None = that of the task.
        """
        name = self.metric if metric is None else metric
        return None if name is None else self.scores.get(part, {}).get(name)


@dataclass(kw_only=True)
class FolderRecord(RunRecord):
    """`record.json`: the record of a run of `attendrop train`.

    Attributes:
        task_definition: The fields of the task, for `Task.from_dict`.
        max_length: The length that examples are truncated to.
        model_class: The class of the model.
        caveats: Sentences that a reader of the scores must know.
        changes: The settings that were changed when the run was resumed.
        best_checkpoint: The folder of the best checkpoint.
        history: The log of the Trainer.
        evaluation: Part of the data -> its evaluation.
        temperature: The temperature that was fitted on the validation data; 1 = none was.
        temperature_note: A sentence about the choice of the temperature.
        threshold: The probability from which a label is predicted, where an example has several.
        threshold_note: How the threshold was chosen, as a sentence.
        decimals: The decimals of a regression's predictions.
        soup: The runs whose weights were averaged; None for a run that was trained.
        baselines: The scores of simple baselines.
        compression: How the model was compressed; None for a model that was not.
    """

    task_definition: dict[str, Any]
    max_length: int
    model_class: str = ""
    caveats: list[str] = field(default_factory=list)
    changes: list[dict[str, Any]] = field(default_factory=list)
    best_checkpoint: str | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    evaluation: dict[str, SplitEvaluation] = field(default_factory=dict)
    temperature: float = 1.0
    temperature_note: str = ""
    threshold: float = 0.5
    threshold_note: str = ""
    decimals: int = 4
    soup: Averaged | None = None
    baselines: BaselineScores = field(default_factory=BaselineScores)
    compression: CompressionRecord | None = None

    @classmethod
    def _from_schema_1(cls, content: Mapping[str, Any]) -> Mapping[str, Any]:
        return folder_record_from_1(content)


@dataclass(kw_only=True)
class StudyRecord(RunRecord):
    """`runs/<id>.json`: the record of a run of a study.

    Attributes:
        id: The id of the run, see `RunSpec.id`.
        status: "finished", "failed" or "stopped"; "checked" if the run was only checked.
        method: The contender that the run belongs to.
        size: How much is trained on.
        keep: Which epoch is scored, see `RunSpec`.
        resample: Whether the seed decides which examples are trained on.
        fold: The number of its split of the training data.
        score_on: What is scored, see `RunSpec`.
        score_epochs: The number of last epochs whose mean score is the score.
        head_seed: The seed of weights that are new.
        trial: The number of its trial.
        plan: The hash of the plan of the study.
        protocol: The label of a search that is scored on the development set.
        started: When the run began.
        ended: When it ended.
        worker: The worker that ran it.
        lost_workers: Why workers were lost while they ran it.
        error: Why it has failed.
        model: The pretrained model.
        model_bytes: The size of its weights, of a run that was only checked.
        data: Split, or task of `also_eval` -> its fingerprint.
        labels: The names of the classes.
        curves: The scores of each evaluation, with "epoch", "step" and "train_loss".
        method_metrics: The log of the methods: name -> [step, value] pairs.
        predictions: Part of the data -> the classes of its first examples.
        outputs: The outputs of the model as text, for transfer to the driver, which writes them to a separate file.
        outputs_checksum: The checksum of that file.
        texts: The first validation texts, for the report.
        explorer: Attention maps of a few examples, for the report.
    """

    id: str
    status: str
    method: str
    size: str = "all"
    keep: str = "last"
    resample: bool | None = None
    fold: int | None = None
    score_on: str = "validation"
    score_epochs: int = 1
    head_seed: int | None = None
    trial: int | None = None
    plan: str | None = None
    protocol: str | None = None
    started: str = ""
    ended: str = ""
    worker: str = ""
    lost_workers: list[str] = field(default_factory=list)
    error: RunError | None = None
    model: ModelFacts | None = None
    model_bytes: int | None = None
    data: dict[str, str | None] = field(default_factory=dict)
    labels: list[str] = field(default_factory=list)
    curves: list[dict[str, Any]] = field(default_factory=list)
    method_metrics: dict[str, list[Any]] = field(default_factory=dict)
    predictions: dict[str, ClassPredictions] = field(default_factory=dict)
    outputs: str | None = None
    outputs_checksum: str = ""
    texts: list[str] = field(default_factory=list)
    explorer: dict[str, Any] | None = None

    @classmethod
    def _from_schema_1(cls, content: Mapping[str, Any]) -> Mapping[str, Any]:
        return study_record_from_1(content)

    @property
    def has_failed(self) -> bool:
        """Whether the run has no result."""
        return self.status == "failed"

    @property
    def is_finished(self) -> bool:
        """Whether the run was trained to its end."""
        return self.status == "finished"

    @property
    def message(self) -> str:
        """Why the run has failed; empty if it has not."""
        return "" if self.error is None else self.error.message
