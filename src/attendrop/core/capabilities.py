"""Capabilities of a method besides planning a pass. A method inherits from each capability that it has.

    class MyAverage(AveragesWeights, KeepsState): ...

The engine and the trainers ask for a capability with `isinstance`, through the functions at the end of this module
where several places ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from ..model.seams import Seams
from .regularizer import Regularizer
from .step import MicroBatch, Step

# ---- the tracked pass ----------------------------------------------------------------------------------------------


class ProbesModel(Regularizer):
    """Asks the model in `plan` (`batch.probe()`)."""

    measures_plan: ClassVar[bool] = False  # whether `plan` writes metrics in the steps that are logged

    def probes(self, step: Step) -> bool:
        """Return whether `plan` probes the model in this step.

        A captured plan that does is a separate graph, so that the tracked pass draws the same ordinary dropout.
        """
        raise NotImplementedError


class ComparesViews(Regularizer):
    """Trains on several copies of each example, which `penalty` may compare."""

    @property
    def views(self) -> int:
        """Copies of each example in the tracked pass. With zero strength it must be 1, so that the run is plain."""
        raise NotImplementedError


class RunsSeveralPasses(Regularizer):
    """Runs several tracked passes over a micro-batch, one after the other; their gradients are averaged."""

    same_dropout: ClassVar[bool] = True  # whether all of them draw the same ordinary dropout

    def passes(self, step: Step) -> int:
        """Tracked passes over each micro-batch of this step.

        All of them run under the same plan, and draw the same ordinary dropout unless `same_dropout` is False.
        """
        raise NotImplementedError

    def on_pass(self, batch: MicroBatch, number: int) -> None:
        """Act before each tracked pass; `number` counts from 0. It runs in Python in every step, as `on_batch` does.

        A captured pass has one graph for each number, which may run more than once: what the pass leaves for the next
        one it writes into a tensor that it does not read.
        """


class ReadsColumns(Regularizer):
    """Reads columns of the batch that the model must not get."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        raise NotImplementedError


class ReadsHiddenGradients(Regularizer):
    """Needs gradients of hidden states in the tracked pass."""


class HasParameters(Regularizer):
    """Has its own parameters, which get gradients in the tracked pass."""

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters."""
        raise NotImplementedError


# ---- the penalty ---------------------------------------------------------------------------------------------------


class RequiresModelLoss(Regularizer):
    """Replaces a part of the model's own loss."""

    @property
    def requires_model_loss(self) -> tuple[str, str] | None:
        """Why the loss must be the model's own, and what to do otherwise; None if any loss will do.

        Both are parts of the sentence of an error.
        """
        raise NotImplementedError


class PenalizesParameters(Regularizer):
    """Has a `penalty` that reads parameters, and not the predictions for each example."""


# ---- weights -------------------------------------------------------------------------------------------------------


class ChangesFirstWeights(Regularizer):
    """Changes the weights with which training starts, in `on_step_begin`.

    It is called before other methods, so that what they store of the first weights does not depend on the order of the
    list.
    """

    start_order: ClassVar[int] = 0  # 0 where it sets these weights, 1 where it masks them


class EditsWeights(Regularizer):
    """Replaces weights for the length of a step or of a micro-batch."""


class ScalesLearningRates(Regularizer):
    """Scales the learning rates of weights, or freezes them."""

    def rate_factors(self, model: nn.Module, seams: Seams) -> dict[str, float]:
        """Return factors of the learning rate, by the names of the model's parameters; the others have 1.

        A parameter with the factor 0 is frozen while the engine is open: it gets no gradient, no weight decay and no
        state in the optimizer. The factors of several methods are multiplied. Raises a `ValueError` as `check` does,
        before which it is called.

        Args:
            model: the model that will be trained.
            seams: its seams.
        """
        raise NotImplementedError


class AveragesWeights(Regularizer):
    """Evaluates and saves the model with other weights than it trains, such as an average."""

    def evaluated_weights(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the weights to evaluate and save the model with, by the names of its parameters; others stay its own.

        Args:
            model: the model that is trained.
        """
        raise NotImplementedError


class ChoosesOnDevelopment(AveragesWeights):
    """Has a coefficient of `evaluated_weights` that a Trainer chooses on its development set."""

    @property
    def choices(self) -> Sequence[float]:
        """Values of the coefficient; empty: there is nothing to choose.

        A Trainer takes the one with the best score on its `eval_dataset` at each evaluation, and of equal scores the
        first. It never looks at other data.
        """
        raise NotImplementedError

    def choose(self, value: float) -> None:
        """Use this value of `choices` in `evaluated_weights` from now on."""
        raise NotImplementedError


# ---- checkpoints ---------------------------------------------------------------------------------------------------


class KeepsState(Regularizer):
    """Has a state that a checkpoint must hold."""

    local_state: ClassVar[tuple[str, ...]] = ()  # prefixes of the state tensors that differ between processes

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the state of this method for a checkpoint: tensors and JSON-serialisable values."""
        raise NotImplementedError

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Restore what `state` returned. It is called before the first step of the resumed run."""
        raise NotImplementedError


# ---- what several places ask ---------------------------------------------------------------------------------------


def views_of(*regularizers: Regularizer) -> int:
    """Return copies of each example in the tracked pass of these methods."""
    return max((r.views for r in regularizers if isinstance(r, ComparesViews)), default=1)


def columns_of(*regularizers: Regularizer) -> frozenset[str]:
    """Return columns of the batch that these methods read and the model must not get."""
    return frozenset(name for r in regularizers if isinstance(r, ReadsColumns) for name in r.columns)


def start_order(regularizer: Regularizer) -> int:
    """When `on_step_begin` of a method is called, compared with others."""
    return regularizer.start_order if isinstance(regularizer, ChangesFirstWeights) else 2


def adds_penalty(regularizer: Regularizer) -> bool:
    """Return whether a method adds a term to the loss."""
    return type(regularizer).penalty is not Regularizer.penalty


def reads_predictions(regularizer: Regularizer) -> bool:
    """Return whether the penalty of a method reads the predictions for each example."""
    return adds_penalty(regularizer) and not isinstance(regularizer, PenalizesParameters)
