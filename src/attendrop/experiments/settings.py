"""Every setting of a run, from wherever it comes: flags, a YAML file or keyword arguments have the same names.

The fields of `RunConfig` are ours; all others are those of transformers' `TrainingArguments`.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError

# What a run does where nothing is said and TrainingArguments would do something else.
DEFAULTS: dict[str, Any] = {
    "per_device_train_batch_size": 16,
    "per_device_eval_batch_size": 32,
    "learning_rate": 2e-5,
    "weight_decay": 0.01,
    "warmup_steps": 0.1,
    "eval_strategy": "epoch",
    "save_strategy": "epoch",
    "save_total_limit": 2,
    "load_best_model_at_end": True,
    "logging_steps": 10,
    "train_sampling_strategy": "group_by_length",
    "disable_tqdm": True,
    "report_to": "none",
}


TRAINING = "Training arguments"


def _told(help: str, panel: str = "Run") -> dict[str, str]:
    return {"help": help, "panel": panel}


def _setting(default: Any, *told: str) -> Any:
    return field(default=default, metadata=_told(*told))


@dataclass
class RunConfig:
    """One fine-tuning run by names alone: a model, data, methods, and `training`, the fields of TrainingArguments."""

    model: str = _setting("", "Name on the Hugging Face Hub, or a folder with a saved model.")
    task: str | None = _setting(None, "A data set by name, such as glue/rte (`attendrop tasks` lists them).", "Data")
    data_dir: str | None = _setting(None, "Folder of Parquet files to read the task from, not the Hub.", "Data")
    train_file: str | None = _setting(None, "Your own training data: CSV, TSV, JSON Lines, Parquet or CoNLL.", "Data")
    validation_file: str | None = _setting(None, "Your own validation data. Without it a part is split off.", "Data")
    test_file: str | None = _setting(None, "Your own data to predict at the end.", "Data")
    text: str | None = _setting(None, "Column with the text.", "Data")
    text_pair: str | None = _setting(None, "Column with the second text of a pair.", "Data")
    label: str | None = _setting(None, "Column with the label.", "Data")
    kind: str | None = _setting(None, "What the label is: classification, regression, tokens.", "Data")
    max_length: int | None = _setting(None, "Longer texts are cut to so many tokens.", "Data")
    validation_share: float = _setting(0.1, "Share split off for validation where there is none.", "Data")
    shots: int | None = _setting(None, "Train on so many examples of each class.", "Data")
    fraction: float | None = _setting(None, "Train on this share of the examples, stratified.", "Data")
    max_train_samples: int | None = _setting(None, "Train on the first so many examples.", "Data")
    max_eval_samples: int | None = _setting(None, "Evaluate on the first so many examples of each part.", "Data")
    also_eval: list[str] = field(
        default_factory=list, metadata=_told("Another task to evaluate on at the end; may be repeated.", "Data")
    )
    method: list[str] = field(
        default_factory=list, metadata=_told("A regulariser, name:field=value,field=value; may be repeated.")
    )
    preset: str | None = _setting(None, "`paper`: the papers' settings for a model family and task they report.")
    step: str = _setting("auto", "How steps are taken: auto, eager, or captured (CUDA graphs, one GPU).")
    patience: int | None = _setting(None, "Stop when so many evaluations in a row did not improve.")
    resume: bool = _setting(False, "Go on from the last checkpoint in the output folder.")
    overwrite: bool = _setting(False, "Replace an earlier run in the output folder.")
    trust_remote_code: bool = _setting(False, "Run the code that a model on the Hub brings along.")
    training: dict[str, Any] = field(default_factory=dict)
    explicit: frozenset[str] = frozenset()  # the settings that somebody chose, which a preset leaves alone

    @property
    def output_dir(self) -> Path:
        return Path(self.training["output_dir"])

    def settings(self) -> dict[str, Any]:
        """All settings in one flat table; `make_config` takes it back."""
        ours = {name: value for name in OWN if (value := getattr(self, name)) not in (None, [], False)}
        return {**ours, **{name: value for name, value in self.training.items() if value is not None}}


OWN = [f.name for f in dataclasses.fields(RunConfig) if f.name not in ("training", "explicit")]


@dataclass(frozen=True)
class Setting:
    """One setting, as a flag and as a key of the YAML file."""

    name: str
    type: type  # int, float, bool, str, list (of strings) or dict (JSON)
    default: Any
    help: str
    panel: str

    def read(self, value: Any) -> Any:
        """`value` in the setting's type. YAML reads 2e-5 as a string, and a flag is always one."""
        if value is None:
            return None
        try:
            if self.type is list:
                return [str(v) for v in value] if isinstance(value, (list, tuple)) else [str(value)]
            if self.type is dict:
                return json.loads(value) if isinstance(value, str) and value.strip().startswith("{") else value
            if self.type is bool:
                return _read_bool(value)
            if self.type is int:
                if float(value) != int(float(value)) or isinstance(value, bool):
                    raise ValueError
                return int(float(value))
            if self.type is float:
                return float(value)
            return str(value)
        except (TypeError, ValueError):
            names = {int: "a whole number", float: "a number", bool: "true or false", dict: "JSON"}
            raise UserError(f"{self.name} is {value!r}; it must be {names.get(self.type, 'text')}.") from None


