"""The recipe of a run: settings chosen from the data and the model where the user set nothing.

Small data need many passes: with three of them over a few hundred examples a model has hardly left its start. Mosbach
et al. (arXiv 2006.04884) train for 20 epochs at 2e-5, with Adam's bias correction, a warm-up over the first tenth of
the steps and a linear decay; Zhang et al. (arXiv 2006.05987) find the same for the number of steps. The optimizer of
the Trainer corrects the bias, and warm-up and decay are those of these papers in every run of attendrop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...core.capabilities import RequiresModelLoss
from ...core.regularizer import Regularizer
from .. import tasks
from ..tasks.findings import plural
from ..tasks.pooling import SEPARATE
from .losses import SQUARE_ROOT, label_counts
from .settings import RunConfig

STEPS = 1000  # that a run has at least, unless this takes more than MOST_EPOCHS
FEWEST_EPOCHS, MOST_EPOCHS = 3, 20
MOST_EPOCHS_OF_CLASSES = 40  # with so many classes: each example says little about most of them
PAIR_EPOCHS = 4  # of pairs that are encoded apart; with 20 a small model overfits
UNEQUAL = 3  # times the examples of the smallest class in the largest one, from which classes have weights
WIDTH = 768  # of BERT-base; the learning rate is inversely proportional to the width of the model
LARGEST_RATE = 1e-4
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
    """The settings chosen for a run, with reasons.

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


def epochs_for(examples: int, batch: int, classes: int = 0) -> int:
    """Return the number of epochs for an amount of training data.

    Args:
        examples: The number of training examples.
        batch: The number of examples in a step of the optimizer.
        classes: The number of classes that an example may have.
    """
    per_epoch = max(1, math.ceil(examples / batch))
    most = min(max(classes, MOST_EPOCHS), MOST_EPOCHS_OF_CLASSES)
    return min(max(math.ceil(STEPS / per_epoch), FEWEST_EPOCHS), most)


def rate_for(width: int, kind: str = "classification", is_lora: bool = False) -> float:
    """Return the learning rate for a model.

    Args:
        width: The size of its hidden states.
        kind: The name of the kind of task.
        is_lora: Whether adapters are trained instead of all weights.
    """
    rate = min(tasks.KINDS[kind].learning_rate * WIDTH / width, LARGEST_RATE) * (LORA_FACTOR if is_lora else 1)
    return float(f"{rate:.2g}")


def choose_recipe(
    config: RunConfig, arguments: Any, data: tasks.Data, model: Any, regularizers: Sequence[Regularizer] = ()
) -> Recipe:
    """Choose the number of epochs, the learning rate and the weights of the classes where the user set none.

    Args:
        config: The configuration, with the settings of its preset.
        arguments: The training arguments, for the size of a batch.
        data: The data.
        model: The configuration of the model.
        regularizers: The methods.
    """
    assert data.train is not None
    examples = len(data.train)
    batch = arguments.train_batch_size * arguments.gradient_accumulation_steps * arguments.world_size
    kind, width = tasks.kind_of(data.task), width_of(model)
    classes = len(data.task.labels) if kind.has_one_class or kind.has_several_labels else 0
    is_apart = config.pairs == SEPARATE
    most = PAIR_EPOCHS if is_apart else epochs_for(examples, batch, classes)
    usual, rate = kind.fixed_recipe or (most, rate_for(width, kind.name, config.lora))
    epochs = float(usual)
    choices = []
    if "num_train_epochs" not in config.training and arguments.max_steps <= 0:
        steps = round(math.ceil(examples / batch) * epochs)
        why = _why_so_many(epochs, classes, is_apart)
        reason = f"{epochs:g} epochs ({steps:,} steps) for {plural(examples, 'example')}{why}"
        choices.append(Choice("num_train_epochs", epochs, reason))
    if "learning_rate" not in config.training:
        what = "adapters in a model" if config.lora else "a model"
        use = "tagging with " if kind.is_per_word else "several labels and " if kind.has_several_labels else ""
        choices.append(Choice("learning_rate", rate, f"a learning rate of {rate:g} for {use}{what} of width {width}"))
    weights, remarks = _choose_weights(config, data, regularizers)
    return Recipe((*choices, *weights), tuple(remarks))


def _why_so_many(epochs: float, classes: int, is_apart: bool) -> str:
    if is_apart:
        return ", because pairs that are encoded apart need few passes"
    if epochs > MOST_EPOCHS and classes > MOST_EPOCHS:
        return f", because few examples of {classes:,} classes need many passes"
    return ", because few examples need many passes" if epochs > FEWEST_EPOCHS else ""


def needs_model_loss(regularizers: Sequence[Regularizer]) -> list[str]:
    """Return the names of the methods that work with no other loss than the model's own."""
    needing = (method for method in regularizers if isinstance(method, RequiresModelLoss))
    return [type(method).__name__ for method in needing if method.requires_model_loss is not None]


def _choose_weights(
    config: RunConfig, data: tasks.Data, regularizers: Sequence[Regularizer]
) -> tuple[list[Choice], list[str]]:
    """Return the weights of classes of different sizes, and remarks."""
    has_own = config.class_weights or config.focal_gamma or config.balanced_sampling
    if has_own or not tasks.kind_of(data.task).weighs_rare_classes:
        return [], []
    counts = label_counts(data)
    ratio = counts.max() / counts[counts > 0].min()
    if ratio < UNEQUAL:
        return [], []
    sizes = f"the largest class has {ratio:.3g} times the examples of the smallest"
    if needing := needs_model_loss(regularizers):
        return [], [f"{sizes}, and no class weights are chosen, because {needing[0]} needs the model's own loss"]
    reason = f"class weights by the square root of the counts, because {sizes}"
    return [Choice("class_weights", [SQUARE_ROOT], reason)], []


def width_of(config: Any) -> int:
    """Return the size of the hidden states of a model.

    Args:
        config: The configuration of the model.
    """
    settings = config.get_text_config()
    return int(getattr(settings, "hidden_size", None) or getattr(settings, "d_model", None) or WIDTH)
