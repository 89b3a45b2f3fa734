"""The base class of every method: a dataclass whose fields are its hyper-parameters, with seven hooks.

    for each optimizer step
        on_step_begin(step)                     # mixout mixes the weights
        for each micro-batch
            on_batch(batch)                     # AttendOut trains the defender; never captured
            plan(batch)            -> Plan      # AD-DROP probes the model, LayerDrop draws; may be captured
            for each of `passes(step)` passes, one as a rule
                on_pass(batch, number)              # FreeLB: which perturbation comes next; never captured
                a tracked pass under the plan, over `views` copies of each example
                penalty(outputs, batch) -> Tensor   # R-Drop compares the views
                backward                            # the plan is applied until this has ended
        on_gradients(step)                      # Child-Tuning masks the gradients
        optimizer.step()
        on_step_end(step)                       # AttendOut measures the reward
    on_close()                                  # also after an exception in the middle of a step

As a rule there is one tracked pass for each micro-batch. What else a method needs to know it learns from a probe
(`batch.probe()`), or from more views of the batch. The gradients of several passes are averaged.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from ..model.plan import Plan
from ..model.seams import Seams
from .hyper import check_fields
from .schedule import Schedule
from .step import Loop, MicroBatch, Step


@dataclass
class Regularizer:
    """The base class of every method. All hooks do nothing here.

    A subclass is a dataclass. It sets `name`, has its hyper-parameters as fields, checks them in `__post_init__`, and
    overrides the hooks that it needs:

        @dataclass
        class KeyDropout(Regularizer):
            name: ClassVar[str] = "key_dropout"

            p: float = 0.1

            def plan(self, batch: MicroBatch) -> Plan:
                keep = {}
                for site in batch.step.seams.sites:
                    rows, queries, keys = map_shape(site, batch.examples)
                    draws = batch.uniform(site.index, (rows, 1, 1, keys), batch.step.device, self.name)
                    keep[site.index] = draws >= self.p
                return Plan(keep=keep)
    """

    name: ClassVar[str] = ""
    edits_weights: ClassVar[bool] = False  # whether it replaces weights for the length of a step
    reads_gradients: ClassVar[bool] = False  # whether it needs gradients of hidden states in the tracked pass
    # When `on_step_begin` is called: 0 where it sets the weights with which training starts, 1 where it masks them.
    # Others come after these, so that what they store of the first weights does not depend on the order of the list.
    start_order: ClassVar[int] = 2
    measures_plan: ClassVar[bool] = False  # whether `plan` writes metrics in the steps that are logged
    averages_weights: ClassVar[bool] = (
        False  # whether the model is evaluated and saved with other weights than it trains
    )
    local_state: ClassVar[tuple[str, ...]] = ()  # prefixes of the state tensors that differ between processes

    def __post_init__(self) -> None:
        check_fields(self)
        self.reset()

    # ---- what it needs -----------------------------------------------------------------------------------------

    @property
    def views(self) -> int:
        """Copies of each example in the tracked pass. With zero strength it must be 1: then a run is plain."""
        return 1

    @property
    def reads_predictions(self) -> bool:
        """Whether `penalty` reads what the model predicts for each example; by default where it is overridden."""
        return type(self).penalty is not Regularizer.penalty

    @property
    def own_loss(self) -> tuple[str, str] | None:
        """Why the loss must be the model's own, and what to do where it is not; None where it may be any.

        Both are parts of the sentence of an error.
        """
        return None

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the batch that this method reads and the model must not get."""
        return ()

    def passes(self, step: Step) -> int:
        """Tracked passes over each micro-batch of this step, one after the other; their gradients are averaged.

        All of them run under the same plan and draw the same ordinary dropout.
        """
        return 1

    def check(self, model: nn.Module, seams: Seams, epochs: int | None) -> None:
        """Raises a `ValueError` if this method cannot work on this model, or not for this number of epochs."""

    def check_loop(self, model: nn.Module, loop: Loop) -> None:
        """Raises a `ValueError` if this method cannot work in this training loop."""

    def refuses(self, other: Regularizer) -> str | None:
        """The end of a sentence that says why this method cannot act together with `other`; None where it can."""
        return None

    def rate_factors(self, model: nn.Module, seams: Seams) -> dict[str, float]:
        """Factors of the learning rate, by the names of the model's parameters; the others have 1.

        A parameter with the factor 0 is frozen while the engine is open: it gets no gradient, no weight decay and no
        state in the optimizer. The factors of several methods are multiplied. Raises a `ValueError` as `check` does,
        before which it is called.

        Args:
            model: the model that will be trained.
            seams: its seams.
        """
        return {}

    # ---- captured steps ----------------------------------------------------------------------------------------

    def capture_key(self, step: Step) -> Hashable:
        """What `plan` and `penalty` depend on besides the batch, the weights, draws and `Step.number`.

        Steps with equal keys replay one CUDA graph. None means that this step is not captured; it is the default for
        methods that override `plan` or `penalty`. What changes from step to step and is no reason for another graph,
        such as the value of a schedule, is read with `Step.number`, `Step.strength` or `Step.values`.
        """
        cls = type(self)
        return () if cls.plan is Regularizer.plan and cls.penalty is Regularizer.penalty else None

    def probes(self, step: Step) -> bool:
        """Whether `plan` asks the model in this step (`batch.probe()`).

        A captured plan that does is a graph of its own, so that the tracked pass draws the same ordinary dropout.
        """
        return False

    def parameters(self) -> list[nn.Parameter]:
        """Parameters of its own that get gradients in the tracked pass."""
        return []

    # ---- the hooks ---------------------------------------------------------------------------------------------

    def on_step_begin(self, step: Step) -> None:
        """Before the first micro-batch of an optimizer step."""

    def on_batch(self, batch: MicroBatch) -> None:
        """Before `plan`. It runs in Python in every step, also where plans are replayed from a CUDA graph.

        In a captured step the tensors of the batch are overwritten by the next one: clone what must be kept.
        """

    def plan(self, batch: MicroBatch) -> Plan:
        """What the tracked pass over this micro-batch changes in the model."""
        return Plan()

    def on_pass(self, batch: MicroBatch, number: int) -> None:
        """Before each tracked pass; `number` counts from 0. It runs in Python in every step, as `on_batch` does.

        A captured pass has one graph for each number, which may run more than once: what the pass leaves for the next
        one it writes into a tensor that it does not read.
        """

    def penalty(self, outputs: Any, batch: MicroBatch) -> Tensor | None:
        """A term that is added to the loss, from the outputs of the tracked pass."""
        return None

    def on_gradients(self, step: Step) -> None:
        """When all gradients of the step are there, before they are clipped and the optimizer steps."""

    def on_step_end(self, step: Step) -> None:
        """After the optimizer's step."""

    def evaluated_weights(self, model: nn.Module) -> dict[str, Tensor]:
        """Weights with which the model is evaluated and saved, by the names of its parameters; the others are its own.

        A method that overrides this sets `averages_weights`.

        Args:
            model: the model that is trained.
        """
        return {}

    @property
    def choices(self) -> Sequence[float]:
        """Values of a coefficient on which `evaluated_weights` depends; empty: there is nothing to choose.

        A Trainer takes the one with the best score on its `eval_dataset` at each evaluation, and of equal scores the
        first. It never looks at other data.
        """
        return ()

    def choose(self, value: float) -> None:
        """From now on, `evaluated_weights` are those of this value of `choices`."""

    # ---- the life of a run -------------------------------------------------------------------------------------

    def _claim(self, engine: Any) -> None:
        """Refuses a second engine while another one uses this object, whose state belongs to one run."""
        user = self.__dict__.get("_engine")
        if user is not None and user() is not None and user().is_open:
            raise ValueError(
                f"this {type(self).__name__} object is in use by another engine; close that one first, or create an "
                f"object for each model."
            )
        self.__dict__["_engine"] = weakref.ref(engine)

    def reset(self) -> None:
        """Forgets an earlier run: one object may train several models, one after the other."""

    def on_close(self) -> None:
        """Restores what it has changed. Training has ended or failed, maybe in the middle of a step."""

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What a checkpoint must hold of this method: tensors, and values that JSON can hold."""
        return {}, {}

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Restores what `state` returned. It is called before the first step of the resumed run."""

    def to_dict(self) -> dict[str, Any]:
        """The whole configuration, as values that JSON can hold."""
        fields = {f.name: _as_json(getattr(self, f.name)) for f in dataclasses.fields(self)}
        return {"method": self.name or type(self).__name__, **fields}


def _as_json(value: Any) -> Any:
    if isinstance(value, Schedule):
        return [list(point) for point in value.points]
    if isinstance(value, slice):
        return ":".join("" if part is None else str(part) for part in (value.start, value.stop, value.step))
    return value
