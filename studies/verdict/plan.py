"""Reads plan.yaml and frozen.yaml, and lists the runs of a stage."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from attendrop.lab.studies.sampling import points
from attendrop.lab.studies.search_space import parse_dimension, with_fields
from attendrop.lab.studies.spec import RunSpec

FOLDER = Path(__file__).parent
PLAN = yaml.safe_load((FOLDER / "plan.yaml").read_text(encoding="utf-8"))
FROZEN = FOLDER / "frozen.yaml"
TUNE, DEFAULTS = "tune", "defaults"  # the stages on development tasks
RATE_FACTOR = 1.5  # see `matched_plain`

# What the runs were trained with before the head of a run became what it is now. It is no part of the id of a run.
FIRST_RECIPE = {"pooling": "model", "pairs": "joint", "head_start": "random", "class_weights": ["none"]}


class Setting(NamedTuple):
    """One setting of a method.

    Attributes:
        method: Name of the method in the plan.
        text: The method as on the command line; empty for plain fine-tuning.
        training: Its learning rate and number of epochs.
    """

    method: str
    text: str
    training: dict[str, Any]


def candidates(method: str) -> list[Setting]:
    """The settings of a method that are tried on the development tasks."""
    fields = dict(PLAN["methods"][method])
    text = fields.pop("method", "")
    whole = {"blocks", "T", "num_train_epochs"}
    space = {name: parse_dimension(str(value), name in whole) for name, value in {**PLAN["space"], **fields}.items()}
    settings = []
    for point in points(space, "qmc", PLAN["points"], seed=0):
        training = {name: float(point.pop(name)) for name in PLAN["space"]}
        settings.append(Setting(method, with_fields(text, point) if text else "", training))
    return settings


def frozen() -> dict[str, dict[str, Any]]:
    """The settings in frozen.yaml by name; none before they were chosen."""
    return _read(FROZEN) if FROZEN.is_file() else {}


@cache
def _read(file: Path) -> dict[str, dict[str, Any]]:
    """It is read once, because every sentence and table of the page asks for it."""
    return dict(yaml.safe_load(file.read_text(encoding="utf-8")))


def controls() -> list[str]:
    """The names of the settings in frozen.yaml that are plain fine-tuning with another rate and number of epochs."""
    return [name for name, of in frozen().items() if not of["method"] and "development" not in of]


def matched_plain() -> dict[str, str]:
    """Name of a setting -> the plain fine-tuning with matched rate and epochs, if any; plain settings have none.

    It has the same number of epochs, and the learning rates differ by at most the factor `RATE_FACTOR`.
    """
    settings = frozen()
    plain = {name: of["training"] for name, of in settings.items() if not of["method"]}
    best = {}
    for name, of in settings.items():
        factors = {
            one: abs(math.log(training["learning_rate"] / of["training"]["learning_rate"]))
            for one, training in plain.items()
            if training["num_train_epochs"] == of["training"]["num_train_epochs"]
        }
        if name not in plain and factors and min(factors.values()) <= math.log(RATE_FACTOR):
            best[name] = min(factors, key=factors.__getitem__)
    return best


def development_losses(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Name -> `choose_by` on the development tasks, of those that were searched."""
    return {name: of["development"][PLAN["choose_by"]] for name, of in settings.items() if "development" in of}


def by_development(settings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The names of those that were searched, the one with the smallest `choose_by` on the development tasks first."""
    searched = development_losses(settings)
    return sorted(searched, key=searched.__getitem__)


def chosen(best: int | None = None) -> list[Setting]:
    """The frozen setting of every method.

    Args:
        best: How many methods are taken besides combinations and those that are always taken: those with the smallest
            `choose_by` on the development tasks. None = all of them.
    """
    settings = frozen()
    if not settings:
        raise SystemExit(
            f"{FROZEN.name} does not exist; run the stage {TUNE!r}, then `python -m studies.verdict.choose`."
        )
    names = list(settings)
    if best is not None:
        others = [name for name in by_development(settings) if name not in PLAN["always"]]
        taken = {*PLAN["always"], *PLAN["combinations"], *others[:best]}
        names = [name for name in names if name in taken]
    return [Setting(name, settings[name]["method"], settings[name]["training"]) for name in names]


def runs(stage: str, data: str, model: str, methods: list[str] | None = None, name: str = "minilm") -> list[RunSpec]:
    """The runs of a stage; those of one task and setting come together, because they share captured graphs.

    Args:
        stage: A stage of the plan.
        data: The folder of the data sets.
        model: The folder of the model.
        methods: Names of methods; None = all of them.
        name: Name of the model in the plan.
    """
    plan = {**PLAN["stages"][stage], **PLAN["models"].get(name, {})}
    if stage == TUNE:
        settings = [s for method in methods or PLAN["methods"] for s in candidates(method)]
    else:
        known = _listed(plan) if "settings" in plan else chosen(plan.get("best"))
        settings = [_changed(s, plan) for s in known if methods is None or s.method in methods]
    return [
        _run(setting, task, size, seed, {**PLAN["settings"], "data_dir": data, "model": model})
        for task in plan["tasks"]
        for size in plan["sizes"]
        for setting in settings
        for seed in range(plan["first_seed"], plan["first_seed"] + plan["seeds"])
    ]


def _listed(plan: dict[str, Any]) -> list[Setting]:
    """The settings that a stage lists itself, each trained in all the ways that it names."""
    ways = [frozen()[name]["training"] for name in plan["trained_as"]]
    return [Setting(method, text, way) for method, text in plan["settings"].items() for way in ways]


def _changed(setting: Setting, plan: dict[str, Any]) -> Setting:
    """The setting with the learning rate and the number of epochs of this stage and model."""
    training = dict(setting.training)
    training["learning_rate"] *= plan.get("rate_factor", 1)
    if "epochs_factor" in plan:
        training["num_train_epochs"] *= plan["epochs_factor"]
    if "epochs" in plan:
        training["num_train_epochs"] = plan["epochs"]
    return setting._replace(training=training)


def _run(setting: Setting, task: str, size: str, seed: int, shared: dict[str, Any]) -> RunSpec:
    of_task = dict(PLAN["tasks"][task])
    classes = of_task.pop("classes", 2)
    files = {n: v.format(data=shared["data_dir"]) for n, v in of_task.items() if n.endswith("_file")}
    own = {**shared, **FIRST_RECIPE, **of_task, **files, **setting.training, "seed": seed}
    if files:
        del own["data_dir"]  # which is for tasks that are known by name
    own["method"] = setting.text.split(" + ") if setting.text else []
    name, equals, value = size.partition("=")
    if equals:
        own[name] = str(2 * int(value) // classes)
    return RunSpec(own, setting.method, task, seed, size, keep="last", resample=bool(equals))
