"""The runs of an entry: one for each row, task, amount of data, protocol and seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..runs.losses import UNWEIGHTED
from ..runs.presets import has_paper_values, paper_values
from ..studies.design import parse_contender
from ..studies.spec import RunSpec
from ..tasks import find_task, kind_of
from .entry import ADDROP, KEEP, Entry, Row

SCALES = ("paper", "small")
# The papers fine-tune the class of the model as it is: its own head with random weights, both texts in one sequence.
_STOCK = {"head_start": "random", "no_baselines": True}
_STOCK_OF_TEXTS = {"pooling": "model", "pairs": "joint"}
_OURS = {"learning_rate": 2e-5, "num_train_epochs": 3}  # where a paper does not say
_OURS_ADDROP = {"p": 0.3, "q": 0.3, "layers": "first"}
_SMALL = {"learning_rate": 2e-4, "max_length": 32, "logging_steps": 1}
_DRAWS = ("max_train_samples", "fraction", "shots")


@dataclass(frozen=True)
class Setup:
    """An entry, with what the user chose for it.

    Attributes:
        entry: The entry.
        model: The model, by name or folder.
        family: Its family, such as "bert".
        layers: The number of its layers.
        width: Its width.
        data_dir: The folder of the data; None = the Hub.
        scale: "paper" or "small".
        tasks: The tasks.
        protocols: The protocols.
        seeds: Runs of each row.
        settings: Settings of `attendrop train` that the user changed.
    """

    entry: Entry
    model: str
    family: str
    layers: int
    width: int
    data_dir: str | None
    scale: str
    tasks: tuple[str, ...]
    protocols: tuple[str, ...]
    seeds: int
    settings: Mapping[str, Any]

    @property
    def sizes(self) -> tuple[str, ...]:
        """The amounts of training data."""
        return (self.entry.small.sizes or self.entry.sizes) if self.scale == "small" else self.entry.sizes

    @property
    def points(self) -> tuple[str, ...]:
        """The points of the grid; one empty point where there is none."""
        own = self.entry.small.points if self.scale == "small" else ()
        return own or self.entry.points or ("",)


@dataclass(frozen=True)
class PlannedRun:
    """A run, and its place in the outcome.

    Attributes:
        row: The label of its row.
        task: The task.
        protocol: How its epoch is chosen.
        unit: What the runs of two rows share: the seed, and the point of a grid.
        spec: The run.
        layer: The layer of a row that runs over the layers.
    """

    row: str
    task: str
    protocol: str
    unit: str
    spec: RunSpec
    layer: int | None = None


def planned_runs(setup: Setup) -> list[PlannedRun]:
    """Return all runs, grouped by task, so that workers rarely change their data, then by seed."""
    return [
        run
        for task in setup.tasks
        for size in setup.sizes
        for protocol in setup.protocols
        for seed in range(setup.seeds)
        for run in _of_seed(setup, task, size, protocol, seed)
    ]


def _of_seed(setup: Setup, task: str, size: str, protocol: str, seed: int) -> Iterator[PlannedRun]:
    for row in setup.entry.rows:
        points = setup.points if "{point}" in row.method else ("",)
        layers = range(setup.layers) if "{layer}" in row.method else (None,)
        for point in points:
            for layer in layers:
                spec = _spec(setup, _method(setup, row, task, point, layer), task, size, protocol, seed)
                label = row.label if layer is None else row.label.format(layer=layer)
                unit = f"seed {seed}" + (f", {point}" if point else "")
                yield PlannedRun(label, task, protocol, unit, spec, layer)


def _method(setup: Setup, row: Row, task: str, point: str, layer: int | None) -> str:
    """Return the contender of a row on a task."""
    fields = _addrop_fields(setup, task)
    paper = ",".join(f"{name}={value}" for name, value in fields.items()) + ",end_on=either"
    return row.method.format(paper=paper, point=point, **{**fields, "layer": layer})


def _addrop_fields(setup: Setup, task: str) -> dict[str, Any]:
    name = find_task(task).name
    return paper_values(name, setup.family)[0] if has_paper_values(name) else dict(_OURS_ADDROP)


def _spec(setup: Setup, method: str, task: str, size: str, protocol: str, seed: int) -> RunSpec:
    contender = parse_contender(method)
    settings = {**run_settings(setup, task, protocol), **contender.settings}
    if size != "all":
        name, _, value = size.partition("=")
        settings[name] = value
        settings.pop("max_train_samples", None)
    settings |= {"method": contender.methods, "seed": seed, "task": task}
    draws = any(name in settings for name in _DRAWS)
    return RunSpec(settings, contender.name, task, seed, size, KEEP[protocol], draws)


def run_settings(setup: Setup, task: str, protocol: str) -> dict[str, Any]:
    """Return the settings of the runs on a task: those of the paper, of the scale, and of the user.

    Args:
        setup: The entry and the user's choices.
        task: The task.
        protocol: How the epoch is chosen.
    """
    known = find_task(task)
    settings = {**_STOCK, "model": setup.model}
    kind = kind_of(known)
    if kind.can_be_pooled:
        settings |= _STOCK_OF_TEXTS
    if kind.weighs_rare_classes:
        settings["class_weights"] = [UNWEIGHTED]
    if setup.data_dir is not None:
        settings["data_dir"] = setup.data_dir
    is_known = setup.entry.paper == ADDROP and has_paper_values(known.name)
    settings |= paper_values(known.name, setup.family)[1] if is_known else _OURS
    if also := setup.entry.also_of(task, setup.scale):
        settings["also_eval"] = list(also)
    if protocol == "last":
        settings.pop("patience", None)  # a run of full length
    if setup.scale == "small":
        small = setup.entry.small
        settings.pop("patience", None)
        settings |= {**_SMALL, "num_train_epochs": small.epochs, "per_device_train_batch_size": small.batch}
        settings |= {"max_train_samples": small.examples, "max_eval_samples": small.examples}
    return {**settings, **setup.settings}


def of_first_seed(runs: list[PlannedRun]) -> list[RunSpec]:
    """Return a run of each method on each task, to be checked before the first one starts."""
    first: dict[tuple[str, str], RunSpec] = {}
    for run in runs:
        first.setdefault((run.spec.method, run.spec.task), run.spec)
    return list(first.values())


def with_models(runs: list[PlannedRun], folder: str) -> list[PlannedRun]:
    """Return the runs with the folder in which their trained models are kept."""
    return [replace(run, spec=replace(run.spec, models_folder=folder)) for run in runs]
