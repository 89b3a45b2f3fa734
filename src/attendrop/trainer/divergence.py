"""Detects diverged training, and keeps weights that are not finite from being saved.

Nothing is read from the GPU in a step: losses are checked in steps that log, weights where they are saved.
"""

from __future__ import annotations

import math
from collections import deque
from pathlib import Path

import torch
from torch import Tensor

from ..core.trainer_protocol import TrainerProtocol
from ..errors import DivergedError
from ..utils.distributed import sum_over_processes
from .checkpoint_folders import newest_checkpoint

BAD_STEPS = 5  # this many steps in a row without a finite loss are no coincidence
BAD_LOGS = 10  # this many log lines in a row whose gradient norm is not finite; a loss scaler starts with a few


class DivergenceCheck:
    """Raises a `DivergedError` where losses, gradients or weights of a Trainer stay or are not finite.

    Args:
        trainer: the Trainer.
        is_on: whether anything is checked.
    """

    def __init__(self, trainer: TrainerProtocol, is_on: bool) -> None:
        self._trainer, self._is_on = trainer, is_on
        self._losses: deque[Tensor] = deque()
        self._bad_norms = 0

    def begin(self) -> None:
        """Forget earlier losses. Called when training begins."""
        self._losses = deque(maxlen=BAD_STEPS * self._trainer.args.gradient_accumulation_steps)
        self._bad_norms = 0

    def add(self, loss: Tensor) -> None:
        """Note the loss of a micro-batch, as the model computed it."""
        if self._is_on:
            self._losses.append(loss.detach())

    def check_log(self, logs: dict[str, float]) -> None:
        """Check the values that a training step logs. Every process calls it."""
        if not self._is_on:
            return
        norm = logs.get("grad_norm")
        self._bad_norms = 0 if norm is None or math.isfinite(norm) else self._bad_norms + 1
        if self._happened_anywhere(self._no_loss_is_finite()):
            raise self._error(f"the loss was not finite in {BAD_STEPS} steps in a row")
        if self._bad_norms >= BAD_LOGS:  # the same on all processes
            raise self._error(f"the norm of the gradient was not finite in {BAD_LOGS} log lines in a row")

    def check_weights(self) -> None:
        """Check all weights before they are saved."""
        if not self._is_on:
            return
        finite = [_local(p).isfinite().all() for p in self._trainer.model.parameters() if p.is_floating_point()]
        is_bad = bool(finite) and not bool(torch.stack([each.to(finite[0].device) for each in finite]).all())
        # Otherwise every process has all weights, and only one of them may save.
        is_sharded = self._trainer.is_fsdp_enabled or self._trainer.is_deepspeed_enabled
        if self._happened_anywhere(is_bad) if is_sharded else is_bad:
            raise self._error("weights of the model are not finite, and are not saved")

    def _no_loss_is_finite(self) -> bool:
        if len(self._losses) < (self._losses.maxlen or 1):
            return False
        return not bool(torch.stack([loss.float() for loss in self._losses]).isfinite().any())

    def _happened_anywhere(self, happened: bool) -> bool:
        args = self._trainer.args
        if args.world_size == 1:
            return happened
        return bool(sum_over_processes(torch.tensor(float(happened), device=args.device), args.world_size) > 0)

    def _error(self, what: str) -> DivergedError:
        args, state = self._trainer.args, self._trainer.state
        if args.fp16:
            cause = (
                "numbers too large for fp16, or a learning rate that is too high; try bf16, or a lower learning rate"
            )
        else:
            cause = (
                f"a learning rate of {args.learning_rate:g} that is too high; try a lower one, or more warm-up steps"
            )
        last = newest_checkpoint(Path(args.output_dir))
        saved = f"{last} is the last checkpoint" if last else "there is no checkpoint"
        return DivergedError(
            f"training has diverged: {what}, found after step {state.global_step}; the likely cause is {cause}; "
            f"{saved}."
        )


def _local(parameter: Tensor) -> Tensor:
    """Return the weights that this process has, where they are sharded."""
    detached = parameter.detach()
    to_local = getattr(detached, "to_local", None)
    return detached if to_local is None else to_local()
