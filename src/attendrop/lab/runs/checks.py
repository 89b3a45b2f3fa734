"""Checks of the settings of a run, each alone and together. An error names the setting, its value and what is allowed.

`check_settings` needs the settings alone, `check_arguments` the training arguments that were made of them, and
`check_metric` the metrics of the task.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import typing
from collections.abc import Iterable
from math import inf
from typing import TYPE_CHECKING, Any

from ...errors import UserError, on_one_line
from ...utils.checks import check_choice, check_number, check_whole
from ...utils.limits import MOST_WORKERS
from ..tasks.pooling import PAIR_SETTINGS, POOLING_SETTINGS

if TYPE_CHECKING:
    from .settings import RunConfig

# setting -> the least whole number that is allowed
_LEAST = {
    "max_length": 2,
    "lora_r": 1,
    "shots": 1,
    "patience": 1,
    "max_train_samples": 1,
    "max_eval_samples": 1,
    "per_device_train_batch_size": 1,
    "per_device_eval_batch_size": 1,
    "gradient_accumulation_steps": 1,
    "eval_accumulation_steps": 1,
    "dataloader_num_workers": 0,
    "save_total_limit": 1,
    "dataloader_prefetch_factor": 1,
    "torch_empty_cache_steps": 1,
    "generation_max_length": 1,
    "generation_num_beams": 1,
    "ddp_timeout": 1,
}
# setting -> the limits of a number, and whether the lower and the upper one are excluded
_RANGES: dict[str, tuple[float, float, bool, bool]] = {
    "fraction": (0, 1, True, False),
    "dataloader_num_workers": (0, MOST_WORKERS, False, False),
    "validation_share": (0, 1, True, True),
    "mlm_probability": (0, 1, True, True),
    "focal_gamma": (0, inf, False, False),
    "lora_alpha": (0, inf, True, False),
    "lora_dropout": (0, 1, False, True),
    "dropout": (0, 1, False, True),
    "attention_dropout": (0, 1, False, True),
    "num_train_epochs": (0, inf, True, False),
    "learning_rate": (0, inf, True, False),
    "weight_decay": (0, inf, False, False),
    "warmup_steps": (0, inf, False, False),
    "warmup_ratio": (0, 1, False, False),
    "max_grad_norm": (0, inf, False, False),
    "adam_beta1": (0, 1, False, True),
    "adam_beta2": (0, 1, False, True),
    "adam_epsilon": (0, inf, True, False),
    "label_smoothing_factor": (0, 1, False, True),
    "seed": (0, 2**32 - 1, False, False),
    "data_seed": (0, 2**32 - 1, False, False),
    "logging_steps": (0, inf, True, False),
    "eval_steps": (0, inf, True, False),
    "save_steps": (0, inf, True, False),
    "eval_delay": (0, inf, False, False),
    "neftune_noise_alpha": (0, inf, True, False),
}
_OF_OWN_FILES = (
    "validation_file",
    "test_file",
    "text",
    "text_pair",
    "label",
    "kind",
    "choices",
    "label_separator",
    "encoding",
    "separator",
    "columns",
    "drop_bad_rows",
)

_COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")  # of torch.compile


def check_settings(config: RunConfig) -> None:
    """Check every setting that is wrong in itself or beside another one.

    Args:
        config: The configuration, with what the user set.
    """
    if not config.model:
        raise UserError("no model is given; name one with --model, such as --model roberta-base.")
    if bool(config.task) == bool(config.train_file):
        what = "both task and train_file are given" if config.task else "no data are given"
        raise UserError(f"{what}; use either --task, such as --task glue/rte, or --train-file with your own data.")
    _check_values(config)
    _check_pairs(config)


def _value(config: RunConfig, name: str) -> Any:
    return getattr(config, name) if hasattr(config, name) else config.training.get(name)


def _check_values(config: RunConfig) -> None:
    for name, least in _LEAST.items():
        if (value := _value(config, name)) is not None:
            check_whole(name, value, least)
    for name, (low, high, is_above, is_below) in _RANGES.items():
        if (value := _value(config, name)) is not None:
            check_number(name, value, low, high, is_above, is_below)
    steps = config.training.get("max_steps")
    if steps is not None and steps != -1:
        check_whole("max_steps", steps, 1, ", or -1 to train for num_train_epochs")
    check_choice("keep_epoch", config.keep_epoch, ("auto", "best", "last"))
    if config.preset is not None:
        check_choice("preset", config.preset, ("paper", "recommended"))
    check_choice("head_start", config.head_start, ("auto", "frozen", "random"))
    if config.quantize is not None:
        check_choice("quantize", config.quantize, ("4bit", "8bit"))
    check_choice("pooling", config.pooling, POOLING_SETTINGS)
    check_choice("pairs", config.pairs, PAIR_SETTINGS)
    config.read_options()
    if config.training.get("label_names", ["labels"]) != ["labels"]:
        raise UserError(f"label_names is {config.training['label_names']!r}; it must be labels.")
    for name, choices in _choices().items():
        value = config.training.get(name)
        if value is not None and value not in choices:
            raise UserError(f"{name} is {value!r}{_nearest(str(value), choices)}; it must be one of {_list(choices)}.")


def _choices() -> dict[str, list[str]]:
    """Return the allowed values of each training argument that names them, by its type or beside it."""
    from transformers import Seq2SeqTrainingArguments
    from transformers.utils import logging

    levels = [*logging.get_log_levels_dict(), "passive"]
    choices = {"log_level": levels, "log_level_replica": levels, "torch_compile_mode": [*_COMPILE_MODES]}
    for field in dataclasses.fields(Seq2SeqTrainingArguments):
        if "choices" in field.metadata:
            choices[field.name] = list(field.metadata["choices"])
    for name, hint in typing.get_type_hints(Seq2SeqTrainingArguments).items():
        for option in typing.get_args(hint) or (hint,):
            if isinstance(option, type) and issubclass(option, enum.Enum):
                choices[name] = [str(member.value) for member in option]
    return choices


def _nearest(value: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(value, list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)


def _check_pairs(config: RunConfig) -> None:
    """Refuse settings that contradict each other, and those that would silently be ignored."""
    training = config.training
    if config.shots is not None and config.fraction is not None:
        raise UserError("both shots and fraction are given; choose one of them.")
    if config.keep_best_of and config.no_baselines:
        raise UserError("both keep_best_of and no_baselines are given; choose one of them.")
    if config.overwrite and (config.resume or training.get("resume_from_checkpoint")):
        raise UserError("both resume and overwrite are given; choose one of them.")
    if config.resume_changed and not (config.resume or config.training.get("resume_from_checkpoint")):
        raise UserError("resume_changed is given without resume; it allows changed settings for --resume.")
    for name in () if config.lora else ("lora_r", "lora_alpha", "lora_dropout", "lora_targets", "quantize"):
        if getattr(config, name) not in ([], getattr(type(config), name, None)):
            raise UserError(f"{name} is {getattr(config, name)!r}, and lora is not given; add --lora.")
    for name in _OF_OWN_FILES if config.task else ():
        if getattr(config, name) not in (None, [], False):
            raise UserError(
                f"{name} is {getattr(config, name)!r}, and task is {config.task!r}; {name} is for your own files, with "
                "train_file."
            )
    if config.train_file and config.data_dir and not config.also_eval:
        raise UserError(
            f"data_dir is {config.data_dir!r}, and train_file is {config.train_file!r}; data_dir is for a task, "
            "or for those of also_eval."
        )
    for name in ("patience", "load_best_model_at_end", "keep_epoch"):
        is_asked = name in config.explicit and _value(config, name) not in (None, False, "auto", "last")
        if training.get("eval_strategy") == "no" and is_asked:
            raise UserError(
                f"{name} is {_value(config, name)!r}, and eval_strategy is 'no'; it needs evaluations, so "
                "eval_strategy must be 'epoch' or 'steps'."
            )
    loads_best = training.get("load_best_model_at_end")
    contradicts = config.keep_epoch == ("last" if loads_best else "best")
    if contradicts and {"keep_epoch", "load_best_model_at_end"} <= config.explicit:
        raise UserError(
            f"keep_epoch is {config.keep_epoch!r}, and load_best_model_at_end is {loads_best}; leave one of them out."
        )


def check_arguments(arguments: Any) -> None:
    """Check settings that libraries refuse only during a run: devices, loggers, the Hub, optimizer and scheduler.

    Args:
        arguments: The `TrainingArguments`.
    """
    for name in ("fp16", "fp16_full_eval"):
        if getattr(arguments, name, False) and arguments.device.type == "cpu":
            raise UserError(f"{name} is True, and training runs on the CPU; it must be False, or bf16 can be used.")
    _check_loggers(arguments.report_to)
    if arguments.push_to_hub:
        _check_hub()
    _check_optimizer(arguments)


def _check_loggers(names: Iterable[str]) -> None:
    from transformers.integrations import get_available_reporting_integrations
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    for name in names:
        if name not in INTEGRATION_TO_CALLBACK:
            near = _nearest(name, INTEGRATION_TO_CALLBACK)
            raise UserError(
                f"report_to is {name!r}{near}; it must be 'none', 'all' or one of {_list(INTEGRATION_TO_CALLBACK)}."
            )
        if name not in get_available_reporting_integrations():
            raise UserError(f"report_to is {name!r}, which is not installed; install it, or use --report-to none.")


def _check_hub() -> None:
    from huggingface_hub import get_token

    from ..tasks.hub import is_offline

    if is_offline():
        raise UserError(
            "push_to_hub is True, and the Hub cannot be reached; check the connection, or train without --push-to-hub."
        )
    if get_token() is None:
        raise UserError(
            "push_to_hub is True, and you are not logged in to the Hub; log in with `hf auth login`, or set the "
            "environment variable HF_TOKEN."
        )


def _check_optimizer(arguments: Any) -> None:
    """Make the optimizer and the scheduler of a single number, as the Trainer will make those of the model."""
    import torch
    from transformers import Trainer, get_scheduler

    number = torch.nn.Parameter(torch.zeros(1))
    optimizer: Any = torch.optim.SGD([number], lr=arguments.learning_rate)
    try:
        make, options = Trainer.get_optimizer_cls_and_kwargs(arguments)
        if not {"params", "model", "optimizer_dict"} & options.keys():  # those need the model itself
            optimizer = make([number], **options)
    except (TypeError, ValueError, ImportError, RuntimeError) as error:
        given = f" and optim_args is {arguments.optim_args!r}" if arguments.optim_args else ""
        name = getattr(arguments.optim, "value", arguments.optim)
        raise UserError(f"optim is {name!r}{given}, which does not work: {on_one_line(error)}.") from None
    name, options = arguments.lr_scheduler_type, arguments.lr_scheduler_kwargs or {}
    try:
        get_scheduler(
            name, optimizer, num_warmup_steps=1, num_training_steps=10, scheduler_specific_kwargs=dict(options)
        )
    except (TypeError, ValueError, AttributeError) as error:
        name = getattr(name, "value", name)
        raise UserError(
            f"lr_scheduler_kwargs is {options!r}, which does not fit lr_scheduler_type {name!r}: {on_one_line(error)}."
        ) from None


def check_metric(name: str, metrics: Iterable[str]) -> None:
    """Check that evaluations compute the metric that selects the best model.

    Args:
        name: The metric that the user named, with or without `eval_`.
        metrics: The metrics of the task.
    """
    known = ("loss", *metrics)
    if name.removeprefix("eval_") not in known:
        raise UserError(
            f"metric_for_best_model is {name!r}{_nearest(name, known)}; for this task it must be one of {_list(known)}."
        )
