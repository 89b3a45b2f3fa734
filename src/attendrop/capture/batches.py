"""Batches in fixed shapes: lengths are rounded up to a few values, so that few graphs are captured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..core.trainer_protocol import TrainerProtocol
from ..model.modes import evaluating
from ..model.objective import IGNORED
from ..model.sites import unwrapped
from ..random import preserved
from ..utils.batches import padded_length

_TOKEN_COLUMNS = ("input_ids", "attention_mask", "token_type_ids")

Shapes = dict[str, tuple[int, ...]]


class ExactShapes:
    """Every batch keeps its shape."""

    def shapes(self, tensors: Mapping[str, Tensor]) -> Shapes:
        """The shape of the buffer for each tensor."""
        return {name: tuple(value.shape) for name, value in tensors.items()}

    def fill(self) -> dict[str, int]:
        """What a buffer holds behind a shorter tensor."""
        return {}


class PaddedShapes(ExactShapes):
    """Lengths are rounded up where it is known how to pad every column and padding does not change the loss."""

    def __init__(self, trainer: TrainerProtocol) -> None:
        self._trainer = trainer
        self._is_harmless: bool | None = None

    def shapes(self, tensors: Mapping[str, Tensor]) -> Shapes:
        exact = super().shapes(tensors)
        padded = self._padded(tensors, exact)
        if padded is None or padded == exact:
            return exact
        if self._is_harmless is None:
            self._is_harmless = self._leaves_the_loss(tensors, padded)
        return padded if self._is_harmless else exact

    def fill(self) -> dict[str, int]:
        pad = getattr(self._trainer.processing_class, "pad_token_id", None)
        if pad is None:
            pad = getattr(self._config, "pad_token_id", None) or 0
        return {"input_ids": int(pad), "attention_mask": 0, "token_type_ids": 0, "labels": IGNORED}

    @property
    def _config(self) -> Any:
        return unwrapped(self._trainer.model).config

    def _padded(self, tensors: Mapping[str, Tensor], exact: Shapes) -> Shapes | None:
        """The shapes with lengths rounded up; None where it is not known how to pad a column."""
        if not {"input_ids", "attention_mask"} <= set(tensors):
            return None
        if getattr(self._trainer.processing_class, "padding_side", "right") != "right":
            return None
        length = tensors["input_ids"].shape[-1]
        padded = dict(exact)
        for name, value in tensors.items():
            is_token_labels = name == "labels" and value.dim() == 2 and not value.is_floating_point()
            if name in _TOKEN_COLUMNS or is_token_labels:
                padded[name] = (*value.shape[:-1], self._length(value.shape[-1]))
            elif value.dim() > 1 and length in value.shape[1:]:
                return None
        return padded

    def _length(self, length: int) -> int:
        rounded = padded_length(length)
        return rounded if rounded <= getattr(self._config, "max_position_embeddings", rounded) else length

    @torch.no_grad()
    def _leaves_the_loss(self, tensors: Mapping[str, Tensor], shapes: Shapes) -> bool:
        """Whether more padding leaves the loss unchanged, tried on one batch. A head may read every position."""
        trainer, fill = self._trainer, self.fill()
        longer = dict(tensors)
        for name, value in tensors.items():
            if shapes[name] != value.shape:
                longer[name] = nn.functional.pad(value, (0, shapes[name][-1] - value.shape[-1]), value=fill[name])
        parameter = next(trainer.model.parameters())
        with preserved(parameter.device), evaluating(trainer.model):
            losses = [trainer.compute_loss(trainer.model, dict(batch)).float() for batch in (tensors, longer)]
        before, after = (float(loss) for loss in losses)
        is_half = trainer.args.fp16 or trainer.args.bf16 or parameter.dtype != torch.float32
        return abs(before - after) <= (3e-2 if is_half else 1e-4) * max(1.0, abs(before))
