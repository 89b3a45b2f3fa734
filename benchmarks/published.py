"""AD-DROP as in the authors' code: eager attention, all maps in memory, one backward for each layer, torch's sort."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class PublishedMasks:
    """Drops attention positions in a model with eager attention, with p = q = 0.3, from `choose` until `clear`.

    Args:
        blocks: The blocks of the encoder, each with its attention in `attention.self`.
    """

    def __init__(self, blocks: Iterable[Any]) -> None:
        self._keep: dict[int, Tensor] = {}
        for number, block in enumerate(blocks):
            block.attention.self.register_forward_pre_hook(self._hook(number), with_kwargs=True)

    def _hook(self, number: int) -> Any:
        def add_mask(module: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
            keep = self._keep.get(number)
            if keep is not None:
                kwargs["attention_mask"] = torch.zeros(keep.shape, device=keep.device).masked_fill(~keep, -10000.0)
            return args, kwargs

        return add_mask

    def choose(self, model: Any, batch: dict[str, Tensor]) -> None:
        """Chooses the positions to drop for a batch, by one forward and one backward for each layer."""
        outputs = model(**batch, output_attentions=True)
        chosen = outputs.logits.max(-1).values.sum()
        valid = batch["attention_mask"].bool()[:, None, None]
        for number, attention in enumerate(outputs.attentions):
            score = torch.autograd.grad(chosen, attention, retain_graph=True)[0].float()
            index = int(score.shape[-1] * 0.7)
            threshold = score.sort(-1).values[..., index : index + 1]
            self._keep[number] = ~((score >= threshold) & valid & (torch.rand_like(score) < 0.3))

    def clear(self) -> None:
        """Drops nothing any more."""
        self._keep.clear()
