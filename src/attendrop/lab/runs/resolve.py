"""Resolve the settings of a user to a configuration that has every value.

A setting has the first of these values: the user's, that of the preset, one that follows from another setting, one
that is chosen from the data and the model (`recipe.py`), the default.

    resolved = resolve_settings(config, model)               # before data are loaded: what is wrong is an error at once
    data = load_data(resolved.config, resolved.arguments.seed)
    resolved = resolve_recipe(resolved, data, model)

Each step returns a new object, and nothing changes the configuration afterwards: run.yaml, the card and the records of
studies hold what the run was trained with.
"""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass, field
from typing import Any

from transformers import Seq2SeqTrainingArguments

from ...core.regularizer import Regularizer
from ...errors import UserError, on_one_line
from ...methods import parse_method
from .. import tasks
from .checks import check_arguments
from .head import choose_head
from .presets import apply_preset
from .recipe import Recipe, choose_recipe
from .settings import SAME_SETTINGS, RunConfig


@dataclass(frozen=True)
class Resolved:
    """A resolved configuration, with the objects made from it.

    Attributes:
        config: The configuration, without a preset, and with its values.
        arguments: The `TrainingArguments` of these values.
        regularizers: The methods.
        notes: Sentences about the values of the preset.
        recipe: The values chosen from the data and the model; empty before `resolve_recipe`.
    """

    config: RunConfig
    arguments: Any
    regularizers: list[Regularizer]
    notes: tuple[str, ...] = ()
    recipe: Recipe = field(default_factory=Recipe)


def resolve_settings(config: RunConfig, model: Any) -> Resolved:
    """Resolve values that depend on the settings and on the model, and refuse wrong settings.

    Args:
        config: The configuration, from `make_config`.
        model: The configuration of the model, from `tasks.load_config`.
    """
    notes: list[str] = []
    if config.preset:
        config, notes = apply_preset(config, model)
    regularizers = _make_regularizers(config)
    config = config.replaced(_dependent_defaults(config))
    return Resolved(config, _make_arguments(config), regularizers, tuple(notes))


def resolve_recipe(resolved: Resolved, data: tasks.Data, model: Any) -> Resolved:
    """Resolve values that depend on the data.

    Args:
        resolved: From `resolve_settings`.
        data: The data of the run.
        model: The configuration of the model.
    """
    head, sentences = choose_head(resolved.config, data, model)
    config = resolved.config.replaced(head)
    recipe = choose_recipe(config, resolved.arguments, data, model, resolved.regularizers)
    recipe = dataclasses.replace(recipe, remarks=(*recipe.remarks, *sentences))
    config = config.replaced(recipe.settings)
    arguments = copy.copy(resolved.arguments)  # making others would set up devices and processes again
    for name, value in recipe.settings.items():
        if name in config.training:
            setattr(arguments, name, value)
    return dataclasses.replace(resolved, config=config, arguments=arguments, recipe=recipe)


def _make_regularizers(config: RunConfig) -> list[Regularizer]:
    try:
        return [parse_method(text) for text in config.method]
    except ValueError as error:
        raise UserError(f"{on_one_line(error)}.") from None


def _dependent_defaults(config: RunConfig) -> dict[str, Any]:
    """Return the defaults of training arguments that depend on other settings."""
    training, defaults = config.training, dict[str, Any]()
    if "save_strategy" not in config.explicit:
        # The best model can only be loaded from a step at which it was evaluated and saved.
        defaults["save_strategy"] = training["eval_strategy"]
        if training["eval_strategy"] == "steps" and "save_steps" not in config.explicit and "eval_steps" in training:
            defaults["save_steps"] = training["eval_steps"]
    keep_epoch = _keep_epoch(config)
    return {**defaults, "keep_epoch": keep_epoch, "load_best_model_at_end": keep_epoch != "last"}


def _keep_epoch(config: RunConfig) -> str:
    """Return the rule for the kept epoch. A user who sets how the best epoch is chosen keeps the best one."""
    if config.training["eval_strategy"] == "no" or not config.training["load_best_model_at_end"]:
        return "last"
    asks_for_best = {"load_best_model_at_end", "metric_for_best_model", "greater_is_better"} & config.explicit
    return "best" if asks_for_best and "keep_epoch" not in config.explicit else config.keep_epoch


def _make_arguments(config: RunConfig) -> Any:
    known = {f.name for f in dataclasses.fields(Seq2SeqTrainingArguments)}
    newer = {old: new for new, old in SAME_SETTINGS.items() if new in known}
    try:
        arguments = Seq2SeqTrainingArguments(**{newer.get(k, k): value for k, value in config.training.items()})
        if arguments.device.type == "cpu" and "dataloader_pin_memory" not in config.explicit:
            arguments.dataloader_pin_memory = False  # pinned memory is useless without a GPU, and torch warns
    except (TypeError, ValueError, ImportError, RuntimeError, OSError) as error:
        raise UserError(f"a training argument is not allowed: {on_one_line(error)}.") from None
    check_arguments(arguments)
    return arguments
