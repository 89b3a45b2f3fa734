"""S1, the attention function: the model's own, with the changes that a plan asks for.

It is registered with transformers' `AttentionInterface` *and* `AttentionMaskInterface`: a name without a mask function
makes transformers pass no mask, and padding would be attended to, silently. It runs the kernel that the model would
have used; only where the plan changes the weights behind the softmax is the map made.
"""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask, sdpa_mask

from .plan import Plan
from .sites import note

if TYPE_CHECKING:
    from .seams import Seams

IMPLEMENTATIONS = {"sdpa": "attendrop_sdpa", "eager": "attendrop_eager"}


@dataclass
class Record:
    """What one attention call worked with, left behind by a pass whose plan records it."""

    query: Tensor  # [B, H, Q, d]
    key: Tensor  # [B, G, K, d]; G < H where heads share keys and values
    value: Tensor  # [B, G, K, d]
    output: Tensor  # [B, Q, H, d], tracked
    valid: Tensor  # bool, broadcastable to [B, H, Q, K]: what the model itself lets attend
    bias: Tensor | None  # added to the scores by the model
    scaling: float

    def value_of_heads(self) -> Tensor:
        """[B, H, K, d]"""
        return _of_heads(self.value, self.query.shape[1])

    def attention(self) -> Tensor:
        """The map, without dropout: [B, H, Q, K]"""
        scores = self.query @ _of_heads(self.key, self.query.shape[1]).transpose(-1, -2) * self.scaling
        if self.bias is not None:
            scores = scores + self.bias
        return scores.float().masked_fill(~self.valid, float("-inf")).softmax(-1).nan_to_num()


def _of_heads(x: Tensor, heads: int) -> Tensor:
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


class Handle:
    """Hangs on a module and tells its calls apart: by order, counted anew in each applied plan."""

    def __init__(self, seams: Seams) -> None:
        self.seams = seams
        self.numbers: list[int] = []
        self.calls = 0

    @property
    def current(self) -> int:
        """The number of the call that comes next."""
        return self.numbers[self.calls % len(self.numbers)]

    def next(self) -> int:
        number = self.current
        if len(self.numbers) > 1:
            self.calls += 1
        return number


