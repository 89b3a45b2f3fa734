"""The AD-DROP mask as bits: stored, or computed again each time that attention reads it.

The bits of a row grow with the number of keys, and what they are computed from does not: from some length on, gradient
and value take less memory than the bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from ..mask_bits import Bits, Blocks, PackedKeep, combined
from .reference import DropRule

# Bits are stored while they take at most this multiple of the memory of gradient and value. To compute them again costs
# a matrix product and the draws, in the forward and in the backward.
STORED_UP_TO = 4.0


@dataclass(frozen=True)
class SelectedBits:
    """The inputs of a mask. Its bits are in memory only while attention runs.

    Args:
        gradient: ∂F/∂O, [B, Q, H, d].
        value: [B, G, K, d].
        valid: the positions that the model lets attend: bool, broadcastable to [B, H, Q, K].
        of_valid: the same as bits; None: all.
        blocks: the blocks that have a valid position; None: all.
        rule: which positions are dropped.
        cut: the thresholds of the rows, [B, H, Q, 1].
    """

    gradient: Tensor
    value: Tensor
    valid: Tensor
    of_valid: Bits | None
    blocks: Blocks | None
    rule: DropRule
    cut: Tensor

    def bits(self) -> Bits:
        from . import triton

        given = self.gradient, self.value, self.valid, self.rule, self.cut, self.blocks
        words = triton.words_again(*given, all_valid=self.of_valid is None)
        return combined(PackedKeep(words, self.value.shape[2]), self.of_valid, in_place=True)

    @property
    def keep(self) -> Tensor:
        """Return bool [B, H, Q, K], False also where a position is not valid."""
        return self.bits().keep

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.gradient, self.value, self.cut

    def mapped(self, function: Callable[[Tensor], Tensor]) -> SelectedBits:
        """Apply `function`, which may change the examples, to every tensor."""
        positions = function(self.rule.positions.view(-1, 1, 1, 1)).flatten()
        return replace(
            self,
            gradient=function(self.gradient),
            value=function(self.value),
            valid=function(self.valid),
            of_valid=None if self.of_valid is None else self.of_valid.mapped(function),
            blocks=None if self.blocks is None else self.blocks.mapped(function),
            rule=self.rule._replace(positions=positions),
            cut=function(self.cut),
        )


def are_stored(gradient: Tensor, value: Tensor) -> bool:
    """Return whether the bits of a mask are stored, rather than computed again from gradient and value."""
    batch, queries, heads, _ = gradient.shape
    return batch * heads * queries * value.shape[2] / 8 <= STORED_UP_TO * (gradient.nbytes + value.nbytes)


def bits_from_gradient(
    gradient: Tensor, value: Tensor, valid: Tensor, of_valid: Bits | None, blocks: Blocks | None, rule: DropRule
) -> Bits | SelectedBits:
    """Return the AD-DROP mask by gradient attribution, for attention that reads bits, by the Triton kernel.

    Args:
        gradient: ∂F/∂O, [B, Q, H, d].
        value: [B, G, K, d]; G < H where heads share values.
        valid: the positions that the model lets attend: bool, broadcastable to [B, H, Q, K].
        of_valid: the same as bits; None: all.
        blocks: the blocks that have a valid position; None: all.
        rule: which positions are dropped.
    """
    from . import triton

    given = gradient, value, valid, rule, blocks, of_valid is None
    if are_stored(gradient, value):
        words, _ = triton.words_from_gradient(*given)
        return combined(PackedKeep(words, value.shape[2]), of_valid, in_place=True)
    return SelectedBits(gradient, value, valid, of_valid, blocks, rule, triton.cuts_from_gradient(*given))
