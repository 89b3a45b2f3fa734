"""The Trainer's filter of losses that are not finite, without waiting for the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ..core.trainer_protocol import TrainerProtocol


class NonfiniteFilter:
    """Replaces `args.logging_nan_inf_filter`, which reads the loss on the CPU in every step, by the same on the GPU."""

    def __init__(self, trainer: TrainerProtocol) -> None:
        self._trainer = trainer
        self._is_on = False

    def start(self) -> None:
        """Turn the Trainer's own filter off and this one on, where the user wants one."""
        args = self._trainer.args
        self._is_on = self._is_on or args.logging_nan_inf_filter
        args.logging_nan_inf_filter = False

    def stop(self) -> None:
        """Restore the Trainer's own filter."""
        self._trainer.args.logging_nan_inf_filter |= self._is_on
        self._is_on = False

    def __call__(self, loss: Tensor) -> Tensor:
        """Return the loss, or the mean of the losses since the last log line where it is not finite."""
        if not self._is_on:
            return loss
        trainer = self._trainer
        steps = 1 + trainer.state.global_step - trainer._globalstep_last_logged
        return torch.where(loss.isfinite(), loss, trainer._tr_loss / steps)

    @contextmanager
    def as_given(self) -> Iterator[None]:
        """Restore the user's arguments for the block, in which they are saved beside the model."""
        args = self._trainer.args
        args.logging_nan_inf_filter = args.logging_nan_inf_filter or self._is_on
        try:
            yield
        finally:
            args.logging_nan_inf_filter = args.logging_nan_inf_filter and not self._is_on
