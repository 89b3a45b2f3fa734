"""The settings of a run. Flags, YAML files and keyword arguments use the same names.

The fields of `RunConfig` are settings of attendrop; all other settings are fields of `TrainingArguments`.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...methods import short_name
from ...utils.deprecation import OTHER_NAMES, warn_renamed
from ...utils.secrets import is_secret, without_login
from ..tasks.files import ReadOptions
from ..tasks.kinds import current_kind
from ..tasks.modalities import file_kinds
from .checks import check_settings

# Defaults that differ from those of TrainingArguments.
DEFAULTS: dict[str, Any] = {
    "per_device_train_batch_size": 16,
    "per_device_eval_batch_size": 32,
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

# Settings whose default depends on the data and the model (see `recipe.py`) -> how help texts call it.
CHOSEN: dict[str, str] = {
    "num_train_epochs": "3 to 40, fewer for more data, more for many classes",
    "learning_rate": "2e-5 for a model of width 768, more for a smaller one and for tagging",
}

# Help texts of training arguments that most runs need, in the place of those of transformers, which are long.
_HELP: dict[str, str] = {
    "output_dir": "Folder for the model and its results; by default below runs/.",
    "per_device_train_batch_size": "Examples in a batch, on each device.",
    "num_train_epochs": "Passes over the training data.",
    "learning_rate": "The highest learning rate.",
    "gradient_accumulation_steps": "Batches that make one step of the optimizer.",
    "bf16": "Train in bfloat16 mixed precision.",
    "seed": "Seed of all random numbers.",
}

# Panels group the settings in `attendrop train --help`.
RUN, DATA, ADAPTERS, TRAINING = "Run", "Data", "Adapters (LoRA) and quantisation", "Training arguments"
_PRECISION = dict.fromkeys(("bf16", "fp16", "tf32", "bf16_full_eval", "fp16_full_eval"), "Precision")


def _metadata(help_text: str, panel: str = RUN) -> dict[str, str]:
    return {"help": help_text, "panel": panel}


def _setting(default: Any, help_text: str, panel: str = RUN) -> Any:
    return field(default=default, metadata=_metadata(help_text, panel))


@dataclass(frozen=True)
class RunConfig:
    """The configuration of one fine-tuning run: a model, data, methods and training arguments. See `make_config`.

    The fields are the flags of `attendrop train`, and the help text of each field says what it does. Nothing changes a
    configuration: `replaced` returns a new one, and `resolve.py` fills in what the user did not set.

    Attributes:
        training: The fields of `TrainingArguments`.
        explicit: The names of the settings that the user set. A preset does not change them.
        secrets: The tokens that the user set, by name. They are written nowhere.
    """

    model: str = _setting("", "Name on the Hugging Face Hub, or a folder with a saved model.")
    task: str | None = _setting(None, "A data set by name, such as glue/rte (`attendrop tasks` lists them).", DATA)
    data_dir: str | None = _setting(None, "Folder of Parquet files to read the task from, instead of the Hub.", DATA)
    train_file: str | None = _setting(
        None,
        "Your own training data: CSV, TSV, JSON, Parquet, Excel, CoNLL, plain texts with --kind mlm, or a folder of "
        "images or sounds with one sub-folder for each class.",
        DATA,
    )
    validation_file: str | None = _setting(
        None, "Your own validation data. Without it, a share of the training data is split off.", DATA
    )
    test_file: str | None = _setting(None, "Your own data to predict at the end.", DATA)
    text: str | None = _setting(None, "Column with the text, or with the paths of images or sounds.", DATA)
    text_pair: str | None = _setting(None, "Column with the second text of a pair.", DATA)
    label: str | None = _setting(None, "Column with the label, or several with 0 and 1: anger,joy.", DATA)
    kind: str | None = _setting(
        None,
        f"Kind of task: {', '.join(file_kinds())}; mlm is masked language modelling.",
        DATA,
    )
    choices: list[str] = field(
        default_factory=list,
        metadata=_metadata(
            "Column with an answer of a multiple choice, or with a list of them; may be repeated.", DATA
        ),
    )
    label_separator: str | None = _setting(
        None, "Delimiter between several labels of one example, such as a comma.", DATA
    )
    encoding: str | None = _setting(None, "Encoding of your files, such as latin-1, if it is not UTF-8.", DATA)
    separator: str | None = _setting(None, "Column delimiter, or 'tab'; detected by default.", DATA)
    columns: list[str] = field(
        default_factory=list,
        metadata=_metadata("Names of the columns of a table without a header line, such as label,text.", DATA),
    )
    drop_bad_rows: bool = _setting(
        False, "Leave out rows that cannot be used, and name them; otherwise they are an error.", DATA
    )
    class_weights: list[str] = field(
        default_factory=list,
        metadata=_metadata(
            "Weights of the classes in the loss: balanced, sqrt, none, or pairs such as spam=4,ham=1; by default sqrt "
            "where the classes have very different sizes.",
            DATA,
        ),
    )
    balanced_sampling: bool = _setting(False, "Draw equally many training examples of each class in every epoch.", DATA)
    focal_gamma: float | None = _setting(
        None, "Exponent of the focal loss, which down-weights easy examples; usually 2.", DATA
    )
    max_length: int | None = _setting(
        None,
        "Truncate texts to this number of tokens; 256 by default for your own files, otherwise the task's own. Cut "
        "sounds to this number of seconds, by default 30.",
        DATA,
    )
    mlm_probability: float = _setting(0.15, "Share of the words that is masked, with --kind mlm.", DATA)
    validation_share: float = _setting(
        0.1, "Share of the training data to split off if there is no validation data.", DATA
    )
    shots: int | None = _setting(None, "Train on this number of examples of each class.", DATA)
    fraction: float | None = _setting(None, "Train on this share of the examples, stratified.", DATA)
    max_train_samples: int | None = _setting(
        None, "Train on at most this number of examples, drawn at random by the seed, stratified.", DATA
    )
    max_eval_samples: int | None = _setting(
        None,
        "Evaluate on at most this number of examples of each split, drawn at random, the same for all seeds.",
        DATA,
    )
    also_eval: list[str] = field(
        default_factory=list, metadata=_metadata("Another task to evaluate on at the end; may be repeated.", DATA)
    )
    pooling: str = _setting(
        "auto",
        "What the head of a text classifier reads: mean (over the tokens), cls (the first token), model (what the "
        "model's own class reads), or auto: as the model was trained, mean if it has no trained pooler.",
    )
    pairs: str = _setting(
        "auto",
        "How two texts are encoded: joint (as one sequence), separate (each by itself), or auto: separate for a "
        "sentence encoder with few examples.",
    )
    method: list[str] = field(
        default_factory=list,
        metadata=_metadata(
            "A method, written name:field=value,field=value, or FILE.py:CLASS:field=value for one of your own; may be "
            "repeated."
        ),
    )
    dropout: float | None = _setting(
        None, "The model's own dropout of hidden states, embeddings and the head; by default that of its configuration."
    )
    attention_dropout: float | None = _setting(
        None, "The model's own dropout of attention weights; by default that of its configuration."
    )
    preset: str | None = _setting(
        None,
        "`recommended`: plain fine-tuning by the default recipe (docs/verdict.md says why); `paper`: the papers' "
        "settings for a model family and task they report.",
    )
    head_start: str = _setting(
        "auto",
        "How a new head begins: frozen, as the logistic or ridge regression on the features of the untrained encoder; "
        "random; or auto, frozen where that is possible.",
    )
    no_baselines: bool = _setting(
        False, "Do not compare the model with simple baselines (words, and frozen features) on the validation data."
    )
    keep_best_of: bool = _setting(
        False,
        "If the linear model of frozen features is better on the validation data than the fine-tuned model, keep the "
        "untrained encoder with that head.",
    )
    capture: str = _setting("auto", "How training steps are run: auto, eager, or captured (CUDA graphs, one GPU).")
    keep_epoch: str = _setting(
        "auto",
        "The epoch whose model is kept: last; best, the one with the best validation score; auto, the last one unless "
        "the best one is significantly better.",
    )
    patience: int | None = _setting(None, "Stop after this number of evaluations in a row without improvement.")
    resume: bool = _setting(False, "Continue from the last checkpoint in the output folder.")
    resume_changed: bool = _setting(False, "With --resume: continue although settings differ from the checkpoint's.")
    overwrite: bool = _setting(False, "Replace an earlier run in the output folder.")
    keep_checkpoints: bool = _setting(
        False, "Keep the checkpoints when the run has finished; otherwise only the model is kept."
    )
    trust_remote_code: bool = _setting(False, "Allow running code from the repository of the model.")
    lora: bool = _setting(
        False, "Train low-rank adapters and the head instead of all weights; they are merged at the end.", ADAPTERS
    )
    lora_r: int = _setting(8, "Rank of the adapters, with --lora.", ADAPTERS)
    lora_alpha: float | None = _setting(None, "Scale of the adapters; by default twice the rank.", ADAPTERS)
    lora_dropout: float = _setting(0.0, "Dropout on the input of the adapters.", ADAPTERS)
    lora_targets: list[str] = field(
        default_factory=list,
        metadata=_metadata(
            "Name of the linear layers that get an adapter, such as query; may be repeated. By default, all linear "
            "layers but the head.",
            ADAPTERS,
        ),
    )
    quantize: str | None = _setting(
        None, "Load the frozen weights in 4bit or 8bit (bitsandbytes), with --lora.", ADAPTERS
    )
    training: Mapping[str, Any] = field(default_factory=dict)
    explicit: frozenset[str] = frozenset()
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def output_dir(self) -> Path:
        return Path(self.training["output_dir"])

    def replaced(self, values: Mapping[str, Any]) -> RunConfig:
        """Return a copy in which some settings have other values.

        Args:
            values: Name of a field, or of a training argument -> value.
        """
        known = {f.name for f in dataclasses.fields(self)}
        own = {name: value for name, value in values.items() if name in known}
        training = {name: value for name, value in values.items() if name not in known}
        return dataclasses.replace(self, **own, training={**self.training, **training})

    def read_options(self) -> ReadOptions:
        """Return how the user's files are read."""
        return ReadOptions(self.encoding, self.separator, self.drop_bad_rows, self.label_separator, tuple(self.columns))

    def settings(self) -> dict[str, Any]:
        """Return all settings but the secrets in one flat dictionary, which `make_config` accepts."""
        own = {
            name: value
            for name in RUN_SETTINGS
            if (value := getattr(self, name)) not in (None, [], False) or (value == 0 and name in _MAY_BE_ZERO)
        }
        return {**own, **{name: value for name, value in self.training.items() if value is not None}}