def _attend(
    base_name: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """The attention function: the model's own under an empty plan."""
    note(module, query, key)
    base = _base_function(base_name, module)
    handle = getattr(module, "_attendrop", None)
    if handle is None or not handle.seams.plan:
        return base(module, query, key, value, attention_mask, **kwargs)
    seams, site = handle.seams, handle.next()
    plan: Plan = seams.plan
    if not plan.touches(site):
        return base(module, query, key, value, attention_mask, **kwargs)
    return _attend_by_plan(base, base_name, seams, site, module, query, key, value, attention_mask, **kwargs)


def _attend_by_plan(
    base: Any,
    base_name: str,
    seams: Seams,
    site: int,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    plan = seams.plan
    query, key, value = projected(plan, site, query, key, value)
    is_causal = kwargs.get("is_causal")
    causal = (getattr(module, "is_causal", True) if is_causal is None else is_causal) and query.shape[2] > 1
    valid, bias = _valid_and_bias(attention_mask, causal, query, key)
    original_query, original_bias = query, position_bias
    makes_map = site in plan.weights or site in plan.maps
    allowed = valid
    if site in plan.keep or site in plan.uniform or makes_map:
        allowed = valid & plan.keep[site] if site in plan.keep else valid
        dead = ~allowed.any(-1, keepdim=True)
        if site in plan.uniform:
            dead = torch.ones_like(dead)
        # With a zero query all scores of the row are equal: uniform over the valid positions, whatever the kernel, and
        # with no gradient to queries and keys.
        allowed = allowed | (dead & valid)
        query = query.masked_fill(dead, 0)
        if position_bias is not None:
            position_bias = position_bias.masked_fill(dead, 0)
        if bias is not None:
            attention_mask = bias.masked_fill(dead, 0).masked_fill(~allowed, float("-inf"))
        elif base_name == "eager" or makes_map:
            attention_mask = torch.zeros((), dtype=query.dtype, device=query.device).masked_fill(
                ~allowed, float("-inf")
            )
        else:
            attention_mask = allowed.expand(-1, -1, query.shape[2], key.shape[2])
    if position_bias is not None:
        kwargs["position_bias"] = position_bias
    if makes_map:
        # The module's own eager function holds its softcap, sinks and the like; a value of width 1 keeps it cheap. Its
        # dropout comes last, so that a plan sees the weights of the softmax.
        own = _base_function("eager", module) or _eager
        _, weights = own(module, query, key, value[..., :1], attention_mask, **{**kwargs, "dropout": 0.0})
        if site in plan.weights:
            weights = weights * plan.weights[site].to(weights.dtype)
        for edit in plan.maps.get(site, ()):
            weights = edit(weights, allowed)
        weights = nn.functional.dropout(weights, kwargs.get("dropout", 0.0), module.training)
        output = (weights @ _of_heads(value, query.shape[1])).transpose(1, 2).contiguous()
    else:
        output, weights = base(module, query, key, value, attention_mask, **kwargs)
    if site in plan.scale:
        factor = plan.scale[site]
        output = output * (factor.to(output.dtype) if isinstance(factor, Tensor) else factor)
    if site in plan.record and torch.is_grad_enabled() and not output.requires_grad:
        output.requires_grad_()  # in a replay too, which must save for the backward what the first pass saved
    if site in plan.record and site not in seams.records:
        # A replay under gradient checkpointing comes here again and must not replace the tensors of the first pass.
        scaling = kwargs.get("scaling")
        if original_bias is None:
            original_bias = bias
        seams.records[site] = Record(
            query=original_query.detach(),
            key=key.detach(),
            value=value.detach(),
            output=output,
            valid=valid,
            bias=None if original_bias is None else original_bias.detach(),
            scaling=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        )
    return output, weights


def projected(plan: Plan, site: int, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value with the plan's factors."""
    factors = plan.projections.get(site, (None, None, None))
    q, k, v = (
        x if factor is None else x * factor.to(x.dtype) for x, factor in zip((query, key, value), factors, strict=True)
    )
    return q, k, v


def _valid_and_bias(
    attention_mask: Tensor | None, causal: bool, query: Tensor, key: Tensor
) -> tuple[Tensor, Tensor | None]:
    """What the model lets attend, as bool [B|1, H|1, Q|1, K]; and its additive mask where that is a real bias."""
    queries, keys = query.shape[2], key.shape[2]
    if attention_mask is None:
        valid = torch.ones(1, 1, queries if causal else 1, keys, dtype=torch.bool, device=query.device)
        return (valid.tril() if causal else valid), None
    if attention_mask.dtype == torch.bool:
        valid, bias = attention_mask, None
    else:
        valid = attention_mask > torch.finfo(attention_mask.dtype).min / 2
        bias = attention_mask
    # The query of a padding token may see nothing at all. Nobody reads it; it must only stay finite.
    return valid | ~valid.any(-1, keepdim=True), bias


def _base_function(base_name: str, module: nn.Module) -> Any:
    """The attention function that the module would have called: its own file may override a shared one."""
    file = sys.modules[type(module).__module__]
    interface = getattr(file, "ALL_ATTENTION_FUNCTIONS", None) or AttentionInterface()
    return interface.get_interface(base_name, getattr(file, "eager_attention_forward", None))


def _eager(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float = 1.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """For modules whose file has no function of its own: those that an adapter serves, which always has a mask."""
    assert attention_mask is not None
    weights = (query @ key.transpose(-1, -2) * scaling + attention_mask).softmax(-1)
    return weights @ value, weights


for _name, _mask in (("sdpa", sdpa_mask), ("eager", eager_mask)):
    AttentionInterface.register(IMPLEMENTATIONS[_name], functools.partial(_attend, _name))
    AttentionMaskInterface.register(IMPLEMENTATIONS[_name], _mask)
