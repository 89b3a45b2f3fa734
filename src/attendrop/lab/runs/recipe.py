"""The recipe of a run: what is chosen from the data and the model where the user set nothing.

Small data need many passes: with three of them over a few hundred examples a model has hardly left its start. Mosbach
et al. (arXiv 2006.04884) train for 20 epochs at 2e-5, with Adam's bias correction, a warm-up over the first tenth of
the steps and a linear decay; Zhang et al. (arXiv 2006.05987) find the same for the number of steps. The optimizer of
the Trainer corrects the bias, and warm-up and decay are those of these papers in every run of attendrop.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...errors import UserError
from .. import tasks
from ..tasks.findings import plural
from .settings import RunConfig

STEPS = 1000  # that a run has at least, unless this takes more than MOST_EPOCHS
FEWEST_EPOCHS, MOST_EPOCHS = 3, 20
WIDTH = 768  # of BERT-base; the learning rate is inversely proportional to the width of the model
LARGEST_RATE = 1e-4
PRESET_EXAMPLES = 300  # for which the preset `recommended` was chosen; more examples have fewer epochs
# It lowered the loss with up to so many examples; with 2,490 and 3,668 it did not (docs/verdict.md).
PRESET_GAINS_UP_TO = 1000
LORA_FACTOR = 10  # low-rank adapters start at zero and need larger steps


class Choice(NamedTuple):
    """One setting that was chosen.

    Attributes:
        setting: Its name: a field of `RunConfig` or a training argument.
        value: Its value.
        reason: The value and what decided it, as a part of a sentence.
    """

    setting: str
    value: Any
    reason: str


@dataclass(frozen=True)
class Recipe:
    """What was chosen for a run, and why.

    Attributes:
        choices: The settings that were chosen; those that the user set are not among them.
        remarks: Further sentences for the user.
    """

    choices: tuple[Choice, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def settings(self) -> dict[str, Any]:
        """The chosen values by the names of their settings."""
        return {choice.setting: choice.value for choice in self.choices}

    @property
    def sentences(self) -> list[str]:
        """What was chosen and why, and with which flags the user sets something else; then the remarks."""
        if not self.choices:
            return list(self.remarks)
        reasons = ", and ".join(choice.reason for choice in self.choices)
        flags = " and ".join(f"--{choice.setting.replace('_', '-')}" for choice in self.choices)
        return [f"chosen: {reasons}; set others with {flags}", *self.remarks]


def epochs_for(examples: int, batch: int) -> int:
    """The number of epochs for an amount of training data.

    Args:
        examples: The number of training examples.
        batch: The number of examples in a step of the optimizer.
    """
    per_epoch = max(1, math.ceil(examples / batch))
    return min(max(math.ceil(STEPS / per_epoch), FEWEST_EPOCHS), MOST_EPOCHS)


def preset_epochs_for(examples: int, epochs: float) -> float:
    """The number of epochs of a preset: fewer for more examples, so that the number of steps stays about the same.

    Args:
        examples: The number of training examples.
        epochs: The number of epochs for up to `PRESET_EXAMPLES` of them.
    """
    return min(epochs, max(FEWEST_EPOCHS, math.ceil(epochs * PRESET_EXAMPLES / examples)))


def rate_for(width: int, kind: str = "classification", is_lora: bool = False) -> float:
    """The learning rate for a model.

    Args:
        width: The size of its hidden states.
        kind: The name of the kind of task.
        is_lora: Whether adapters are trained instead of all weights.
    """
    rate = min(tasks.KINDS[kind].learning_rate * WIDTH / width, LARGEST_RATE) * (LORA_FACTOR if is_lora else 1)
    return float(f"{rate:.2g}")


def choose_recipe(config: RunConfig, arguments: Any, data: tasks.Data, model: Any) -> Recipe:
    """Choose the number of epochs and the learning rate where the user set none.

    Args:
        config: The configuration, with the settings of its preset.
        arguments: The training arguments, for the size of a batch.
        data: The data.
        model: The configuration of the model.
    """
    assert data.train is not None
    examples = len(data.train)
    batch = arguments.train_batch_size * arguments.gradient_accumulation_steps * arguments.world_size
    kind, width = tasks.kind_of(data.task), width_of(model)
    if config.preset_epochs is not None and not kind.has_one_class:
        raise UserError(
            f"preset is 'recommended' and the kind of the task is {kind.name!r}; it must be 'classification', because "
            "the recommendation comes from such tasks."
        )
    usual, rate = kind.fixed_recipe or (epochs_for(examples, batch), rate_for(width, kind.name, config.lora))
    epochs = float(usual) if config.preset_epochs is None else preset_epochs_for(examples, config.preset_epochs)
    choices, remarks = [], []
    if "num_train_epochs" not in config.training and arguments.max_steps <= 0:
        steps = round(math.ceil(examples / batch) * epochs)
        why = ", because few examples need many passes" if epochs > FEWEST_EPOCHS else ""
        reason = f"{epochs:g} epochs ({steps:,} steps) for {plural(examples, 'example')}{why}"
        choices.append(Choice("num_train_epochs", epochs, reason))
    if "learning_rate" not in config.training:
        what = "adapters in a model" if config.lora else "a model"
        use = "tagging with " if kind.is_per_word else ""
        choices.append(Choice("learning_rate", rate, f"a learning rate of {rate:g} for {use}{what} of width {width}"))
    if config.preset_epochs is not None and examples > 2 * PRESET_GAINS_UP_TO:
        remarks.append(
            f"the preset recommended is for small data: it lowered the loss with up to {PRESET_GAINS_UP_TO:,} "
            f"examples, and with several thousand it was no better than plain fine-tuning; there are {examples:,} here"
        )
    return Recipe(tuple(choices), tuple(remarks))


def width_of(config: Any) -> int:
    """The size of the hidden states of a model.

    Args:
        config: The configuration of the model.
    """
    settings = config.get_text_config()
    return int(getattr(settings, "hidden_size", None) or getattr(settings, "d_model", None) or WIDTH)
