"""Masked language modelling in the Trainer: a loss that weights all masked tokens equally, and new masks."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import Trainer, TrainerCallback

from ...model.objective import IGNORED


class MaskedLMTrainer(Trainer):
    """Averages the loss over all masked tokens of an optimizer step, independent of micro-batches and processes.

    Most of these models average over the batch that they see. A micro-batch, or a process, with few masked tokens would
    then count as much as one with many, and two processes would differ from one with twice the batch size.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.model_accepts_loss_kwargs = True  # so that the Trainer counts the labels of each step

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        count = inputs["labels"].ne(IGNORED).sum()
        # Without the number of items every model returns the mean over its own batch.
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True)
        if model.training and num_items_in_batch is not None:
            processes = self.args.world_size if self.args.average_tokens_across_devices else 1
            loss = loss * (count * processes / num_items_in_batch)
        return (loss, outputs) if return_outputs else loss


class EpochOfMasks(TrainerCallback):
    """Tells the collator which epoch begins, also after a resume.

    Args:
        collator: A `MaskingCollator`.
    """

    def __init__(self, collator: Any) -> None:
        self.collator = collator

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.collator.set_epoch(int((state.epoch or 0) + 1e-6))  # 1.5 after a resume in the middle of the second
