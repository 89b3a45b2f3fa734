"""Reads plan.yaml and frozen.yaml, and lists the runs of a stage."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from attendrop.lab.studies.configuration import plan_hash
from attendrop.lab.studies.sampling import points
from attendrop.lab.studies.search_space import parse_dimension, with_fields
from attendrop.lab.studies.spec import RunSpec

FOLDER = Path(__file__).parent
PLAN: dict[str, Any] = yaml.safe_load((FOLDER / "plan.yaml").read_text(encoding="utf-8"))
FROZEN = FOLDER / "frozen.yaml"
GRID, FIELDS, CONFIRM = "grid", "fields", "confirm"
PLAIN = "plain"
_WHOLE = {"blocks", "T", "centers"}
_NOT_FIELDS = ("method", "like", "grid")


class Setting(NamedTuple):
    """A contender with all that is searched.

    Attributes:
        name: Its name in the plan; a control is named after its rate and epochs.
        methods: Its methods, as on the command line.
        rate: The learning rate.
        epochs: The number of epochs.
    """

    name: str
    methods: tuple[str, ...]
    rate: float
    epochs: int

    @property
    def text(self) -> str:
        """Its methods in one cell of the file."""
        return " + ".join(self.methods)


@cache
def current_hash() -> str:
    """The hash of the plan, without comments and spaces."""
    return plan_hash(PLAN)


def ways() -> list[tuple[float, int]]:
    """Rate and epochs of every point of the grid."""
    return [
        (float(r), int(e))
        for r, e in itertools.product(*(PLAN["grid"][n] for n in ("learning_rate", "num_train_epochs")))
    ]


def methods_of(name: str) -> tuple[str, ...]:
    """The methods of a contender with their defaults; none for plain fine-tuning."""
    text = PLAN["contenders"][name].get("method", "")
    return tuple(text.split(" + ")) if text else ()


def likes(name: str) -> list[str]:
    """The contenders whose searched fields this one takes."""
    like = PLAN["contenders"][name].get("like", [])
    return [like] if isinstance(like, str) else list(like)


def fields_of(name: str) -> dict[str, str]:
    """The fields of a contender that are searched."""
    return {field: str(value) for field, value in PLAN["contenders"][name].items() if field not in _NOT_FIELDS}


def has_grid(name: str) -> bool:
    """Whether rate and epochs mean anything to a contender."""
    return bool(PLAN["contenders"][name].get("grid", True))


def on_grid(name: str) -> list[Setting]:
    """A contender with its default fields, at every point of the grid."""
    return [Setting(name, methods_of(name), *way) for way in (ways() if has_grid(name) else ways()[:1])]


def points_of(name: str) -> int:
    """How many points of its fields a contender gets."""
    return PLAN["points"] if fields_of(name) else 0


def with_points(name: str, way: tuple[float, int]) -> list[Setting]:
    """A contender with points of its fields, at the rate and epochs that were chosen for it; none without fields."""
    fields = fields_of(name)
    if not fields:
        return []
    space = {field: parse_dimension(value, field in _WHOLE) for field, value in fields.items()}
    (method,) = methods_of(name)
    drawn = points(space, "qmc", PLAN["points"], seed=0)
    return [Setting(name, (with_fields(method, point),), *way) for point in drawn]


def frozen() -> dict[str, Any]:
    """The content of frozen.yaml; empty before anything was chosen."""
    return yaml.safe_load(FROZEN.read_text(encoding="utf-8")) if FROZEN.is_file() else {}


def chosen() -> dict[str, Setting]:
    """Name -> the setting of every contender, from frozen.yaml."""
    return {
        name: Setting(name, tuple(of["methods"]), float(of["learning_rate"]), int(of["num_train_epochs"]))
        for name, of in frozen().get("settings", {}).items()
    }


def control_of(setting: Setting) -> str:
    """The name of plain fine-tuning at the rate and epochs of a setting: its matched control."""
    plain = chosen()[PLAIN]
    is_best = (setting.rate, setting.epochs) == (plain.rate, plain.epochs)
    return PLAIN if is_best else f"{PLAIN}, {setting.rate:g}, {setting.epochs} epochs"


def confirmed() -> list[Setting]:
    """What the stage `confirm` runs: every contender, and its matched control."""
    settings = chosen()
    controls = {
        control_of(of): Setting(control_of(of), (), of.rate, of.epochs) for of in settings.values() if has_grid(of.name)
    }
    return [*settings.values(), *(of for name, of in controls.items() if name not in settings)]


def settings_of(stage: str) -> list[Setting]:
    """The settings that a stage runs."""
    if stage == GRID:
        own = [name for name in PLAN["contenders"] if not likes(name)]
        return [setting for name in own for setting in on_grid(name)]
    if not frozen():
        raise SystemExit(
            f"{FROZEN.name} does not exist; run the stage {GRID!r}, then `python -m studies.verdict2.choose grid`."
        )
    if stage == FIELDS:
        return [
            setting
            for of in chosen().values()
            for setting in with_points(of.name, (of.rate, of.epochs))
            if not likes(of.name)
        ]
    if frozen()["stage"] != FIELDS:
        raise SystemExit(
            f"the fields are not chosen yet; run the stage {FIELDS!r}, then `python -m studies.verdict2.choose fields`."
        )
    return confirmed()


def of_stage(stage: str, model: str) -> dict[str, Any]:
    """Tasks, sizes and seeds of a stage for a model."""
    plan = {**PLAN["stages"][stage], **PLAN["models"].get(model, {}).get(stage, {})}
    if isinstance(plan["tasks"], str):
        apart = PLAN["tasks"]["apart"] if stage == CONFIRM else []
        plan["tasks"] = [*PLAN["tasks"][plan["tasks"]], *apart]
    return plan


def runs(
    stage: str, data: str, folder: str, model: str = "minilm", **changed: Any
) -> Iterator[tuple[Setting, RunSpec]]:
    """The runs of a stage: one amount of data after the other, all seeds of a task and setting together.

    Args:
        stage: "grid", "fields" or "confirm".
        data: The folder of the data sets.
        folder: The folder of the model.
        model: Its name in the plan.
        **changed: Settings of all runs that differ from the plan, for tests.
    """
    plan, factor = of_stage(stage, model), PLAN["models"].get(model, {}).get("rate_factor", 1.0)
    for size, task, setting in itertools.product(plan["sizes"], plan["tasks"], settings_of(stage)):
        if task in PLAN["tasks"]["apart"] and not _can_regress(setting):
            continue
        for seed in range(plan["first_seed"], plan["first_seed"] + plan["seeds"]):
            yield setting, _run(setting, task, size, seed, folder, data, factor, changed)


def _can_regress(setting: Setting) -> bool:
    """Whether a method is defined where labels are numbers."""
    return not any(m.partition(":")[0] in ("supcon", "softtriple", "label_smoothing") for m in setting.methods)


def _run(
    setting: Setting, task: str, size: int, seed: int, folder: str, data: str, factor: float, changed: Mapping[str, Any]
) -> RunSpec:
    own = {
        **PLAN["settings"], "class_weights": [PLAN["settings"]["class_weights"]], "model": folder,
        "learning_rate": setting.rate * factor, "num_train_epochs": setting.epochs, "max_train_samples": size,
        "seed": seed, "method": [] if setting.name == "frozen" else list(setting.methods),
        **files_of(task, data), **changed,
    }  # fmt: skip
    return RunSpec(own, setting.name, task, seed, f"n={size}", PLAN["keep"], resample=True, plan=current_hash())


def files_of(task: str, data: str) -> dict[str, Any]:
    """The settings of the data of a task."""
    if task in PLAN["named"]:
        others = PLAN["out_of_domain"].get(task, [])
        return {"task": task, "data_dir": data, **({"also_eval": others} if others else {})}
    folder = f"{data}/arena/{task}"
    pair = {"text_pair": "text_pair"} if task in PLAN["pairs"] else {}
    files = {"train_file": f"{folder}/train.parquet", "validation_file": f"{folder}/test.parquet"}
    return {**files, "text": "text", "label": "label", "kind": "classification", **pair}
