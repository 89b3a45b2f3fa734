"""The services of the Trainer for methods that train their own networks or draw examples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..core.step import Examples, Graphs, Loop

if TYPE_CHECKING:
    from .mixin import RegularizerMixin


class TrainerLoop(Loop):
    """The `Loop` of a Trainer. Everything is looked up on demand: the optimizer is created late."""

    def __init__(self, trainer: RegularizerMixin) -> None:
        super().__init__(None, trainer.args.max_grad_norm or 0.0, trainer.args.world_size)
        self._trainer = trainer

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        return getattr(self._trainer.optimizer, "optimizer", self._trainer.optimizer)  # accelerate wraps it

    @property
    def examples(self) -> Examples | None:
        return self._trainer.networks.draw_examples

    @property
    def graphs(self) -> Graphs | None:
        return self._trainer.capture.graphs

    @property
    def calls_model(self) -> bool:
        return self._trainer.adaptation.calls_model

    @property
    def packs_examples(self) -> bool:
        return self._trainer.adaptation.packs_examples

    @property
    def replaces_loss(self) -> bool:
        return bool(self._trainer.args.label_smoothing_factor) or self._trainer.compute_loss_func is not None

    @property
    def arguments(self) -> Any:
        return self._trainer.args

    @property
    def gradient_scale(self) -> float:
        scaler = self._trainer.accelerator.scaler
        return 1.0 if scaler is None else float(scaler.get_scale())

    def prepare(self, network: nn.Module) -> nn.Module:
        return self._trainer.accelerator.prepare_model(network, evaluation_mode=True)
