"""The analysis of a study: the content of its report, as dataclasses that can be written as JSON.

`attendrop.lab.studies.analysis` makes it; the terminal, the Markdown, the tables and the page read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from ...errors import UserError
from ...methods import short_name
from ...utils.dataclass_json import from_json, to_json
from ..records import TuningResult
from ..statistics.over_tasks import TaskSummary
from ..statistics.paired import Interval
from ..statistics.verdict import Comparison, Verdict
from ..tasks.outcomes import OUTCOMES

SCHEMA = 1
EXPLORER_MAPS = ("attention", "attribution", "candidates", "dropped")
Numbers = list[float | None]


@dataclass
class Method:
    """A method of the study.

    Attributes:
        name: Its name, such as `addrop:p=0.3`.
        label: Its name in tables and figures.
        is_baseline: Whether it is the baseline.
        runs: The number of its runs.
        failed: How many of them failed.
        settings: The settings of a run.
        regularizers: The regularizers of a run.
    """

    name: str
    label: str = ""
    is_baseline: bool = False
    runs: int = 0
    failed: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    regularizers: list[Any] = field(default_factory=list)


@dataclass
class Result:
    """One outcome of a method.

    Attributes:
        values: Seed -> value; None for a run that failed.
        mean: Their mean.
        interval: The interval of the mean.
        comparison: The comparison with the baseline; None for the baseline itself.
    """

    values: dict[str, float | None]
    mean: float | None = None
    interval: Interval | None = None
    comparison: Comparison | None = None


@dataclass
class Curves:
    """Scores and losses by epoch: their means over the seeds, and the limits of the means' intervals."""

    epoch: list[float]
    mean: dict[str, Numbers]
    low: dict[str, Numbers] = field(default_factory=dict)
    high: dict[str, Numbers] = field(default_factory=dict)


@dataclass
class Series:
    """A metric logged by a method at each step: the mean over the runs, and the limits of its interval."""

    step: list[int]
    mean: Numbers
    low: Numbers
    high: Numbers


@dataclass
class Cell:
    """A method on a task, with an amount of training data, scored on a part of the data.

    Attributes:
        method: The name of the method.
        task: The task.
        size: The amount of training data.
        part: The part of the data.
        outcomes: Name of the outcome -> its result.
        examples: The number of training examples.
        available: The number of training examples that they were drawn from; None if all are used.
        majority: The share of the most frequent class.
        unlearned: The sentence that no run of any method learned anything here; empty if one did.
        curves: Scores and losses by epoch.
    """

    method: str
    task: str
    size: str
    part: str
    outcomes: dict[str, Result]
    examples: int | None = None
    available: int | None = None
    majority: float | None = None
    unlearned: str = ""
    curves: Curves | None = None


@dataclass
class Ensemble:
    """The ensemble of the seeds of a method on a part of the data.

    Attributes:
        method: The name of the method.
        task: The task.
        size: The amount of training data.
        part: The part of the data.
        seeds: The number of its members.
        outcomes: Name of the outcome -> its value.
        gain: Its score minus the mean score of its members.
        sentence: The sentence with these figures.
        mean: The mean score of its members.
        interval: The interval of the gain.
        verdict: The verdict on the gain.
    """

    method: str
    task: str
    size: str
    part: str
    seeds: int
    outcomes: dict[str, float | None]
    gain: float | None
    sentence: str
    mean: float | None = None
    interval: Interval | None = None
    verdict: Verdict = "undecided"


@dataclass(frozen=True)
class MethodSummary(TaskSummary):
    """The verdict on an outcome of a method over all tasks and amounts of data."""

    method: str
    outcome: str


@dataclass
class Run:
    """A run of the study, with its scores on each part of the data."""

    method: str
    task: str
    seed: int
    status: str
    id: str = ""
    size: str = "all"
    seconds: float | None = None
    kept_epoch: float | None = None
    scores: dict[str, Any] = field(default_factory=dict)
    error: str | None = None


@dataclass
class Heatmap:
    """Differences of the score from the baseline, over a grid of two settings."""

    method: str
    x: str
    y: str
    xs: list[float]
    ys: list[float]
    difference: list[Numbers]
    task: str | None = None
    size: str | None = None


@dataclass
class Agreement:
    """The agreement of two seeds of a method, and the share of correct seeds on each example."""

    method: str
    task: str
    agreement: float | None
    size: str | None = None
    per_example: Numbers = field(default_factory=list)


@dataclass
class Disagreement:
    """An example, and the share of the seeds of each method that predict it correctly."""

    task: str
    example: int
    right: dict[str, float | None]
    size: str | None = None
    text: str | None = None
    gold: str | None = None


@dataclass
class Failure:
    """A run that failed, and why."""

    method: str
    message: str
    task: str = ""
    size: str = ""
    seed: int | None = None


@dataclass
class Sequential:
    """The plan of a study in which seeds are added until the methods are decided."""

    max_seeds: int
    first_look: int


