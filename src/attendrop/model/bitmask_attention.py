"""Attention under a plan by the kernels that read their mask as bits, in place of the model's own kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from ..kernels.attention_mask import KeepForm, Mask
from ..kernels.attribution_mask import SelectedBits
from ..kernels.bitmask_attention import Dropout, HasBits, are_long_enough, supports
from ..kernels.bitmask_attention import attend as kernel
from ..kernels.mask_bits import Bits, PackedKeep, combined, pack
from .plan import Plan

if TYPE_CHECKING:
    from .attention import Call
    from .validity import Validity

# Arguments with which an attention function computes something else than a softmax of masked products.
_FURTHER = ("position_bias", "s_aux", "softcap", "cache")


def are_read(call: Call, plan: Plan, site: int) -> bool:
    """Return whether the attention of this call runs by the kernels that read bits."""
    is_masked = site in plan.keep or site in plan.like_masked
    if not is_masked or site in plan.uniform or site in plan.uniform_where or isinstance(plan.keep.get(site), Mask):
        return False
    if call.implementation != "sdpa" or call.bias is not None:
        return False
    if any(call.kwargs.get(name) is not None for name in _FURTHER) or _scaling(call) <= 0:
        return False
    # Before `_inputs`, which may convert the tensors.
    return are_long_enough(call.key.shape[2], call.key.device) and supports(*_inputs(call))


def _inputs(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Return the query, key and value, in the precision in which autocast would multiply them."""
    kind = call.query.device.type
    is_autocast = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    dtype = torch.get_autocast_dtype(kind) if is_autocast else None
    query, key, value = (x if dtype is None else x.to(dtype) for x in (call.query, call.key, call.value))
    return query, key, value


def _scaling(call: Call) -> float:
    scaling = call.kwargs.get("scaling")
    return call.query.shape[-1] ** -0.5 if scaling is None else float(scaling)


def attend(call: Call, keep: Tensor | KeepForm | None, valid: Tensor, validity: Validity) -> Tensor:
    """Return the output of the call, [B, Q, H, d], in which only the positions of `keep` attend (None: all)."""
    of_valid, blocks = validity.bits_of(valid, call)
    query, key, value = _inputs(call)
    return kernel(query, key, value, _mask(keep, of_valid, key.shape[2]), blocks, _scaling(call), _dropout(call))


def _mask(keep: Tensor | KeepForm | None, of_valid: Bits | None, keys: int) -> HasBits | None:
    if keep is None:
        return of_valid
    if isinstance(keep, Bits | SelectedBits):
        return keep
    if isinstance(keep, Tensor):
        keep = pack(keep.expand(*keep.shape[:-1], keys))
    return combined(cast(PackedKeep, keep), of_valid)


def _dropout(call: Call) -> Dropout | None:
    """Return the model's own dropout, keyed by the global generator: a rerun from its state draws the same."""
    p = float(call.kwargs.get("dropout") or 0.0)
    if p == 0:
        return None
    return Dropout.of(p, torch.empty((), dtype=torch.int32, device=call.query.device).random_())
