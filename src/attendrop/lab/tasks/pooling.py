"""Choose what the head of a text classifier reads: a pooling of the hidden states, or what the model's own head reads.

`auto` is, in this order:

    the folder of a run of ours         the one in its configuration
    a model that cannot be pooled       its own head (decoders, encoder-decoders, models with a setting of their own)
    a checkpoint with a trained head    this head
    a sentence encoder                  its pooling, from its modules.json
    an encoder with a trained pooler    its own head, which reads the pooler
    any other encoder                   the mean over the tokens

A bias that is exactly zero has never been trained, so the file says whether a pooler or a head was: its header and a
few small tensors are read.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import UserError, on_one_line
from ...model.pooled_config import FIELD, LENGTH_FIELD, PAIRS_FIELD, POOLINGS, SEPARATE, pooling_of
from ...utils.files import load_json
from .kinds import kind_of, kinds_that

if TYPE_CHECKING:
    from .catalogue import Task
    from .data import Data

AUTO, OWN_HEAD = "auto", "model"
POOLING_SETTINGS = (AUTO, *POOLINGS, OWN_HEAD)
JOINT = "joint"
PAIR_SETTINGS = (AUTO, JOINT, SEPARATE)

# With fewer training examples than this a sentence encoder is better on two texts apart; measured on 16 data sets.
SEPARATE_BELOW, SEPARATE_BELOW_OF_NUMBERS = 1000, 3000

_MODULES, _WEIGHTS = "modules.json", "model.safetensors"
_OWN_SETTING = "classifier_pooling"  # of ModernBERT


class Chosen(NamedTuple):
    """What the head reads.

    Attributes:
        pooling: One of `POOLINGS`, or "model" for the model's own head.
        sentence: The choice and its reason, for the user; None = nothing to report.
        is_sentence_encoder: Whether the model was trained to encode sentences, as its modules.json says.
    """

    pooling: str
    sentence: str | None = None
    is_sentence_encoder: bool = False


def choose_pooling(name: str | Path, config: Any, task: Task, wanted: str = AUTO, is_remote: bool = False) -> Chosen:
    """Choose the input of the head.

    Args:
        name: The model: a name on the Hub, or a folder.
        config: Its configuration.
        task: The task.
        wanted: What the user asks for, one of `POOLING_SETTINGS`.
        is_remote: Whether the code of the model is in its repository.
    """
    if wanted not in POOLING_SETTINGS:
        raise UserError(f"pooling is {wanted!r}; it must be one of {', '.join(POOLING_SETTINGS)}.")
    if not can_have_pooling(task):
        if wanted in POOLINGS:
            raise UserError(
                f"pooling is {wanted!r}, and this is {task.modality} {task.kind}, whose head does not read a pooling; "
                f"it is for {', '.join(kinds_that('can_be_pooled'))} of texts."
            )
        return Chosen(OWN_HEAD)
    from ...model.pooled import can_be_pooled

    saved = pooling_of(config)
    if saved is not None and not is_remote:
        if wanted not in (AUTO, saved):
            raise UserError(
                f"pooling is {wanted!r}, and the head of {name} was trained on {saved!r}; leave out --pooling, or "
                "begin with the original model."
            )
        return Chosen(saved)
    has_setting = hasattr(config, _OWN_SETTING) and not is_remote
    if not has_setting and (is_remote or not can_be_pooled(config)):
        if wanted in POOLINGS:
            raise UserError(
                f"pooling is {wanted!r}, and {name} is a {config.model_type} model, which has to keep the head of its "
                "own class; use --pooling model."
            )
        return Chosen(OWN_HEAD)
    if wanted != AUTO:
        return Chosen(wanted)
    stock, tensors = _stock_model(name, config, task), _Tensors(name)
    if not has_setting and _has_trained_head(stock, config, tensors):
        return Chosen(OWN_HEAD)
    if (of_sentences := _of_sentence_encoder(name)) is not None:
        return of_sentences
    if has_setting or _has_trained_pooler(stock, tensors):
        return Chosen(OWN_HEAD)
    return Chosen(
        "mean",
        "the head reads the mean over the tokens, because the model has no trained pooler; set another with --pooling",
    )


def can_have_pooling(task: Task) -> bool:
    """Return whether the head of a model for a task may read a pooling.

    Args:
        task: The task.
    """
    return task.modality == "text" and kind_of(task).can_be_pooled


def choose_pairs(config: Any, task: Task, chosen: Chosen, examples: int, wanted: str = AUTO) -> str:
    """Choose whether the two texts of a task are one sequence ("joint") or are encoded apart ("separate").

    Args:
        config: The configuration of the model.
        task: The task.
        chosen: What the head reads.
        examples: The number of training examples.
        wanted: What the user asks for, one of `PAIR_SETTINGS`.
    """
    if wanted not in PAIR_SETTINGS:
        raise UserError(f"pairs is {wanted!r}; it must be one of {', '.join(PAIR_SETTINGS)}.")
    can_be_separate = can_have_pooling(task) and len(task.text) == 2
    is_pooled = chosen.pooling in POOLINGS and not hasattr(config, _OWN_SETTING)
    if wanted == SEPARATE and not (can_be_separate and is_pooled):
        why = (
            "the head is the model's own, which reads one sequence"
            if can_be_separate
            else f"{task.name} has no pairs of texts to classify"
        )
        raise UserError(f"pairs is {wanted!r}, and {why}; leave out --pairs.")
    if wanted != AUTO or not can_be_separate or not is_pooled:
        return JOINT if wanted == AUTO else wanted
    if pooling_of(config) is not None:  # a folder of ours
        return getattr(config, PAIRS_FIELD, JOINT)
    below = SEPARATE_BELOW_OF_NUMBERS if kind_of(task).has_numbers else SEPARATE_BELOW
    return SEPARATE if chosen.is_sentence_encoder and examples < below else JOINT


def with_pairs(data: Data, pairs: str) -> Data:
    """Return the data with a task that says how its pairs are encoded.

    Args:
        data: The data of a task.
        pairs: "joint" or "separate".
    """
    return data.encoded_apart() if pairs == SEPARATE else data


def set_pooling(config: Any, pooling: str, task: Task) -> Any:
    """Write into a configuration what the head reads, and return the class of the model; None = that of transformers.

    Args:
        config: The configuration.
        pooling: One of `POOLINGS`, or "model".
        task: The task, which says whether two texts are encoded apart.
    """
    from ...model.pooled import pooled_class

    for field in (FIELD, PAIRS_FIELD, LENGTH_FIELD):
        if hasattr(config, field):
            delattr(config, field)
    is_pooled = pooling in POOLINGS and not hasattr(config, _OWN_SETTING)
    if task.is_encoded_apart and not is_pooled:
        raise UserError(
            f"the pairs of {task.name} are encoded apart, and this model has a head of its own, which reads one "
            "sequence."
        )
    if not is_pooled:
        if pooling in POOLINGS:
            setattr(config, _OWN_SETTING, pooling)
        return None
    setattr(config, FIELD, pooling)
    if task.is_encoded_apart:
        setattr(config, PAIRS_FIELD, SEPARATE)
    return pooled_class(config)


def _stock_model(name: str | Path, config: Any, task: Task) -> Any:
    """Return the model with its own head, without weights."""
    import torch
    from transformers import AutoModelForSequenceClassification

    config = copy.deepcopy(config)
    kind_of(task).set_head(config, task.labels if kind_of(task).has_named_labels else ())
    try:
        with torch.device("meta"):
            return AutoModelForSequenceClassification.from_config(config)
    except Exception as error:  # of any kind, as its values are wrong
        raise UserError(f"{name} cannot be made by its config.json ({on_one_line(error)}).") from None


def _has_trained_head(stock: Any, config: Any, tensors: _Tensors) -> bool:
    """Return whether the checkpoint has a trained part of the head of a sequence classifier, in the right size."""
    classes = getattr(config, "architectures", None)
    if isinstance(classes, list) and classes and not str(classes[0]).endswith("ForSequenceClassification"):
        return False
    base = f"{stock.base_model_prefix}."
    head = {name: tuple(tensor.shape) for name, tensor in stock.state_dict().items() if not name.startswith(base)}
    fits = [name for name, shape in head.items() if tensors.shape(name) == shape]
    biases = [name for name in fits if name.endswith("bias")]
    return any(tensors.is_trained(name) for name in biases or fits)


def _has_trained_pooler(stock: Any, tensors: _Tensors) -> bool:
    """Return whether the own head reads a pooler of the base model that was trained."""
    if getattr(stock.base_model, "pooler", None) is None:
        return False
    biases = [name for name in tensors.names if "pooler" in name.split(".") and name.endswith("bias")]
    return any(tensors.is_trained(name) for name in biases)


class _Tensors:
    """The tensors of a checkpoint, of which few are read. A file that cannot be read has none: loading explains it."""

    def __init__(self, name: str | Path) -> None:
        from safetensors import SafetensorError, safe_open

        self._files: dict[str, Any] = {}
        for path in _weight_files(name):
            try:
                file = safe_open(path, framework="pt")
            except (SafetensorError, OSError):
                continue
            self._files |= dict.fromkeys(file.keys(), file)

    @property
    def names(self) -> list[str]:
        return list(self._files)

    def shape(self, name: str) -> tuple[int, ...] | None:
        return tuple(self._files[name].get_slice(name).get_shape()) if name in self._files else None

    def is_trained(self, name: str) -> bool:
        """Return whether a tensor is not all zero."""
        return bool(self._files[name].get_tensor(name).any())


def _weight_files(name: str | Path) -> list[str]:
    """Return the safetensors files of a model."""
    whole = _file_of(name, _WEIGHTS)
    if whole is not None:
        return [whole]
    index = _file_of(name, f"{_WEIGHTS}.index.json")
    shards = _read_json(index, dict).get("weight_map", {}) if index is not None else {}
    return [path for shard in sorted(set(shards.values())) if (path := _file_of(name, shard)) is not None]


def _of_sentence_encoder(name: str | Path) -> Chosen | None:
    """Return the pooling of a sentence encoder; None if it is none."""
    modules_file = _file_of(name, _MODULES)
    if modules_file is None:
        return None
    modules = _read_json(modules_file, list)
    poolings = [module["path"] for module in modules if str(module.get("type")).endswith("Pooling")]
    file = _file_of(name, f"{poolings[0]}/config.json") if poolings else None
    settings = _read_json(file, dict) if file is not None else {}
    named = settings.get("pooling_mode")
    old = [key.removeprefix("pooling_mode_") for key, value in settings.items() if value is True]
    modes = [named] if isinstance(named, str) else named or [mode for mode in old if not mode.startswith("include")]
    wanted = [str(mode).partition("_tokens")[0].partition("_token")[0] for mode in modes]
    if len(wanted) == 1 and wanted[0] in POOLINGS:
        what = "the mean over the tokens" if wanted[0] == "mean" else "the first token"
        return Chosen(wanted[0], f"the head reads {what}, as this sentence encoder was trained", True)
    return Chosen(
        "mean",
        f"the head reads the mean over the tokens, because the pooling of this sentence encoder "
        f"({', '.join(map(str, modes)) or 'unknown'}) is not one that a head can read",
        True,
    )


def _read_json(path: str, kind: Callable[[], Any]) -> Any:
    try:
        content = load_json(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path!r} is broken ({on_one_line(error)}); download or copy the model again.") from None
    if not isinstance(content, type(kind())):
        raise UserError(f"{path!r} is broken: it holds a {type(content).__name__}; download or copy the model again.")
    return content


def _file_of(name: str | Path, file: str) -> str | None:
    """Return the path of a file of a model; None if it has no such file."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return str(folder / file) if (folder / file).is_file() else None
    from transformers.utils import cached_file

    try:
        return cached_file(
            str(name), file, _raise_exceptions_for_missing_entries=False, _raise_exceptions_for_connection_errors=False,
            _raise_exceptions_for_gated_repo=False,
        )  # fmt: skip
    except OSError:
        return None