@dataclass
class Analysis:
    """The content of the report of a study.

    Attributes:
        baseline: The name of the method that the others are compared with.
        methods: The methods.
        cells: The results.
        schema: The version of these fields.
        title: The title of the report.
        created: When the last run ended.
        command: The command that ran the study.
        kind: "compare" or "tune".
        protocol: "honest", or "paper" if the examples that give the scores chose settings or epochs.
        delta: Outcome -> the smallest difference that matters.
        confidence: The confidence of the intervals.
        sequential: The plan of looks; None = the number of seeds was fixed.
        model: The name of the model.
        metric: The name of the metric that is the score.
        greater_is_better: Whether a larger score is better.
        device: The device of the runs.
        versions: The versions of the libraries.
        summary: The verdicts over all tasks and amounts of data, where there are several.
        ensembles: The ensembles of the seeds.
        runs: The runs.
        searched: The number of runs that scored the trials of a search, which are not among `runs`.
        method_metrics: Method -> its log, by name.
        heatmaps: The grids of settings.
        tuning: The content of `tuning.json`.
        agreement: The agreement of the seeds on single examples.
        disagreements: The examples on which methods disagree.
        explorer: The attention maps of a few examples, from `attendrop.lab.report.explorer`.
        failures: The runs that failed.
        notes: Further notes for the reader.
        plan: Sentences about the plan of the study, and its deviations from it; empty if there is no plan.
        scored: What the scores are, where it is not the score of the kept epoch on the validation examples.
    """

    baseline: str
    methods: list[Method]
    cells: list[Cell]
    schema: int = SCHEMA
    title: str = ""
    created: str = ""
    command: str = ""
    kind: str = "compare"
    protocol: str = "honest"
    delta: dict[str, float] = field(default_factory=dict)
    confidence: float = 0.95
    sequential: Sequential | None = None
    model: str = ""
    metric: str = "score"
    greater_is_better: bool = True
    device: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    summary: list[MethodSummary] = field(default_factory=list)
    ensembles: list[Ensemble] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    searched: int = 0
    method_metrics: dict[str, dict[str, Series]] = field(default_factory=dict)
    heatmaps: list[Heatmap] = field(default_factory=list)
    tuning: TuningResult | None = None
    agreement: list[Agreement] = field(default_factory=list)
    disagreements: list[Disagreement] = field(default_factory=list)
    explorer: dict[str, Any] | None = None
    failures: list[Failure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    plan: list[str] = field(default_factory=list)
    scored: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, for JSON; None instead of numbers that are not finite."""
        fields: dict[str, Any] = to_json(self)
        return fields

    @classmethod
    def from_dict(cls, fields: Any) -> Analysis:
        """Read what `to_dict` returned. An error names the first part that is missing or wrong.

        Args:
            fields: The fields, as JSON gave them.
        """
        if isinstance(fields, Mapping) and (schema := fields.get("schema", SCHEMA)) != SCHEMA:
            raise _broken(f"its schema is {schema!r}, and this version of attendrop reads schema {SCHEMA}")
        try:
            analysis: Analysis = from_json(cls, fields, "it")
        except ValueError as error:
            raise _broken(str(error)) from None
        return analysis


def checked_analysis(analysis: Analysis | Mapping[str, Any]) -> Analysis:
    """Check an analysis, and return a copy with a label for each method and None for numbers that are not finite.

    Args:
        analysis: The analysis of a study, or what JSON has of one. An error names the first part that is wrong.
    """
    whole = Analysis.from_dict(to_json(analysis))
    whole.methods = _all_methods(whole)
    _check_cells(whole)
    _check_explorer(whole.explorer)
    return whole


def _all_methods(analysis: Analysis) -> list[Method]:
    """Return the methods, including the baseline and those that were only tuned and may have no scored run yet."""
    tuned = [curve.method for curve in analysis.tuning.curves] if analysis.tuning else []
    known = {method.name: method for method in analysis.methods}
    names = list(dict.fromkeys([analysis.baseline, *known, *tuned]))
    methods = [known.get(name, Method(name)) for name in names]
    return [replace(method, label=_label(method, names)) for method in methods]


def _label(method: Method, names: list[str]) -> str:
    """Return the label of a method; without its own label, `addrop:p=0.3` is `addrop` if no other method is."""
    if method.label not in ("", method.name):
        return method.label
    short = short_name(method.name)
    return short if sum(short_name(other) == short for other in names) == 1 else method.name


def _check_cells(analysis: Analysis) -> None:
    names = {method.name for method in analysis.methods}
    for number, cell in enumerate(analysis.cells):
        where = f"entry {number} of 'cells'"
        if cell.method not in names:
            raise _broken(f"{where} is of the method {cell.method!r}, which 'methods' does not list")
        for name, result in cell.outcomes.items():
            if name not in OUTCOMES:
                raise _broken(f"{where} has the outcome {name!r}, which this version of attendrop does not know")
            if result.comparison and result.comparison.verdict not in get_args(Verdict):
                raise _broken(f"the outcome {name!r} of {where} has the verdict {result.comparison.verdict!r}")


def _check_explorer(explorer: Mapping[str, Any] | None) -> None:
    for number, example in enumerate((explorer or {}).get("examples", [])):
        tokens = len(example["tokens"])
        for layers in (example["layers"], (example.get("pruned") or {}).get("layers", [])):
            maps = [head.get(kind) for layer in layers for head in layer["heads"] for kind in EXPLORER_MAPS]
            if any(rows is None or len(rows) != tokens or any(len(row) != tokens for row in rows) for rows in maps):
                raise _broken(f"a map of example {number} of 'explorer' has not the size of its {tokens} tokens")


def _broken(what: str) -> UserError:
    return UserError(f"the analysis of this study cannot be shown: {what}.")
