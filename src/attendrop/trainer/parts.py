"""What the bases of `RegularizerMixin` share: the objects that it creates, and the methods of the Trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..capture.steps import Steps
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
    """A base of `RegularizerMixin`. All of them come before the Trainer in the bases of a class."""

    engine: Engine | None
    steps: Steps
    networks: AuxiliaryNetworks
    choice: Choice
    divergence: DivergenceCheck
    checkpoints: Checkpoints
