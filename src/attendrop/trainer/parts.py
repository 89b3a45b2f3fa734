"""The common base of the parts of `RegularizerMixin`: the objects that it creates, and the Trainer's methods."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from ..capture.step_capture import StepCapture
from ..core.engine import Engine
from ..core.trainer_protocol import TrainerProtocol
from .checkpoints import Checkpoints
from .choice import Choice
from .divergence import DivergenceCheck
from .networks import AuxiliaryNetworks

if TYPE_CHECKING:
    _Base = TrainerProtocol
else:
    _Base = object


class TrainerParts(_Base):
    """The objects that `RegularizerMixin` creates, for its other bases."""

    engine: Engine | None
    capture: StepCapture
    networks: AuxiliaryNetworks
    choice: Choice
    divergence: DivergenceCheck
    checkpoints: Checkpoints

    def _evaluated_weights(self) -> AbstractContextManager[None]:
        """Return the weights of an average, where a method keeps one and training runs."""
        if self.engine is None or not self.is_in_train:
            return nullcontext()
        return self.engine.evaluated_weights()
