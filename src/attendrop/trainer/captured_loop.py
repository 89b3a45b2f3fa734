"""The parts of the Trainer's loop around captured steps, with less work for the CPU.

A captured step of a small model takes the GPU a few milliseconds, and the Trainer's own Python about as long: in each
step it walks through all modules to count parameters, and again to clip their gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn

from .parts import TrainerParts


class CapturedLoop(TrainerParts):
    """Parts of the Trainer's loop, with the Trainer's results."""

    def floating_point_ops(self, inputs: Mapping[str, Any]) -> Any:
        """Like the Trainer's. For batches of one size it is computed once."""
        main_input = inputs.get(getattr(self.model, "main_input_name", "input_ids"))
        compute = partial(super().floating_point_ops, inputs)
        if not self.capture.are_captured or not isinstance(main_input, Tensor):
            return compute()
        return self.capture.remembered(("floating_point_ops", main_input.numel()), compute)

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        """Like the Trainer's, as a CUDA graph where steps are captured."""
        norm = self.capture.clip_gradients(self.args.max_grad_norm)
        return super()._clip_grad_norm(model) if norm is None else norm