def _read_bool(value: Any) -> bool:
    word = str(value).lower()
    if word not in ("true", "false", "yes", "no", "1", "0"):
        raise ValueError
    return word in ("true", "yes", "1")


def _plain_type(annotation: Any) -> type:
    """The one type that a flag of this annotation reads."""
    options = [annotation]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        options = [a for a in typing.get_args(annotation) if a is not type(None)]
    origins = [typing.get_origin(a) or a for a in options]
    for kind in (dict, bool, list, float, int):
        if kind in origins and not (kind is bool and str in origins) and not (kind is list and str in origins):
            return kind
    return str


@functools.cache
def all_settings() -> dict[str, Setting]:
    """Every setting by its name: ours, then those of TrainingArguments."""
    from transformers import Seq2SeqTrainingArguments

    found: dict[str, Setting] = {}
    for cls, names in ((RunConfig, OWN), (Seq2SeqTrainingArguments, None)):
        hints = typing.get_type_hints(cls)
        for f in dataclasses.fields(cls):
            if f.name in found or (names is not None and f.name not in names):
                continue
            default = f.default if f.default is not dataclasses.MISSING else None
            ours = names is not None
            found[f.name] = Setting(
                name=f.name,
                type=_plain_type(hints[f.name]),
                default=default if ours else DEFAULTS.get(f.name, getattr(default, "value", default)),
                help=" ".join(str(f.metadata.get("help", "")).split()),
                panel=f.metadata["panel"] if ours else TRAINING,
            )
    return found


def make_config(settings: Mapping[str, Any]) -> RunConfig:
    """A configuration from a flat table of settings, or a `UserError` that names the first wrong one."""
    known = all_settings()
    values: dict[str, Any] = {}
    for key, value in settings.items():
        name = str(key).replace("-", "_")
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1)
            raise UserError(f"there is no setting {key!r}{f'; did you mean {nearest[0]!r}?' if nearest else '.'}")
        if value is not None:
            values[name] = known[name].read(value)
    config = RunConfig(**{name: value for name, value in values.items() if name in OWN})
    config.explicit = frozenset(values)
    config.training = {**DEFAULTS, **{name: value for name, value in values.items() if name not in OWN}}
    _check(config)
    config.training.setdefault("output_dir", str(Path("runs", _name_of(config))))
    return config


def _check(config: RunConfig) -> None:
    if not config.model:
        raise UserError("no model is given; name one with --model, such as --model roberta-base.")
    if bool(config.task) == bool(config.train_file):
        what = "both task and train_file are given" if config.task else "no data are given"
        raise UserError(f"{what}; give either --task, such as --task glue/rte, or --train-file with your own data.")
    for name, low, high in (
        ("max_length", 2, None), ("shots", 1, None), ("patience", 1, None), ("max_train_samples", 1, None),
        ("max_eval_samples", 1, None), ("fraction", 0, 1), ("validation_share", 0, 1),
    ):  # fmt: skip
        value = getattr(config, name)
        if value is not None and not (low <= value if high is None else low < value <= high):
            allowed = f"at least {low}" if high is None else f"above {low} and at most {high}"
            raise UserError(f"{name} is {value!r}; it must be {allowed}.")
    if config.shots is not None and config.fraction is not None:
        raise UserError("both shots and fraction are given; choose one of them.")
    if config.preset not in (None, "paper"):
        raise UserError(f"preset is {config.preset!r}; it must be 'paper'.")
    if config.overwrite and (config.resume or config.training.get("resume_from_checkpoint")):
        raise UserError("both resume and overwrite are given; choose one of them.")


def _name_of(config: RunConfig) -> str:
    data = config.task or Path(str(config.train_file)).stem
    methods = [method.partition(":")[0] for method in config.method] or ["plain"]
    parts = [Path(config.model).name, data.replace("/", "-"), *methods]
    return "-".join(part for part in parts if part)


def read_yaml(path: str | Path) -> dict[str, Any]:
    """The settings of a YAML file."""
    import yaml

    file = Path(path)
    if not file.is_file():
        raise UserError(f"the configuration {str(path)!r} does not exist.")
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"the configuration {str(path)!r} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(found, dict):
        raise UserError(f"the configuration {str(path)!r} must hold `name: value` lines, and holds {found!r:.60}.")
    return found


def write_yaml(config: RunConfig, path: Path, versions: Mapping[str, str]) -> None:
    """The resolved configuration, ready for `--config`, with the versions that it ran with."""
    import yaml

    settings = config.settings()
    for name in ("overwrite", "resume", "resume_from_checkpoint"):  # of this call, not of the run
        settings.pop(name, None)
    heading = "".join(f"# {name} {version}\n" for name, version in versions.items())
    path.write_text(heading + yaml.safe_dump(settings, sort_keys=False, allow_unicode=True), encoding="utf-8")
