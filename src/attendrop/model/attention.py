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
from transformers.masking_utils import bidirectional_mask_function, eager_mask, sdpa_mask

from ..kernels.attention_mask import Mask, allowed_and_empty, as_keep, mask_of
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
    valid = seams.validity.of(attention_mask, causal, query, key)
    bias = None if attention_mask is None or attention_mask.dtype == torch.bool else attention_mask
    asked, added = query, bias if position_bias is None else position_bias  # as the model has them
    makes_map = site in plan.weights or site in plan.maps
    keep = plan.keep.get(site)
    allowed = valid
    if keep is not None and query.is_cuda and added is None and not makes_map and site not in plan.uniform:
        mask = keep if isinstance(keep, Mask) else mask_of(keep, valid, query.dtype)
        query = zero_rows(query, mask.empty)
        attention_mask = mask.bias.expand(-1, -1, query.shape[2], key.shape[2])
    elif keep is not None or site in plan.uniform or makes_map:
        allowed, dead = allowed_and_empty(valid if keep is None else as_keep(keep), valid)
        if site in plan.uniform:
            allowed, dead = valid, torch.ones_like(dead)
        # With a zero query all scores of the row are equal: uniform over the valid positions, whatever the kernel, and
        # with no gradient to queries and keys.
        query = zero_rows(query, dead)
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
    elif base_name == "sdpa" and attention_mask is not None and bias is None and _is_eager_on_gpu(query):
        attention_mask = seams.validity.bias_of(attention_mask, query.dtype)
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
        seams.records[site] = Record(
            query=asked.detach(),
            key=key.detach(),
            value=value.detach(),
            output=output,
            valid=valid,
            bias=None if added is None else added.detach(),
            scaling=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        )
    return output, weights


def _is_eager_on_gpu(x: Tensor) -> bool:
    return x.is_cuda and not torch.compiler.is_compiling()


def zero_rows(x: Tensor, rows: Tensor) -> Tensor:
    """x with some rows zeroed: bool [..., 1]. Other than `masked_fill` it leaves the layout as it is."""
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
    """In words of 8 bytes where they fit, because a kernel that broadcasts takes its time by the element."""
    if torch.compiler.is_compiling() or not _fits_words(x):
        return torch.where(rows, torch.zeros((), dtype=x.dtype, device=x.device), x)
    return (x.view(torch.int64) & (rows.long() - 1)).view(x.dtype)


def _fits_words(x: Tensor) -> bool:
    share = 8 // x.element_size()
    return x.stride(-1) == 1 and not any(n % share for n in (x.shape[-1], x.storage_offset(), *x.stride()[:-1]))


def projected(plan: Plan, site: int, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value with the plan's factors."""
    factors = plan.projections.get(site, (None, None, None))
    q, k, v = (
        x if factor is None else x * factor.to(x.dtype) for x, factor in zip((query, key, value), factors, strict=True)
    )
    return q, k, v


class Validity:
    """What the model lets attend. Most models hand the same mask to all of their layers: the last answers are kept."""

    def __init__(self) -> None:
        self._valid: tuple[Tensor | None, bool, tuple[int, int], Tensor] | None = None
        self._bias: tuple[Tensor, torch.dtype, Tensor] | None = None

    def of(self, attention_mask: Tensor | None, causal: bool, query: Tensor, key: Tensor) -> Tensor:
        """bool [B|1, H|1, Q|1, K]"""
        shape = query.shape[2], key.shape[2]
        if attention_mask is not None and attention_mask.dtype != torch.bool:
            return _seen(attention_mask > torch.finfo(attention_mask.dtype).min / 2)
        if self._valid is None or self._valid[0] is not attention_mask or self._valid[1:3] != (causal, shape):
            if attention_mask is None:
                valid = torch.ones(1, 1, shape[0] if causal else 1, shape[1], dtype=torch.bool, device=query.device)
                valid = valid.tril() if causal else valid
            else:
                same = attention_mask.dim() == 4 and attention_mask.stride(2) == 0  # for all queries
                valid = _seen(attention_mask[:, :, :1] if same else attention_mask)
            self._valid = attention_mask, causal, shape, valid
        return self._valid[3]

    def bias_of(self, attention_mask: Tensor, dtype: torch.dtype) -> Tensor:
        """A bool mask as it is added to the scores. The kernel would make this of it, in every layer."""
        if self._bias is None or self._bias[0] is not attention_mask or self._bias[1] != dtype:
            bias = torch.zeros(attention_mask.shape, dtype=dtype, device=attention_mask.device)
            self._bias = attention_mask, dtype, bias.masked_fill_(~attention_mask, float("-inf"))
        return self._bias[2]


def _seen(valid: Tensor) -> Tensor:
    """The query of a padding token may see nothing at all. Nobody reads it; it must only stay finite."""
    return valid | ~valid.any(-1, keepdim=True)


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


def _sdpa_mask(**options: Any) -> Tensor | None:
    """transformers' own; where all queries may see the same, it has one row in memory."""
    if options.get("mask_function") is not bidirectional_mask_function or options.get("use_vmap"):
        return sdpa_mask(**options)
    row = sdpa_mask(**{**options, "q_length": 1})
    return None if row is None else row.expand(-1, -1, options["q_length"], -1)


for _name, _mask in (("sdpa", _sdpa_mask), ("eager", eager_mask)):
    AttentionInterface.register(IMPLEMENTATIONS[_name], functools.partial(_attend, _name))
    AttentionMaskInterface.register(IMPLEMENTATIONS[_name], _mask)
