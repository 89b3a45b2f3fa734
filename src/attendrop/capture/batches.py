"""Batches in fixed shapes: lengths are rounded up to a few values, so that few graphs are captured.

A batch without padding needs no mask: without one attention takes its fastest kernel. A captured step cannot look at
the values of a mask, so the collator notes it, where the batch is still on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor, nn

from ..core.capabilities import columns_of
from ..core.trainer_protocol import TrainerProtocol
from ..model.modes import evaluating
from ..model.objective import IGNORED
from ..model.sites import unwrapped
from ..random import preserved
from .buckets import Buckets

_TOKEN_COLUMNS = ("input_ids", "attention_mask", "token_type_ids")

Shapes = dict[str, tuple[int, ...]]

_HAS_NO_PADDING = "_attendrop_has_no_padding"

# The length from which a batch without padding drops its mask. Batches with and without one need separate graphs,
# and the mask is expensive for long texts only.
MASK_FREE_FROM = 1024


class NotesPadding:
    """A collator that adds to each batch whether it has no padding; `take_note` removes the note.

    It has the attributes of the collator that makes the batches, because Trainers of other libraries read them.

    Args:
        collator: makes the batches.
    """

    def __init__(self, collator: Callable[[Any], Any]) -> None:
        self._collator = collator

    def __getattr__(self, name: str) -> Any:
        if name == "_collator":  # while it is unpickled in a process that loads data
            raise AttributeError(name)
        return getattr(self._collator, name)

    def __call__(self, examples: Any) -> Any:
        batch = self._collator(examples)
        mask = batch.get("attention_mask") if isinstance(batch, MutableMapping) else None
        if isinstance(mask, Tensor) and mask.dim() == 2 and mask.device.type == "cpu":
            batch[_HAS_NO_PADDING] = bool(mask.all())
        return batch


def take_note(batch: Any) -> tuple[Any, bool]:
    """Return the batch without the note of `NotesPadding`, and whether it says that there is no padding."""
    if not isinstance(batch, Mapping) or _HAS_NO_PADDING not in batch:
        return batch, False
    return {name: value for name, value in batch.items() if name != _HAS_NO_PADDING}, bool(batch[_HAS_NO_PADDING])


class ExactShapes:
    """Every batch keeps its shape."""

    def shapes(self, tensors: Mapping[str, Tensor]) -> Shapes:
        """Return the shape of the buffer for each tensor."""
        return {name: tuple(value.shape) for name, value in tensors.items()}

    def fill(self) -> dict[str, int]:
        """Return the padding value of each buffer."""
        return {}


class PaddedShapes(ExactShapes):
    """Lengths are rounded up where it is known how to pad every column and padding does not change the loss.

    Args:
        trainer: the Trainer.
        buckets: the lengths to which batches are padded.
        full_size: the number of examples of a full batch. Smaller ones, of which there are few, are padded to the
            longest bucket. None: they are treated as others.
    """

    def __init__(self, trainer: TrainerProtocol, buckets: Buckets | None = None, full_size: int | None = None) -> None:
        self._trainer, self._full_size = trainer, full_size
        self.buckets = buckets or Buckets()
        self._is_harmless: bool | None = None  # more padding
        self._ignores_ones: bool | None = None  # whether a mask of ones and no mask are the same

    def shapes(self, tensors: Mapping[str, Tensor]) -> Shapes:
        exact = super().shapes(tensors)
        padded = self._padded(tensors, exact)
        if padded is None or padded == exact:
            return exact
        if self._is_harmless is None:
            self._is_harmless = self._may_be_longer(tensors, self._longer(tensors, padded))
        return padded if self._is_harmless else exact

    def is_worth_capturing(self, batch: Mapping[str, Any]) -> bool:
        """Return whether there are enough batches of this length to capture them."""
        ids, lengths = batch.get("input_ids"), self.buckets.lengths
        if not isinstance(ids, Tensor) or lengths is None:
            return True
        # Where padding does harm, batches of other lengths cannot join a bucket.
        return (
            ids.shape[-1] in lengths if self._is_harmless is False else self.buckets.is_worth_capturing(ids.shape[-1])
        )

    def _may_be_longer(self, tensors: Mapping[str, Tensor], longer: Mapping[str, Tensor]) -> bool:
        """Return whether more padding leaves the loss unchanged."""
        return self._have_same_loss(tensors, longer)

    def without_mask(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a batch without padding, without its mask, where its length stays as it is and the loss does too."""
        tensors = {name: value for name, value in batch.items() if isinstance(value, Tensor)}
        mask = tensors.get("attention_mask")
        if mask is None or mask.shape[-1] < MASK_FREE_FROM or self.shapes(tensors) != ExactShapes.shapes(self, tensors):
            return batch
        rest = {name: value for name, value in batch.items() if name != "attention_mask"}
        if self._ignores_ones is None:
            self._ignores_ones = self._have_same_loss(batch, rest)
        return rest if self._ignores_ones else batch

    def fill(self) -> dict[str, int]:
        pad = getattr(self._trainer.processing_class, "pad_token_id", None)
        if pad is None:
            pad = getattr(self._config, "pad_token_id", None) or 0
        return {"input_ids": int(pad), "attention_mask": 0, "token_type_ids": 0, "labels": IGNORED}

    @property
    def _columns(self) -> frozenset[str]:
        """The columns that methods read and the model does not get."""
        return columns_of(*self._trainer.regularizers)

    @property
    def _config(self) -> Any:
        return unwrapped(self._trainer.model).config

    def _padded(self, tensors: Mapping[str, Tensor], exact: Shapes) -> Shapes | None:
        """Return the shapes with lengths rounded up; None where it is not known how to pad a column."""
        if not {"input_ids", "attention_mask"} <= set(tensors):
            return None
        if getattr(self._trainer.processing_class, "padding_side", "right") != "right":
            return None
        length = tensors["input_ids"].shape[-1]
        padded = dict(exact)
        for name, value in tensors.items():
            is_token_labels = name == "labels" and value.dim() == 2 and not value.is_floating_point()
            if name in _TOKEN_COLUMNS or is_token_labels:
                padded[name] = (*value.shape[:-1], self._length(value.shape[-1], len(value) == self._full_size))
            elif value.dim() > 1 and length in value.shape[1:]:
                return None
        return padded

    def _length(self, length: int, is_full: bool) -> int:
        longest = max(self.buckets.lengths or [0])
        is_small = not is_full and self._full_size is not None
        rounded = longest if is_small and longest >= length else self.buckets.rounded(length)
        return rounded if rounded <= getattr(self._config, "max_position_embeddings", rounded) else length

    def _longer(self, tensors: Mapping[str, Tensor], shapes: Shapes) -> dict[str, Tensor]:
        """Return the tensors padded to these shapes."""
        fill, longer = self.fill(), dict(tensors)
        for name, value in tensors.items():
            if shapes[name] != value.shape:
                longer[name] = nn.functional.pad(value, (0, shapes[name][-1] - value.shape[-1]), value=fill[name])
        return longer

    @torch.no_grad()
    def _have_same_loss(self, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        """Return whether two forms of a batch have the same loss. A head may read every position, padding included."""
        trainer = self._trainer
        one, other = ({k: x for k, x in batch.items() if k not in self._columns} for batch in (one, other))
        parameter = next(trainer.model.parameters())
        with preserved(parameter.device), evaluating(trainer.model):
            losses = [trainer.compute_loss(trainer.model, dict(batch)).float() for batch in (one, other)]
        before, after = (float(loss) for loss in losses)
        return abs(before - after) <= self._tolerance * max(1.0, abs(before))

    @property
    def _tolerance(self) -> float:
        """Return the relative difference between two computations of the same number."""
        args, dtype = self._trainer.args, next(self._trainer.model.parameters()).dtype
        return 3e-2 if args.fp16 or args.bf16 or dtype not in (torch.float32, torch.float64) else 1e-4
