"""The parts of the study: an entry of `attendrop reproduce`, a model, and what differs from the entry."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from attendrop.lab.reproduction.planning import PlannedRun, Setup, planned_runs
from attendrop.lab.reproduction.registry import find_entry

GPU, CPU = "gpu", "cpu"
# name -> family, layers, width, name of the folder
MODELS = {
    "minilm": ("bert", 6, 384, "all-MiniLM-L6-v2"),
    "mpnet": ("mpnet", 12, 768, "all-mpnet-base-v2"),
}
# Steps of 16 examples in a minute of an H200 that several runs share: those of docs/results/verdict/confirm-*.csv,
# divided by the minutes of its stages. Steps of methods were among them, so that plain ones are faster.
STEPS_A_MINUTE = {"minilm": 497_280 / 25, "mpnet": 47_680 / 8.4}
TRAIN = {"cola": 8551, "stsb": 5749, "mrpc": 3668, "rte": 2490, "sst2": 67_349, "qnli": 8999, "conll2003": 14_041}
EVALUATED = {"cola": 1043, "stsb": 1500, "mrpc": 408, "rte": 277, "sst2": 872, "qnli": 5463, "conll2003": 3250}
_CLASSES = 2
_FORWARD = 1 / 3  # of a step


@dataclass(frozen=True)
class Part:
    """An entry on a model.

    Attributes:
        entry: The entry.
        model: A key of `MODELS`.
        tasks: Some of its tasks; empty = all.
        protocol: "both", or one of the entry's.
        seeds: Runs of each row.
        settings: Settings that differ from those of the entry.
        alone: Whether one run at a time is on the device, because time is measured.
        device: "gpu", or "cpu" for a few examples.
    """

    entry: str
    model: str
    tasks: tuple[str, ...] = ()
    protocol: str = "both"
    seeds: int = 3
    settings: Mapping[str, Any] = field(default_factory=dict)
    alone: bool = False
    device: str = GPU

    @property
    def name(self) -> str:
        """The name of its folder and of its outcome."""
        return f"{self.entry.replace('/', '-')}-{self.model}" + ("-cpu" if self.device == CPU else "")

    def runs(self) -> list[PlannedRun]:
        """Return its runs with the first seed, without a look at model and data."""
        family, layers, width, folder = MODELS[self.model]
        entry = find_entry(self.entry)
        protocols = entry.protocols if self.protocol == "both" else (self.protocol,)
        setup = Setup(
            entry, folder, family, layers, width, None, "paper", self.tasks or entry.tasks, protocols, 1,
            self.settings,
        )  # fmt: skip
        return planned_runs(setup)

    @property
    def count(self) -> int:
        """The number of its runs."""
        return self.seeds * len(self.runs())

    @cached_property
    def minutes(self) -> float:
        """The minutes that it is expected to take on an H200, early stopping aside."""
        steps = self.seeds * sum(_steps(run) for run in self.runs())
        return steps / STEPS_A_MINUTE[self.model] * (4 if self.alone else 1)


def _steps(run: PlannedRun) -> float:
    """Return the steps of a run, as plain ones with 16 examples, and its evaluations."""
    settings, task = run.spec.settings, run.task.removeprefix("glue/")
    kind, _, value = run.spec.size.partition("=")
    count = min(TRAIN[task], int(settings.get("max_train_samples", TRAIN[task])))
    if kind == "shots":
        count = min(count, _CLASSES * int(value))
    if kind == "fraction":
        count = round(float(value) * count)
    batch, epochs = settings.get("per_device_train_batch_size", 16), settings["num_train_epochs"]
    evaluated = min(EVALUATED[task], int(settings.get("max_eval_samples", EVALUATED[task])))
    training = math.ceil(count / batch) * batch / 16 * _cost(run.spec.method, MODELS[run_model(run)][1])
    return float(epochs) * (training + _FORWARD * evaluated / 16)


def run_model(run: PlannedRun) -> str:
    """Return the key of the model of a run."""
    return next(name for name, of in MODELS.items() if of[3] == run.spec.settings["model"])


def _cost(method: str, layers: int) -> float:
    """Return the cost of a step as a multiple of a plain one, by the cards of the methods."""
    if method.startswith("attendout"):
        return 2.44
    if not method.startswith("addrop"):
        return 2.0 if method.startswith(("rdrop", "unidrop")) else 1.67 if "scal" in method else 1.0
    extra = 0.67
    if "attribution=iga" in method:
        extra = 20 * 0.67 * (0.5 * (layers + 1) if "layers=all" in method else layers)
    if "attribution=rd" in method:
        extra = 0.0
    return 1 + extra * (1.0 if "cross_tuning=false" in method else 0.5)


_ONE_EPOCH_OF_640 = {"num_train_epochs": 1, "max_train_samples": 640}
_SHORT = {"num_train_epochs": 5}
_FOUR = ("glue/cola", "glue/stsb", "glue/mrpc", "glue/rte")
_TWO = ("glue/mrpc", "glue/rte")
_SUBSET = {"max_train_samples": 256, "max_eval_samples": 256, "learning_rate": 1e-4}
_LONGER = {**_SUBSET, "num_train_epochs": 4}
_FEWEST = {**_LONGER, "max_train_samples": 128}

PARTS: dict[str, tuple[Part, ...]] = {
    # In the order of value: what is last may never be reached.
    GPU: (
        Part("addrop/table-5", "minilm", _FOUR, seeds=5, settings=_SHORT),
        Part("attendout/figure-3", "minilm"),
        Part("addrop/figure-2", "minilm", settings={"num_train_epochs": 10}),
        Part("addrop/table-7", "minilm", ("glue/rte",), seeds=2, settings={"num_train_epochs": 1}, alone=True),
        Part("attendout-v1/table-1", "minilm", _FOUR),
        Part("addrop/table-2", "minilm", _TWO, settings=_SHORT),
        Part("attendout/table-3", "minilm", _TWO),
        Part("attendout/table-4", "minilm", _FOUR),
        Part("addrop/table-3", "minilm", settings={"num_train_epochs": 4}),
        Part("addrop/table-8", "minilm", settings={"num_train_epochs": 10}),
        Part("addrop/figure-7", "minilm", settings=_SHORT),
        Part("addrop/figure-6", "minilm", _FOUR, seeds=2, settings=_SHORT),
        Part("addrop/figure-4", "minilm", ("glue/rte",), protocol="paper", seeds=1, settings=_SHORT),
        Part("attendout/table-1", "minilm", _FOUR),
        Part("attendout/resource-usage", "minilm", seeds=2, alone=True),
        Part("addrop/table-5", "mpnet", _FOUR, protocol="honest", seeds=5, settings=_SHORT),
        Part("attendout/figure-3", "mpnet", ("glue/cola",)),
        Part("addrop/figure-2", "mpnet", settings=_SHORT),
        Part("addrop/table-7", "mpnet", ("glue/rte",), seeds=2, settings=_ONE_EPOCH_OF_640, alone=True),
        Part("attendout-v1/table-1", "mpnet", _TWO),
        Part("attendout/table-3", "mpnet", _TWO, protocol="honest"),
        Part("attendout/table-4", "mpnet", _TWO, protocol="honest"),
        Part("addrop/table-3", "mpnet", protocol="honest", settings={"num_train_epochs": 3}),
        Part("addrop/table-8", "mpnet", protocol="honest", settings={"num_train_epochs": 10}),
        Part("addrop/figure-7", "mpnet", ("glue/rte",), settings=_SHORT),
        Part("addrop/figure-6", "mpnet", ("glue/rte",), protocol="honest", seeds=1, settings=_SHORT),
        Part("attendout/table-1", "mpnet", _TWO, protocol="honest"),
        Part("addrop/table-2", "mpnet", ("glue/rte",), protocol="honest", seeds=2, settings={"num_train_epochs": 4}),
    ),
    # A few examples, for a CPU.
    CPU: (
        Part("attendout/figure-3", "minilm", ("glue/cola",), seeds=2, settings=_SUBSET, device=CPU),
        Part("attendout-v1/table-1", "minilm", ("glue/cola",), seeds=3, settings=_SUBSET, device=CPU),
        Part("addrop/table-5", "minilm", ("glue/cola",), "honest", seeds=5, settings=_LONGER, device=CPU),
        Part("addrop/figure-2", "minilm", seeds=2, settings=_FEWEST, device=CPU),
        Part("attendout/table-4", "minilm", ("glue/cola",), "honest", settings=_SUBSET, device=CPU),
        Part("attendout/table-3", "minilm", ("glue/cola",), "honest", settings=_SUBSET, device=CPU),
    ),
}


def sittings(minutes: float = 28) -> list[list[Part]]:
    """Return the parts for a GPU by sitting: as many as are expected to fit, in order; a longer one is continued.

    Args:
        minutes: The length of a sitting.
    """
    made: list[list[Part]] = [[]]
    left = minutes
    for part in PARTS[GPU]:
        if part.minutes > left and made[-1]:
            made.append([])
            left = minutes
        made[-1].append(part)
        left -= part.minutes
    return made
