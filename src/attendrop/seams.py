"""bind / unbind: the two places in a model that read the plan, its attention function and its blocks.

S1, the attention function, is registered with transformers' `AttentionInterface` *and* `AttentionMaskInterface`: a
name without a mask function makes transformers pass no mask, and padding would be attended to, silently. It runs the
kernel that the model would have used. S2, the block, is a subclass of the same name swapped in for the instance's
class, so that copies, `isinstance` and `state_dict` keys all hold.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PretrainedConfig
from transformers.masking_utils import eager_mask, sdpa_mask

from .adapters import ADAPTERS
from .modes import evaluating
from .plan import Plan
from .random import preserved
from .sites import Call, Layers, Site, few_tokens, note, number, select, unwrapped, watching

_IMPLEMENTATIONS = {"sdpa": "attendrop_sdpa", "eager": "attendrop_eager"}
_EMPTY = Plan()


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


class Seams:
    """The seams of one bound model. `bind` makes it; `unbind` leaves nothing of it on the model."""

    def __init__(self, model: nn.Module) -> None:
        self.name = type(unwrapped(model)).__name__
        self.sites: list[Site] = []
        self.plan: Plan = _EMPTY
        self.records: dict[int, Record] = {}
        self._configs: list[tuple[PretrainedConfig, str]] = []
        self._modules: list[nn.Module] = []

    @classmethod
    def of(cls, model: nn.Module) -> Seams | None:
        """The seams of a bound model (or of a copy of one), or None."""
        for module in model.modules():
            handle = getattr(module, "_attendrop", None)
            if handle is not None:
                return handle.seams
        return None

    def select(self, layers: Layers, owner: str = "layers") -> list[int]:
        return select(self.sites, layers, owner)

    @contextmanager
    def applied(self, plan: Plan) -> Iterator[None]:
        """Every pass inside follows `plan`, and so does the backward: gradient checkpointing replays blocks in it."""
        before = self.plan, self.records
        self._install(plan, {})
        try:
            yield
        finally:
            self._install(*before)

    def _install(self, plan: Plan, records: dict[int, Record]) -> None:
        self.plan, self.records = plan, records
        for module in self._modules:
            handle = getattr(module, "_attendrop", None)
            if handle is not None:
                handle.calls = 0

    def unbind(self) -> None:
        """Gives the model back as it was."""
        for module in self._modules:
            for attribute in ("_attendrop", "_attendrop_block"):
                if attribute in module.__dict__:
                    delattr(module, attribute)
            original = getattr(type(module), "_attendrop_original", None)
            if original is not None and type(module).__bases__[-1] is original:
                module.__class__ = original
        for config, implementation in self._configs:
            config._attn_implementation_internal = implementation
        self._modules, self._configs = [], []
        self.plan, self.records = _EMPTY, {}


class _Handle:
    """Hangs on an attention module and tells its calls apart."""

    def __init__(self, seams: Seams) -> None:
        self.seams = seams
        self.sites: list[int] = []
        self.calls = 0

    def next_site(self) -> int:
        if len(self.sites) == 1:
            return self.sites[0]
        site = self.sites[self.calls % len(self.sites)]
        self.calls += 1
        return site


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
    seams, site = handle.seams, handle.next_site()
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
    is_causal = kwargs.get("is_causal")
    causal = (getattr(module, "is_causal", True) if is_causal is None else is_causal) and query.shape[2] > 1
    valid, bias = _valid_and_bias(attention_mask, causal, query, key)
    original_query, original_bias = query, position_bias
    if site in plan.keep or site in plan.uniform:
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
        elif base_name == "eager":
            attention_mask = torch.zeros((), dtype=query.dtype, device=query.device).masked_fill(
                ~allowed, float("-inf")
            )
        else:
            attention_mask = allowed.expand(-1, -1, query.shape[2], key.shape[2])
    if position_bias is not None:
        kwargs["position_bias"] = position_bias
    output, weights = base(module, query, key, value, attention_mask, **kwargs)
    if site in plan.scale:
        output = output * plan.scale[site]
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


for _name, _mask in (("sdpa", sdpa_mask), ("eager", eager_mask)):
    AttentionInterface.register(_IMPLEMENTATIONS[_name], functools.partial(_attend, _name))
    AttentionMaskInterface.register(_IMPLEMENTATIONS[_name], _mask)


class _BlockHandle:
    def __init__(self, seams: Seams, index: int) -> None:
        self.seams = seams
        self.index = index


class _BlockSeam:
    """Mixed into a block's class: skips it or edits its hidden states, as the plan says."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        run = super().forward  # type: ignore[misc]
        handle = getattr(self, "_attendrop_block", None)
        if handle is None or not (handle.seams.plan.skip or handle.seams.plan.edits):
            return run(*args, **kwargs)
        plan: Plan = handle.seams.plan
        index: int = handle.index
        hidden = args[0] if args else kwargs["hidden_states"]
        if index == 0:
            for edit in plan.edits.get(-1, ()):
                hidden = edit(hidden)
            if args:
                args = (hidden, *args[1:])
            else:
                kwargs["hidden_states"] = hidden
        result = run(*args, **kwargs)
        after = result if isinstance(result, Tensor) else result[0]
        if index in plan.skip:
            # The block runs and its result is not taken: the autograd graph stays the same from step to step, which
            # data-parallel and sharded training rely on.
            after = torch.where(torch.ones((), dtype=torch.bool, device=after.device), hidden, after)
        for edit in plan.edits.get(index, ()):
            after = edit(after)
        return after if isinstance(result, Tensor) else (after, *result[1:])


