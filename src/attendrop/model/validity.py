"""Which positions a model lets attend, as attention kernels read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..kernels.mask_bits import Bits, Blocks, bits_of_valid

if TYPE_CHECKING:
    from .attention import Call


class Validity:
    """Which positions the model lets attend. Most models pass one mask to all layers, so the last result is cached."""

    def __init__(self) -> None:
        self._valid: tuple[Tensor | None, bool, tuple[int, int], Tensor] | None = None
        self._bias: tuple[Tensor, torch.dtype, Tensor] | None = None
        self._bits: tuple[Tensor, Bits, Blocks] | None = None

    def of(self, attention_mask: Tensor | None, causal: bool, query: Tensor, key: Tensor) -> Tensor:
        """Return the valid positions: bool [B|1, H|1, Q|1, K]."""
        shape = query.shape[2], key.shape[2]
        if attention_mask is not None and attention_mask.dtype != torch.bool:
            return _without_empty_rows(attention_mask > torch.finfo(attention_mask.dtype).min / 2)
        if self._valid is None or self._valid[0] is not attention_mask or self._valid[1:3] != (causal, shape):
            if attention_mask is None:
                valid = torch.ones(1, 1, shape[0] if causal else 1, shape[1], dtype=torch.bool, device=query.device)
                valid = valid.tril() if causal else valid
            else:
                is_one_row = attention_mask.dim() == 4 and attention_mask.stride(2) == 0  # the same for all queries
                valid = _without_empty_rows(attention_mask[:, :, :1] if is_one_row else attention_mask)
            self._valid = attention_mask, causal, shape, valid
        return self._valid[3]

    def bias_of(self, attention_mask: Tensor | None, dtype: torch.dtype) -> Tensor:
        """Return a bool mask as an additive mask, which the kernel would otherwise compute in every layer."""
        assert attention_mask is not None
        if self._bias is None or self._bias[0] is not attention_mask or self._bias[1] != dtype:
            bias = torch.zeros(attention_mask.shape, dtype=dtype, device=attention_mask.device)
            self._bias = attention_mask, dtype, bias.masked_fill_(~attention_mask, float("-inf"))
        return self._bias[2]

    def bits_of(self, valid: Tensor, call: Call) -> tuple[Bits, Blocks] | tuple[None, None]:
        """Return the valid positions as bits, and the blocks that have any; None where all positions are valid."""
        if call.attention_mask is None and not call.is_causal:
            return None, None
        if self._bits is None or self._bits[0] is not valid:
            self._bits = valid, bits_of_valid(valid), Blocks.of(valid, call.query.shape[2])
        return self._bits[1:]


def _without_empty_rows(valid: Tensor) -> Tensor:
    """Let queries that may see nothing see all keys: they are padding, and their output must only stay finite."""
    return valid | ~valid.any(-1, keepdim=True)
