"""The attention function: the model's own, with the changes that a plan asks for.

It is registered with transformers' `AttentionInterface` *and* `AttentionMaskInterface`: for a name without a mask
function transformers passes no mask, and padding would silently be attended to. It runs the kernel that the model would
have used. The attention map is computed only where the plan changes the weights after the softmax.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import bidirectional_mask_function, eager_mask, sdpa_mask

from ..kernels.attention_mask import Mask, allowed_and_empty, as_keep, mask_of
from ..kernels.mask_bits import Bits, Blocks
from . import bitmask_attention as bits
from .dry_run import record_attention
from .plan import Plan

if TYPE_CHECKING:
    from .seams import Seams

IMPLEMENTATIONS = {"sdpa": "attendrop_sdpa", "eager": "attendrop_eager"}
# Kernels without a mask for each head and position. Ours takes their place where it can run, and PyTorch's elsewhere.
# transformers looks for "flash" and "flex" in the name of an implementation.
REPLACED = {
    "flash_attention_2": "attendrop_for_2",
    "flash_attention_3": "attendrop_for_3",
    "flash_attention_4": "attendrop_for_4",
    "flex_attention": "attendrop_for_blocks",
}


@dataclass
class Record:
    """The tensors of one attention call, recorded by a pass whose plan asks for it."""

    query: Tensor  # [B, H, Q, d]
    key: Tensor  # [B, G, K, d]; G < H where heads share keys and values
    value: Tensor  # [B, G, K, d]
    output: Tensor  # [B, Q, H, d], tracked by autograd
    valid: Tensor  # bool, broadcastable to [B, H, Q, K]: the positions that the model itself lets attend
    bias: Tensor | None  # added to the scores by the model
    scaling: float
    uses_bitmask: bool = False  # whether the attention ran by the kernels that read bits
    # `valid` as bits, there, and the blocks that have any; None: all positions are valid
    valid_bits: tuple[Bits, Blocks] | tuple[None, None] = (None, None)
    # Where the model runs an eager function of its own (with a softcap or sinks, for example): that function, as
    # own(query, key, value, mask).
    own_function: Callable[..., tuple[Tensor, Tensor]] | None = None

    def of_queries(self, rows: slice) -> Record:
        """Return the record of these queries alone."""
        return replace(
            self,
            query=self.query[:, :, rows],
            output=self.output[:, rows],
            valid=of_queries(self.valid, rows),
            bias=None if self.bias is None else of_queries(self.bias, rows),
        )

    def value_of_heads(self) -> Tensor:
        """Return the values, one for each head: [B, H, K, d]."""
        return _of_heads(self.value, self.query.shape[1])

    def attention(self) -> Tensor:
        """Return the attention map of the model, without dropout: [B, H, Q, K]."""
        if self.own_function is not None:
            zero = torch.zeros((), dtype=self.query.dtype, device=self.query.device)
            mask = (zero if self.bias is None else self.bias).masked_fill(~self.valid, float("-inf"))
            _, weights = self.own_function(self.query, self.key, self.value[..., :1], mask)
            return weights.detach().float().nan_to_num()
        scores = self.query @ _of_heads(self.key, self.query.shape[1]).transpose(-1, -2) * self.scaling
        if self.bias is not None:
            scores = scores + self.bias
        return scores.float().masked_fill(~self.valid, float("-inf")).softmax(-1).nan_to_num()


def of_queries(x: Tensor, rows: slice) -> Tensor:
    """Return these rows of a tensor broadcastable to [B, H, Q, K], or the tensor itself where all rows are the same."""
    return x if x.dim() < 2 or x.shape[-2] == 1 else x[..., rows, :]


def _of_heads(x: Tensor, heads: int) -> Tensor:
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


class CallCounter:
    """Attached to a module. Numbers its calls within one forward: some models (ALBERT) call one module per layer.

    Args:
        seams: the seams of the model.
    """

    def __init__(self, seams: Seams) -> None:
        self.seams = seams
        self.numbers: list[int] = []  # of the sites or blocks, in calling order
        self.calls = 0
        self.name = ""  # of a linear layer

    @property
    def current(self) -> int:
        """The number of the next call."""
        return self.numbers[self.calls % len(self.numbers)]

    def advance(self) -> int:
        """Count a call and return its number."""
        number = self.current
        if len(self.numbers) > 1:
            self.calls += 1
        return number


def _attend(
    implementation: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Return the registered attention function. Where the plan changes nothing, it is the model's own."""
    record_attention(module, query, key)
    own = _own_function(implementation, module)
    counter = getattr(module, "_attendrop", None)
    if counter is None or not counter.seams.plan:
        return own(module, query, key, value, attention_mask, **kwargs)
    seams, site = counter.seams, counter.advance()
    if not seams.plan.touches(site):
        return own(module, query, key, value, attention_mask, **kwargs)
    query, key, value = projected(seams.plan, site, query, key, value)
    call = Call(implementation, module, query, key, value, attention_mask, kwargs)
    return _attend_under_plan(call, seams, site)