_subclasses: dict[tuple[type, type], type] = {}


def _with_seam(cls: Any, seam: Any) -> type:
    """A subclass of the same name, as FSDP2 makes: one for each class, so that isinstance checks hold among blocks."""
    if (cls, seam) not in _subclasses:
        body = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "_attendrop_original": cls}
        _subclasses[cls, seam] = type(cls.__name__, (seam, cls), body)
    return _subclasses[cls, seam]


def bind(model: Any, batch: Mapping[str, Any] | None = None) -> Seams:
    """Puts the seams into `model`: afterwards it computes what it did before, until a plan is applied.

    `batch` is an example for the dry run that finds the attention calls; text and image models need none.
    """
    if Seams.of(model) is not None:
        raise ValueError(f"{type(unwrapped(model)).__name__} is bound already; call unbind() on its seams first.")
    seams = Seams(model)
    try:
        _swap_attention(model, seams)
        calls = _run_dry(model, batch)
        if not calls:
            raise ValueError(
                f"{seams.name} makes no call of transformers' attention interface, so its attention cannot be "
                "regularised; it would need an adapter as MPNet and DeBERTa-v2 have in attendrop/adapters.py."
            )
        seams.sites, blocks = number(calls, model)
        for site, call in zip(seams.sites, calls, strict=True):
            if "_attendrop" not in call.module.__dict__:
                call.module._attendrop = _Handle(seams)
                seams._modules.append(call.module)
            call.module._attendrop.sites.append(site.index)
        for index, name in enumerate(blocks):
            block = model.get_submodule(name)
            if not isinstance(block, _BlockSeam):  # FSDP2 keeps the seam's class below its own, where it does nothing
                block.__class__ = _with_seam(type(block), _BlockSeam)
            block._attendrop_block = _BlockHandle(seams, index)
            seams._modules.append(block)
    except BaseException:
        seams.unbind()
        raise
    return seams


def _swap_attention(model: Any, seams: Seams) -> None:
    seen: set[int] = set()
    for module in model.modules():
        config = getattr(module, "config", None)
        if isinstance(config, PretrainedConfig) and id(config) not in seen:
            seen.add(id(config))
            implementation = config._attn_implementation
            if implementation in _IMPLEMENTATIONS:
                seams._configs.append((config, implementation))
            elif implementation is not None:
                raise ValueError(
                    f"attn_implementation of {seams.name} is {implementation!r}, whose kernels take no mask for each "
                    "head and position; load the model with attn_implementation='sdpa' (or 'eager')."
                )
        adapter = ADAPTERS.get((type(module).__module__, type(module).__qualname__))
        if adapter is not None:
            module.__class__ = _with_seam(type(module), adapter)
            seams._modules.append(module)
    if not seams._configs:
        raise ValueError(
            f"{seams.name} is not a transformers model: it has no config with an attention implementation."
        )
    for config, implementation in seams._configs:
        config._attn_implementation_internal = _IMPLEMENTATIONS[implementation]


def _run_dry(model: nn.Module, batch: Mapping[str, Any] | None) -> list[Call]:
    inner = unwrapped(model)
    inputs = dict(batch) if batch is not None else few_tokens(inner, inner.config)
    device = next(model.parameters()).device
    try:
        with preserved(device), evaluating(model), torch.no_grad(), watching() as calls:
            model(**inputs)
    except Exception as error:
        if batch is not None:
            raise
        raise ValueError(
            f"{type(inner).__name__} did not run on {sorted(inputs)} ({type(error).__name__}: {error}); pass an "
            "example batch as bind(model, batch=...)."
        ) from error
    finally:
        _reshard(model)
    return calls


def _reshard(model: nn.Module) -> None:
    """A pass without a backward leaves FSDP2's root gathered, and an optimizer made now would take those tensors."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        from torch.distributed.fsdp import FSDPModule

        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
