"""Forward passes without a Trainer, for prediction, replayed as CUDA graphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.utils import logging

from ..utils.batches import padded_length
from .buckets import BREAK_EVEN_FORWARDS, Buckets, buckets_for
from .graphs import Graphs

logger = logging.get_logger(__name__)


class CapturedPrediction:
    """Computes the logits of batches whose lengths are known before: eagerly, or from graphs where that saves time.

    Args:
        model: the model, in eval mode.
        lengths: the length of each full batch.
        may_pad: whether batches can be padded to a longer length, which must be on the right.
        graphs: where graphs are captured; by default on the GPU of the model, and nowhere without one.
    """

    def __init__(self, model: Any, lengths: Sequence[int], may_pad: bool, graphs: Graphs | None = None) -> None:
        self._model, self._may_pad, self._failure = model, may_pad, ""
        self._graphs = Graphs(model.device) if graphs is None and model.device.type == "cuda" else graphs
        self._limit = getattr(model.config, "max_position_embeddings", None) or max(lengths, default=0)
        uses = Counter(self._rounded(length) for length in lengths)
        if self._graphs is None:
            self._buckets = Buckets([])
        elif may_pad:
            self._buckets = buckets_for(uses, BREAK_EVEN_FORWARDS)
        else:
            self._buckets = Buckets([length for length, count in uses.items() if count >= BREAK_EVEN_FORWARDS])
        self._is_harmless: bool | None = None  # more padding

    def _rounded(self, length: int) -> int:
        rounded = padded_length(length) if self._may_pad else length
        return rounded if rounded <= self._limit else length

    def width(self, length: int) -> int:
        """Return the length to which a full batch of this length should be padded."""
        if not self._may_pad or self._is_harmless is False or not self._buckets.is_worth_capturing(length):
            return length
        return self._buckets.rounded(length)

    def logits(self, inputs: Mapping[str, Tensor], length: int, is_full: bool) -> Tensor:
        """Return the logits of a batch.

        Args:
            inputs: the batch, on the device of the model.
            length: its length without the padding of `width`.
            is_full: whether it has as many examples as the others.
        """
        width = inputs["input_ids"].shape[-1]
        if width > length and self._is_harmless is None:
            self._is_harmless = self._is_same({name: x[..., :length] for name, x in inputs.items()}, inputs)
        if self._is_harmless is False:
            inputs, width = {name: x[..., :length] for name, x in inputs.items()}, length
        if self._graphs is None or not is_full or self._failure or width not in (self._buckets.lengths or ()):
            return self._model(**inputs).logits
        static, key = self._graphs.static_batch(inputs)
        logits = self._graphs.run(key, lambda: self._model(**static).logits, forward_of=self._model, may_fail=True)
        self._failure = self._graphs.failure_of.get(key, "")
        if self._failure:
            logger.warning(f"Prediction is not captured, because {self._failure}.")
        return logits.clone()

    def _is_same(self, exact: Mapping[str, Tensor], padded: Mapping[str, Tensor]) -> bool:
        """Return whether more padding leaves the logits as they are."""
        one, other = (self._model(**batch).logits for batch in (exact, padded))
        other = other if other.dim() < 3 else other[:, : one.shape[1]]
        tolerance = 1e-4 if one.dtype in (torch.float32, torch.float64) else 3e-2
        return bool((one - other).abs().max() <= tolerance * one.abs().max().clamp(min=1))