def _attend_instead(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """Run in place of a kernel that takes no mask for each head and position."""
    for name in ("s_aux", "softcap"):
        if kwargs.get(name) is not None:
            raise ValueError(
                f"the attention of {type(module).__name__} has {name!r}, which attendrop computes only in models that "
                "are loaded with attn_implementation='eager'"
            )
    return _attend("sdpa", module, query, key, value, attention_mask, **kwargs)


@dataclass
class Call:
    """The arguments of one attention call."""

    implementation: str  # "sdpa" or "eager"
    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    attention_mask: Tensor | None
    kwargs: dict[str, Any]

    @property
    def is_causal(self) -> bool:
        given = self.kwargs.get("is_causal")
        is_causal = getattr(self.module, "is_causal", True) if given is None else given
        return bool(is_causal) and self.query.shape[2] > 1

    @property
    def mask_bias(self) -> Tensor | None:
        """The attention mask, where it is one that is added to the scores."""
        mask = self.attention_mask
        return None if mask is None or mask.dtype == torch.bool else mask

    @property
    def bias(self) -> Tensor | None:
        """The terms that the model itself adds to the scores."""
        position_bias = self.kwargs.get("position_bias")
        return self.mask_bias if position_bias is None else position_bias

    @property
    def has_sinks(self) -> bool:
        """Whether a part of each row's attention goes to a learned sink instead of a position (GPT-OSS)."""
        return self.kwargs.get("s_aux") is not None

    def eager_function(self) -> Callable[..., tuple[Tensor, Tensor]]:
        """Return the module's own eager function, with its softcap, sinks and the like but without dropout."""
        own = _own_function("eager", self.module) or _eager
        return functools.partial(_call_eager, own, self.module, {**self.kwargs, "dropout": 0.0})

    def run(self) -> tuple[Tensor, Tensor | None]:
        own = _own_function(self.implementation, self.module)
        return own(self.module, self.query, self.key, self.value, self.attention_mask, **self.kwargs)


def _attend_under_plan(call: Call, seams: Seams, site: int) -> tuple[Tensor, Tensor | None]:
    plan = seams.plan
    valid = seams.validity.of(call.attention_mask, call.is_causal, call.query, call.key)
    before = replace(call, kwargs=dict(call.kwargs))  # as the model has it, for the record
    needs_map = site in plan.weights or site in plan.maps
    # A zero query makes a row uniform over its positions, but sinks would still take their part of it.
    needs_map = needs_map or (call.has_sinks and plan.masks(site))
    uses_bitmask = not needs_map and bits.are_read(call, plan, site)
    weights: Tensor | None = None
    if uses_bitmask:
        output = bits.attend(call, plan.keep.get(site), valid, seams.validity)
    else:
        allowed, empty = _apply_mask(call, seams, site, valid, needs_map)
        output, weights = _attend_by_map(call, plan, site, allowed, empty) if needs_map else call.run()
    if site in plan.scale:
        factor = plan.scale[site]
        output = output * (factor.to(output.dtype) if isinstance(factor, Tensor) else factor)
    if site in plan.record:
        _record(before, seams, site, valid, output, uses_bitmask)
    return output, weights


def _apply_mask(call: Call, seams: Seams, site: int, valid: Tensor, needs_map: bool) -> tuple[Tensor, Tensor | None]:
    """Change query and mask of the call as the plan says.

    Returns the positions that attend, and the rows that became uniform, [..., 1], where that is known.
    """
    plan = seams.plan
    keep, where, is_uniform = plan.keep.get(site), plan.uniform_where.get(site), site in plan.uniform
    is_simple = not is_uniform and not needs_map
    if is_simple and keep is None and (where is None or call.bias is None):
        _use_mask_of_model(call, seams)
        if where is None:
            return valid, None
        call.query = zero_rows(call.query, where.view(1, 1, 1, 1))
        return valid, where.view(1, 1, 1, 1)
    if is_simple and keep is not None and where is None and call.bias is None and call.query.is_cuda:
        mask = keep if isinstance(keep, Mask) else mask_of(as_keep(keep), valid, call.query.dtype)
        call.query = zero_rows(call.query, mask.empty)
        call.attention_mask = mask.bias.expand(-1, -1, call.query.shape[2], call.key.shape[2])
        return valid, mask.empty
    allowed, empty = allowed_and_empty(valid if keep is None else as_keep(keep), valid)
    if is_uniform:
        allowed, empty = valid, torch.ones_like(empty)
    elif where is not None:
        allowed, empty = torch.where(where, valid, allowed), empty | where
    # With a zero query all scores of a row are equal. Its attention is then uniform over the valid positions, whatever
    # the kernel, and no gradient goes to queries and keys.
    call.query = zero_rows(call.query, empty)
    if call.kwargs.get("position_bias") is not None:
        call.kwargs["position_bias"] = call.kwargs["position_bias"].masked_fill(empty, 0)
    if call.mask_bias is not None:
        call.attention_mask = call.mask_bias.masked_fill(empty, 0).masked_fill(~allowed, float("-inf"))
    elif call.implementation == "eager" or needs_map:
        zero = torch.zeros((), dtype=call.query.dtype, device=call.query.device)
        call.attention_mask = zero.masked_fill(~allowed, float("-inf"))
    else:
        call.attention_mask = allowed.expand(-1, -1, call.query.shape[2], call.key.shape[2])
    return allowed, empty


def _use_mask_of_model(call: Call, seams: Seams) -> None:
    """On a GPU a bool mask is converted to an additive mask once for all layers."""
    mask_is_bool = call.attention_mask is not None and call.mask_bias is None
    if call.implementation == "sdpa" and mask_is_bool and _is_eager_on_gpu(call.query):
        call.attention_mask = seams.validity.bias_of(call.attention_mask, call.query.dtype)


def _attend_by_map(call: Call, plan: Plan, site: int, allowed: Tensor, empty: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return attention by its map, with the plan's changes of the weights after the softmax."""
    # The module's own eager function computes the weights, with its softcap, sinks and the like; a value of width 1
    # keeps that cheap. Its dropout comes last, so that the plan changes the weights of the softmax.
    _, weights = call.eager_function()(call.query, call.key, call.value[..., :1], call.attention_mask)
    if call.has_sinks and empty is not None:
        uniform = allowed / allowed.sum(-1, keepdim=True)
        weights = torch.where(empty, uniform.to(weights.dtype), weights)
    if site in plan.weights:
        weights = weights * plan.weights[site].to(weights.dtype)
    for edit in plan.maps.get(site, ()):
        weights = edit(weights, allowed)
    weights = nn.functional.dropout(weights, call.kwargs.get("dropout", 0.0), call.module.training)
    output = (weights @ _of_heads(call.value, call.query.shape[1])).transpose(1, 2).contiguous()
    return output, weights


def _call_eager(
    own: Any, module: nn.Module, kwargs: dict[str, Any], query: Tensor, key: Tensor, value: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor]:
    return own(module, query, key, value, mask, **kwargs)


def _record(call: Call, seams: Seams, site: int, valid: Tensor, output: Tensor, uses_bitmask: bool) -> None:
    """Record the call. Gradient checkpointing runs it a second time, which must not replace the first record."""
    if torch.is_grad_enabled() and not output.requires_grad:
        output.requires_grad_()  # the second time too: it must save for the backward what the first time saved
    if site not in seams.records:
        scaling, query, bias = call.kwargs.get("scaling"), call.query, call.bias
        has_own = call.implementation == "eager" and _own_function("eager", call.module) is not None
        call.kwargs.pop("position_bias", None)  # the record holds it as its bias
        seams.records[site] = Record(
            query=query.detach(),
            key=call.key.detach(),
            value=call.value.detach(),
            output=output,
            valid=valid,
            bias=None if bias is None else bias.detach(),
            scaling=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
            uses_bitmask=uses_bitmask,
            valid_bits=seams.validity.bits_of(valid, call) if uses_bitmask else (None, None),
            own_function=call.eager_function() if has_own else None,
        )


def _is_eager_on_gpu(x: Tensor) -> bool:
    return x.is_cuda and not torch.compiler.is_compiling()


def zero_rows(x: Tensor, rows: Tensor) -> Tensor:
    """`x` with the rows zeroed that `rows`, bool [..., 1], marks. Unlike `masked_fill` it keeps the memory layout."""
    return _ZeroRows.apply(x, rows)


class _ZeroRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        return _zeroed(x, rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return zero_rows(gradient, *ctx.saved_tensors), None


def _zeroed(x: Tensor, rows: Tensor) -> Tensor:
    """Copy in words of 8 bytes where possible: the time of a broadcasting kernel grows with the number of elements."""
    if torch.compiler.is_compiling() or not _fits_words(x):
        return torch.where(rows, torch.zeros((), dtype=x.dtype, device=x.device), x)
    return (x.view(torch.int64) & (rows.long() - 1)).view(x.dtype)


def _fits_words(x: Tensor) -> bool:
    share = 8 // x.element_size()
    return x.stride(-1) == 1 and not any(n % share for n in (x.shape[-1], x.storage_offset(), *x.stride()[:-1]))


def projected(plan: Plan, site: int, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the query, key and value, multiplied by the plan's factors."""
    factors = plan.projections.get(site, (None, None, None))
    q, k, v = (
        x if factor is None else x * factor.to(x.dtype) for x, factor in zip((query, key, value), factors, strict=True)
    )
    return q, k, v


def _own_function(implementation: str, module: nn.Module) -> Any:
    """Return the attention function that the module would have called: its own file may override a shared one."""
    file = sys.modules[type(module).__module__]
    interface = getattr(file, "ALL_ATTENTION_FUNCTIONS", None) or AttentionInterface()
    return interface.get_interface(implementation, getattr(file, "eager_attention_forward", None))


def _eager(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float = 1.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Compute attention for modules whose file has no function: those with an adapter, which always passes a mask."""
    assert attention_mask is not None
    weights = (query @ key.transpose(-1, -2) * scaling + attention_mask).softmax(-1)
    return weights @ value, weights


def _sdpa_mask(**options: Any) -> Tensor | None:
    """Return the mask of transformers; where all queries see the same keys, only one row of it is in memory."""
    if options.get("mask_function") is not bidirectional_mask_function or options.get("use_vmap"):
        return sdpa_mask(**options)
    row = sdpa_mask(**{**options, "q_length": 1})
    return None if row is None else row.expand(-1, -1, options["q_length"], -1)


for _ours in REPLACED.values():
    AttentionInterface.register(_ours, _attend_instead)
    AttentionMaskInterface.register(_ours, _sdpa_mask)
for _name, _mask in (("sdpa", _sdpa_mask), ("eager", eager_mask)):
    AttentionInterface.register(IMPLEMENTATIONS[_name], functools.partial(_attend, _name))
    AttentionMaskInterface.register(IMPLEMENTATIONS[_name], _mask)
