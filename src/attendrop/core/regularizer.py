"""The base class of every method: a dataclass whose fields are its hyper-parameters, with six hooks.

    for each optimizer step
        on_step_begin(step)                     # mixout mixes the weights
        for each micro-batch
            on_batch(batch)                     # AttendOut trains the defender; never captured
            plan(batch)            -> Plan      # AD-DROP probes the model, LayerDrop draws; may be captured
            a tracked pass under the plan
            penalty(outputs, batch) -> Tensor   # R-Drop compares the views
            backward                            # the plan is applied until this has ended
        on_gradients(step)                      # Child-Tuning masks the gradients
        optimizer.step()
        on_step_end(step)                       # AttendOut measures the reward
    on_close()                                  # also after an exception in the middle of a step

What else a method can do (run several passes, average weights, keep a state in checkpoints, …) it inherits from the
classes in capabilities.py.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from ..model.plan import Plan
from ..model.seams import Seams
from .hyper import check_fields
from .schedule import Schedule
from .step import Loop, MicroBatch, Step

# Members of the classes in capabilities.py, and what stood for them before there were such classes.
_CAPABILITY_OF = {
    "averages_weights": "AveragesWeights",
    "choices": "ChoosesOnDevelopment",
    "choose": "ChoosesOnDevelopment",
    "columns": "ReadsColumns",
    "edits_weights": "EditsWeights",
    "evaluated_weights": "AveragesWeights",
    "load_state": "KeepsState",
    "local_state": "KeepsState",
    "measures_plan": "ProbesModel",
    "on_pass": "RunsSeveralPasses",
    "own_loss": "RequiresModelLoss",
    "parameters": "HasParameters",
    "passes": "RunsSeveralPasses",
    "probes": "ProbesModel",
    "rate_factors": "ScalesLearningRates",
    "reads_gradients": "ReadsHiddenGradients",
    "reads_predictions": "PenalizesParameters",
    "requires_model_loss": "RequiresModelLoss",
    "same_dropout": "RunsSeveralPasses",
    "start_order": "ChangesFirstWeights",
    "state": "KeepsState",
    "views": "ComparesViews",
}
_REMEDIES = {"own_loss": ", and rename it to requires_model_loss"}


@dataclass
class Regularizer:
    """The base class of every method. All hooks do nothing here.

    A subclass is a dataclass. It sets `name`, has its hyper-parameters as fields, which `hyper` checks, and overrides
    the hooks that it needs:

        @dataclass
        class KeyDropout(Regularizer):
            name: ClassVar[str] = "key_dropout"

            p: float = hyper(0.1, high=1)

            def plan(self, batch: MicroBatch) -> Plan:
                keep = {}
                for site in batch.step.seams.sites:
                    rows, queries, keys = map_shape(site, batch.examples)
                    draws = batch.uniform(site.index, (rows, 1, 1, keys), batch.step.device, self.name)
                    keep[site.index] = draws >= self.p
                return Plan(keep=keep)
    """

    name: ClassVar[str] = ""
    _code: ClassVar[str] = ""  # the file or package of a method that is not part of attendrop, and its checksum

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a class that defines a member of a capability from which it does not inherit."""
        super().__init_subclass__(**options)
        bases = {base.__name__ for base in cls.__mro__}
        for member, capability in _CAPABILITY_OF.items():
            if member in vars(cls) and capability not in bases:
                raise TypeError(
                    f"{cls.__name__} defines {member!r}, and only methods that inherit from {capability} have it; "
                    f"write class {cls.__name__}(attendrop.{capability}){_REMEDIES.get(member, '')}."
                )

    def __post_init__(self) -> None:
        check_fields(self)
        self.reset()

    # ---- what it needs -----------------------------------------------------------------------------------------

    def check(self, model: nn.Module, seams: Seams, epochs: int | None) -> None:
        """Raise a `ValueError` if this method cannot work on this model, or not for this number of epochs."""

    def check_loop(self, model: nn.Module, loop: Loop) -> None:
        """Raise a `ValueError` if this method cannot work in this training loop."""

    def refuses(self, other: Regularizer) -> str | None:
        """Return the end of a sentence that says why this method cannot act together with `other`; None if it can."""
        return None

    # ---- captured steps ----------------------------------------------------------------------------------------

    def capture_key(self, step: Step) -> Hashable:
        """Return a key of what `plan` and `penalty` depend on besides the batch, the weights, draws and `Step.number`.

        Steps with equal keys replay one CUDA graph. None means that this step is not captured; it is the default for
        methods that override `plan` or `penalty`. What changes from step to step and is no reason for another graph,
        such as the value of a schedule, is read with `Step.number`, `Step.strength` or `Step.values`.
        """
        cls = type(self)
        return () if cls.plan is Regularizer.plan and cls.penalty is Regularizer.penalty else None

    # ---- the hooks ---------------------------------------------------------------------------------------------

    def on_step_begin(self, step: Step) -> None:
        """Act before the first micro-batch of an optimizer step."""

    def on_batch(self, batch: MicroBatch) -> None:
        """Act before `plan`. This runs in Python in every step, also where plans are replayed from a CUDA graph.

        In a captured step the tensors of the batch are overwritten by the next one: clone what must be kept.
        """

    def plan(self, batch: MicroBatch) -> Plan:
        """Return the changes to the model for the tracked pass over this micro-batch."""
        return Plan()

    def penalty(self, outputs: Any, batch: MicroBatch) -> Tensor | None:
        """Return a term that is added to the loss, from the outputs of the tracked pass."""
        return None

    def on_gradients(self, step: Step) -> None:
        """Act when all gradients of the step are computed, before they are clipped and the optimizer steps."""

    def on_step_end(self, step: Step) -> None:
        """Act after the optimizer's step."""

    # ---- the life of a run -------------------------------------------------------------------------------------

    def _claim(self, engine: Any) -> None:
        """Refuse a second engine while another one uses this object, whose state belongs to one run."""
        user = self.__dict__.get("_engine")
        if user is not None and user() is not None and user().is_open:
            raise ValueError(
                f"this {type(self).__name__} object is in use by another engine; close that one first, or create an "
                f"object for each model."
            )
        self.__dict__["_engine"] = weakref.ref(engine)

    def reset(self) -> None:
        """Forget an earlier run: one object may train several models, one after the other."""

    def on_close(self) -> None:
        """Restore what the method has changed. Training has ended or failed, maybe in the middle of a step."""

    def to_dict(self) -> dict[str, Any]:
        """Return the whole configuration, as JSON-serialisable values."""
        fields = {f.name: _as_json(getattr(self, f.name)) for f in dataclasses.fields(self)}
        code = {"code": self._code} if self._code else {}
        return {"method": self.name or type(self).__name__, **code, **fields}


def _as_json(value: Any) -> Any:
    if isinstance(value, Schedule):
        return [list(point) for point in value.points]
    if isinstance(value, slice):
        return ":".join("" if part is None else str(part) for part in (value.start, value.stop, value.step))
    return value