_MAY_BE_ZERO = ("dropout", "attention_dropout")  # 0 is another value than none, and equals False
_NOT_SETTINGS = ("training", "explicit", "secrets")
RUN_SETTINGS = [f.name for f in dataclasses.fields(RunConfig) if f.name not in _NOT_SETTINGS]


@dataclass(frozen=True)
class Setting:
    """One setting, which is a flag and a key of the YAML file.

    Attributes:
        name: The name, with underscores.
        type: int, float, bool, str, list (of strings) or dict (written as JSON).
        default: The default value.
        help: The help text.
        panel: The panel of `attendrop train --help` that shows it.
    """

    name: str
    type: type
    default: Any
    help: str
    panel: str

    def parse(self, value: Any) -> Any:
        """Convert a value to the type of the setting. A flag is always a string, and YAML reads 2e-5 as a string."""
        if value is None:
            return None
        parse, expected = _PARSERS[self.type]
        try:
            return parse(value)
        except (TypeError, ValueError, OverflowError, RecursionError):
            shown = "a value that is not shown" if is_secret(self.name) else _shown(value)
            raise UserError(f"{self.name} is {shown}; it must be {expected}.") from None


def _shown(value: Any) -> str:
    """Return a value for a sentence, without the middle of a long one."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:100]} … {text[-50:]}"


def _parse_text(value: Any) -> str:
    text = str(value)
    if isinstance(value, (list, tuple, dict, set)) or "\0" in text:
        raise ValueError
    return text


def _parse_list(value: Any) -> list[str]:
    return [_parse_text(item) for item in value] if isinstance(value, (list, tuple)) else [_parse_text(value)]


def _parse_dict(value: Any) -> Any:
    if isinstance(value, str) and not value.strip().startswith("{") and Path(value).is_file():
        return value
    loaded = json.loads(value) if isinstance(value, str) else value
    if not isinstance(loaded, dict):
        raise ValueError
    return loaded


def _parse_float(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError
    return float(value)


def _parse_bool(value: Any) -> bool:
    word = str(value).lower()
    if word not in ("true", "false", "yes", "no", "1", "0"):
        raise ValueError
    return word in ("true", "yes", "1")


def _parse_int(value: Any) -> int:
    if isinstance(value, bool) or float(value) != int(float(value)):
        raise ValueError
    return int(float(value))


# type -> how a value is parsed, and what an error message calls it
_PARSERS: dict[type, tuple[Callable[[Any], Any], str]] = {
    list: (_parse_list, "text"),
    dict: (_parse_dict, """JSON such as '{"name": 1}', or the path of a JSON file"""),
    bool: (_parse_bool, "true or false"),
    int: (_parse_int, "a whole number"),
    float: (_parse_float, "a number"),
    str: (_parse_text, "text"),
}


def _setting_type(annotation: Any) -> type:
    """Return the type that a flag of this annotation accepts."""
    options = [annotation]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        options = [option for option in typing.get_args(annotation) if option is not type(None)]
    origins = [typing.get_origin(option) or option for option in options]
    for candidate in (dict, bool, list, float, int):
        if candidate in origins and not (candidate in (bool, list) and str in origins):
            return candidate
    return str


@functools.cache
def all_settings() -> dict[str, Setting]:
    """Return every setting by its name: those of attendrop, then those of `TrainingArguments`."""
    from transformers import Seq2SeqTrainingArguments

    hints = typing.get_type_hints(RunConfig)
    settings = {
        f.name: Setting(f.name, _setting_type(hints[f.name]), _default(f), f.metadata["help"], f.metadata["panel"])
        for f in dataclasses.fields(RunConfig)
        if f.name in RUN_SETTINGS
    }
    hints = typing.get_type_hints(Seq2SeqTrainingArguments)
    for f in dataclasses.fields(Seq2SeqTrainingArguments):
        if f.name not in settings:
            default = CHOSEN.get(f.name, DEFAULTS.get(f.name, _default(f)))
            help_text = _HELP.get(f.name) or " ".join(str(f.metadata.get("help", "")).split())
            panel = _PRECISION.get(f.name, TRAINING)
            settings[f.name] = Setting(f.name, _setting_type(hints[f.name]), default, help_text, panel)
    return settings


def _default(f: dataclasses.Field[Any]) -> Any:
    default = None if f.default is dataclasses.MISSING else f.default
    return getattr(default, "value", default)  # the value of an enum


def make_config(settings: Mapping[str, Any]) -> RunConfig:
    """Make a configuration from settings; a `UserError` names the first wrong one.

    Args:
        settings: Name of a flag, with `_` or `-` -> value. A value of None means that the setting is not set.

    Example:
        ```python
        config = make_config({"model": "roberta-base", "task": "glue/rte", "method": ["addrop:p=0.3,q=0.3"]})
        result = train(config)
        ```
    """
    known = all_settings()
    values: dict[str, Any] = {}
    for key, value in settings.items():
        name = str(key).replace("-", "_")
        if name in RENAMED:
            warn_renamed(f"the setting {name}", RENAMED[name])
            name = RENAMED[name]
        if name not in known:
            raise UserError(f"there is no setting {key!r}{_suggestion(name)}")
        if value is not None:
            values[SAME_SETTINGS.get(name, name)] = known[name].parse(_without_login(name, value))
    own = {name: value for name, value in values.items() if name in RUN_SETTINGS}
    training = {**DEFAULTS, **{name: value for name, value in values.items() if name not in RUN_SETTINGS}}
    secrets = {name: training.pop(name) for name in values if is_secret(name)}
    config = RunConfig(**_task_read_as_kind(own), training=training, explicit=frozenset(values), secrets=secrets)
    check_settings(config)
    if "output_dir" in training:
        return config
    return config.replaced({"output_dir": str(Path("runs", _run_name(config)))})


def _without_login(name: str, value: Any) -> Any:
    """Return a value; refuse a URL with a password, which would be stored with the settings."""
    shown = without_login(str(value))
    if shown != str(value) and not is_secret(name):
        raise UserError(f"{name} is {shown!r}, with a password or a token, which would be stored; leave it out.")
    return value


def _task_read_as_kind(own: dict[str, Any]) -> dict[str, Any]:
    """With files of the user's own, `--task image_classification` means `--kind image_classification`."""
    kind = current_kind(own.get("kind"))
    own = {**own, "kind": kind} if kind is not None else own
    task = current_kind(own.get("task")) if own.get("train_file") else None
    if task in file_kinds() and kind in (None, task):
        return {**own, "kind": task, "task": None}
    return own


# Deprecated name of a setting -> its name.
RENAMED = {"step": "capture"}

# Name of an argument in newer versions of transformers -> its name here and in the older ones.
SAME_SETTINGS = {
    "activation_checkpointing": "gradient_checkpointing",
    "activation_checkpointing_kwargs": "gradient_checkpointing_kwargs",
}


def _suggestion(name: str) -> str:
    """Return the end of the sentence about an unknown setting: the nearest known one, or where they are listed."""
    nearest = [OTHER_NAMES[name]] if name in OTHER_NAMES else difflib.get_close_matches(name, all_settings(), n=1)
    return f"; did you mean {nearest[0]!r}?" if nearest else "; `attendrop train --help-all` lists them."


def _run_name(config: RunConfig) -> str:
    data = config.task or Path(str(config.train_file)).stem
    methods = [short_name(method) for method in config.method] or ["plain"]
    parts = [Path(config.model).name, data.replace("/", "-"), *methods]
    return "-".join(part for part in parts if part)
