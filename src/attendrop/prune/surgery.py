"""Replaces the attention of chosen encoder layers by the constant 1/n: one vector for each sequence.

    Y = W_O (W_V mean(X) + b_V) + b_O = W mean(X) + b        W = W_O W_V,  b = W_O b_V + b_O

The mean is over the valid tokens. W is multiplied out, and the query and key weights are gone. Residual, LayerNorm and
dropout of the block stay as they are. (Self-pruning, AttendOut v1, arXiv 2104.04692v1.)
Differs from the paper in: attention dropout is gone with the map that it was applied to.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..model.dry_run import record_attention
from ..model.seams import Seams, bind
from ..model.sites import Layers, Site, select

Finish = Callable[["ConstantAttention", Tensor, Tensor, Mapping[str, Any]], tuple[Any, ...]]


def _pair(layer: ConstantAttention, hidden: Tensor, output: Tensor, call: Mapping[str, Any]) -> tuple[Any, ...]:
    return output, None  # no map: it would be 1/n everywhere


def _modernbert(layer: Any, hidden: Tensor, output: Tensor, call: Mapping[str, Any]) -> tuple[Any, ...]:
    return layer.out_drop(output), None


def _albert(layer: Any, hidden: Tensor, output: Tensor, call: Mapping[str, Any]) -> tuple[Any, ...]:
    return layer.LayerNorm(hidden + layer.output_dropout(output)), None


def _t5(layer: Any, hidden: Tensor, output: Tensor, call: Mapping[str, Any]) -> tuple[Any, ...]:
    """The first layer makes the position bias of all the others, some of which may still attend."""
    bias = call.get("position_bias")
    if bias is None and layer.has_relative_attention_bias:
        from transformers.models.t5.modeling_t5 import T5Attention

        bias = T5Attention.compute_bias(layer, hidden.shape[1], hidden.shape[1], device=hidden.device)
    return output, bias, None


@dataclass(frozen=True)
class Layout:
    """Where an attention class keeps its projections, and what else it does."""

    q: str
    k: str
    v: str
    o: str
    o_outside: bool = False  # `o` is below the parent of the attention module
    fused: bool = False  # q, k and v are the thirds of one Linear
    prenorm: bool = False  # the residual is the input of the attention's parent, not of the attention
    binary_mask: bool = False  # a mask of numbers is 1 where valid; elsewhere such a mask is added to the scores
    position_bias: bool = False  # added to the scores whatever q and k are: without them attention is not uniform
    keeps: tuple[str, ...] = ()  # what stays of the attention module
    finish: Finish = _pair


_BERT = Layout("query", "key", "value", "output.dense", o_outside=True)
_BART = Layout("q_proj", "k_proj", "v_proj", "out_proj")
_T5_BIAS = (
    "has_relative_attention_bias",
    "relative_attention_bias",
    "relative_attention_num_buckets",
    "relative_attention_max_distance",
    "_relative_position_bucket",
    "is_decoder",
)

LAYOUTS: dict[str, Layout] = {
    "AlbertAttention": Layout(
        "query", "key", "value", "dense", keeps=("LayerNorm", "output_dropout"), finish=_albert
    ),
    "BartAttention": _BART,
    "BertSelfAttention": _BERT,
    "DisentangledSelfAttention": Layout(
        "query_proj", "key_proj", "value_proj", "output.dense", o_outside=True, binary_mask=True
    ),
    "DistilBertSelfAttention": Layout("q_lin", "k_lin", "v_lin", "out_lin"),
    "ElectraSelfAttention": _BERT,
    "MPNetSelfAttention": Layout("q", "k", "v", "o", position_bias=True),
    "MarianAttention": _BART,
    "ModernBertAttention": Layout(
        "Wqkv", "Wqkv", "Wqkv", "Wo", fused=True, prenorm=True, keeps=("out_drop",), finish=_modernbert
    ),
    "RobertaSelfAttention": _BERT,
    "T5Attention": Layout("q", "k", "v", "o", prenorm=True, position_bias=True, keeps=_T5_BIAS, finish=_t5),
    "ViTAttention": Layout("q_proj", "k_proj", "v_proj", "o_proj", prenorm=True),
    "XLMRobertaSelfAttention": _BERT,
}  # fmt: skip


class ConstantAttention(nn.Module):
    """Uniform attention over the valid tokens, its projections multiplied out.

    `project` is one Linear, or value and output one after the other where the heads together are narrower than the
    model: their product would have a rank that further training could not keep.
    """

    def __init__(self, module: nn.Module, output: nn.Linear, layout: Layout, layers: Sequence[int]) -> None:
        """From an attention module and its output projection; `layers` are several where layers share the module."""
        super().__init__()
        self.layout = layout
        self.layers = tuple(layers)
        value: Any = module.get_submodule(layout.v)
        self.project = _projection(value, output, layout.fused)
        for name in layout.keeps:
            if hasattr(module, name):
                setattr(self, name, getattr(module, name))
        # What a stock model has in this place, for `save`: names below the module, and below the output projection.
        kept = self.state_dict()
        self.shapes = {name: tuple(x.shape) for name, x in module.state_dict().items() if name not in kept}
        self.output_shapes = {name: tuple(x.shape) for name, x in output.state_dict().items()}
        self.train(module.training)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        *args: Any,
        mask: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        mask = attention_mask if mask is None else mask  # T5 has a name of its own for it
        if mask is None:
            mean = hidden_states.mean(1, keepdim=True)
        else:
            mean = mean_weights(mask, hidden_states.dtype, self.layout.binary_mask) @ hidden_states
        # One row for all tokens, a view: it costs nothing, and dropout behind it still draws for each token.
        output = self.project(mean).expand(-1, hidden_states.shape[1], -1)
        return self.layout.finish(self, hidden_states, output, kwargs)

    def extra_repr(self) -> str:
        return f"layers={list(self.layers)}"


def mean_weights(mask: Tensor, dtype: torch.dtype, binary: bool = False) -> Tensor:
    """1/n at the n valid tokens of each sequence, [B, 1, K].

    `mask` is what a model hands to its attention: [B, K], 1 = valid, or [B, H, Q, K], bool (True = valid) or numbers
    added to the scores (with `binary`: 1 = valid). A sequence without any valid token counts all of them, so that it
    stays finite.
    """
    # All layers of a pass get the same mask, so that what it says is kept on it, until it is written to.
    keeps = not torch.compiler.is_compiling() and not mask.is_inference()
    known = getattr(mask, "_attendrop_mean_weights", None) if keeps else None
    if known is not None and known[0] == mask._version and known[1].dtype == dtype:
        return known[1]
    additive = mask.is_floating_point() and mask.dim() == 4 and not binary
    allowed = mask > torch.finfo(mask.dtype).min / 2 if additive else mask != 0
    if allowed.dim() == 2:
        valid = allowed
    elif allowed.shape[-2] == 1:
        valid = allowed[:, 0, 0]
    else:
        # Every valid token sees itself. Rows of padding may see nothing at all, as in DeBERTa.
        valid = allowed[:, 0].diagonal(dim1=-2, dim2=-1)
        if not torch.compiler.is_compiling():
            _check_rows(allowed, valid)
    valid = valid | ~valid.any(-1, keepdim=True)
    weights = (valid / valid.sum(-1, keepdim=True)).to(dtype).unsqueeze(1)
    if keeps:
        mask._attendrop_mean_weights = mask._version, weights  # type: ignore[attr-defined]
    return weights


def _check_rows(allowed: Tensor, valid: Tensor) -> None:
    differs = (allowed != valid[:, None, None, :]) & valid[:, None, :, None]
    if differs.any():
        raise ValueError(
            f"attention_mask has shape {list(allowed.shape)} and lets tokens of one sequence see different tokens; a "
            "pruned layer has one vector for each sequence, so that all must see the same ([B, K], or equal rows)."
        )


@dataclass(frozen=True)
class Layer:
    """One bidirectional self-attention layer of an encoder."""

    site: Site
    module: nn.Module

    @property
    def layout(self) -> Layout | None:
        if isinstance(self.module, ConstantAttention):
            return self.module.layout
        cls = type(self.module)
        return LAYOUTS.get(cls.__name__) if cls.__module__.startswith("transformers.models.") else None

    @property
    def is_pruned(self) -> bool:
        return isinstance(self.module, ConstantAttention)


def encoder_layers(model: Any, batch: Mapping[str, Any] | None = None) -> list[Layer]:
    """The layers that can be pruned or are, in calling order, found by a dry run (on `batch`, where one is needed)."""
    if Seams.of(model) is not None:
        raise ValueError(
            f"{type(model).__name__} is bound, so that its attention cannot be replaced; call unbind() on its seams "
            "(close() on its engine) first."
        )
    hooks = [
        module.register_forward_pre_hook(_note, with_kwargs=True)
        for module in model.modules()
        if isinstance(module, ConstantAttention)
    ]
    try:
        seams = bind(model, batch)
    finally:
        for hook in hooks:
            hook.remove()
    sites = seams.sites
    seams.unbind()
    found = [Layer(site, model.get_submodule(site.name)) for site in sites if site.kind == "self"]
    found = [layer for layer in found if not getattr(layer.module, "is_causal", False)]
    stacks = list(dict.fromkeys(layer.site.stack for layer in found))
    if len(stacks) > 1:
        raise ValueError(
            f"{type(model).__name__} has {len(stacks)} encoders ({', '.join(stacks)}); pass the one to be pruned."
        )
    return found


def _note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    hidden = (args[0] if args else kwargs["hidden_states"]).unsqueeze(1)
    record_attention(module, hidden, hidden)


@dataclass(frozen=True)
class Pruned:
    """What `prune` did."""

    layers: tuple[int, ...]  # pruned by this call
    remaining: tuple[int, ...]  # that still attend
    parameters_before: int
    parameters_after: int

    def __str__(self) -> str:
        saved = 1 - self.parameters_after / self.parameters_before
        return (
            f"pruned layers {', '.join(map(str, self.layers))}; "
            f"still attending: {', '.join(map(str, self.remaining)) or 'none'}; "
            f"parameters {self.parameters_before:,} -> {self.parameters_after:,} (-{saved:.1%})"
        )


def prune(model: Any, layers: Layers, batch: Mapping[str, Any] | None = None) -> Pruned:
    """Makes the attention of these encoder layers the constant 1/n, in place.

    `layers` counts the encoder's self-attention layers from 0: a number, a list, a slice, "first" or "all". Layers that
    share one module, as in ALBERT, are pruned together or not at all. `batch` is an example for the dry run that finds
    the layers; text and image models need none. Nothing is changed where one of the layers is refused.
    """
    return prune_layers(model, layers, "layers", batch)


def prune_layers(model: Any, layers: Layers, owner: str, batch: Mapping[str, Any] | None = None) -> Pruned:
    """As `prune`; refusals name `owner` as the field that holds `layers`."""
    layers = _plain(layers)
    found = encoder_layers(model, batch)
    name = type(model).__name__
    if not found:
        raise ValueError(
            f"{owner} is {layers!r}, but {name} has no bidirectional self attention: uniform over the past, or over "
            "another sequence, is not one vector; only layers of an encoder can be pruned."
        )
    chosen = set(select([layer.site for layer in found], layers, owner))
    wanted = [layer for layer in found if layer.site.index in chosen]
    prunable = [layer.site.layer for layer in found if _reason_against(layer) is None]
    for layer in wanted:
        reason = _reason_against(layer) or _reason_of_sharing(layer, found, wanted)
        if reason is not None:
            allowed = ", ".join(map(str, prunable)) or "none"
            raise ValueError(
                f"{owner} is {layers!r}, but layer {layer.site.layer} of {name} {reason}; allowed: {allowed}."
            )
    before = parameters_of(model)
    # All made before the first is put in: a failure leaves the model as it was.
    constants = {layer.site.name: _constant(model, layer, wanted) for layer in wanted}
    for path, constant in constants.items():
        if constant.layout.o_outside:
            _put(model, path_of_o(path, constant.layout), nn.Identity())
        _put(model, path, constant)
    numbers = [layer.site.layer for layer in wanted]
    remaining = [layer.site.layer for layer in found if not layer.is_pruned and layer.site.index not in chosen]
    return Pruned(tuple(numbers), tuple(remaining), before, parameters_of(model))


def _plain(layers: Any) -> Layers:
    """Whole numbers of numpy and torch as Python's."""
    if isinstance(layers, (str, slice)):
        return layers
    numbers = layers if isinstance(layers, Iterable) else [layers]
    return [operator.index(number) if hasattr(number, "__index__") else number for number in numbers]


def parameters_of(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def path_of_o(path: str, layout: Layout) -> str:
    """The qualified name of the output projection of the attention module at `path`."""
    return f"{path.rpartition('.')[0] if layout.o_outside else path}.{layout.o}"


def _put(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, child = path.rpartition(".")
    setattr(model.get_submodule(parent), child, module)


def not_in_the_table(module: nn.Module) -> str:
    return f"is of class {type(module).__name__}, whose projections are not in attendrop.prune.surgery.LAYOUTS"


def _reason_against(layer: Layer) -> str | None:
    """Why this layer cannot be pruned, whatever else is."""
    if layer.is_pruned:
        return "is pruned already"
    if layer.layout is None:
        return (
            f"is of class {type(layer.module).__name__}, whose projections are not in attendrop.prune.surgery.LAYOUTS"
        )
    window = getattr(layer.module, "sliding_window", None)
    if window is not None:
        return f"attends within a sliding window ({window} tokens to each side), where uniform is not one vector"
    return None


def _reason_of_sharing(layer: Layer, found: Sequence[Layer], wanted: Sequence[Layer]) -> str | None:
    together = [other for other in found if other.module is layer.module]
    if all(other in wanted for other in together):
        return None
    return (
        f"shares its module with layers {', '.join(str(x.site.layer) for x in together)}, all or none of which must go"
    )


def _constant(model: nn.Module, layer: Layer, wanted: Sequence[Layer]) -> ConstantAttention:
    layout = layer.layout
    assert layout is not None
    value: Any = layer.module.get_submodule(layout.v)
    output: Any = model.get_submodule(path_of_o(layer.site.name, layout))
    for linear in (value, output):
        if type(linear) is not nn.Linear:
            raise ValueError(
                f"{layer.site.name} projects with {type(linear).__module__}.{type(linear).__name__}, which cannot be "
                "multiplied out; it must be torch.nn.Linear (merge adapters and undo quantisation first)."
            )
    numbers = [other.site.layer for other in wanted if other.module is layer.module]
    return ConstantAttention(layer.module, output, layout, numbers)


@torch.no_grad()
def _projection(value: Any, output: Any, fused: bool) -> nn.Module:
    """W_O (W_V x + b_V) + b_O as one Linear."""
    w, b = value.weight, value.bias
    if fused:
        w, b = w.chunk(3)[2], None if b is None else b.chunk(3)[2]
    trainable = value.weight.requires_grad or output.weight.requires_grad
    if w.shape[0] < w.shape[1]:
        return nn.Sequential(_linear(w, b, trainable), _linear(output.weight, output.bias, trainable))
    # The product once, in double precision: the result is rounded once, as every weight is.
    wide = torch.float32 if w.device.type == "mps" else torch.float64
    product = output.weight.to(wide) @ w.to(wide)
    bias = None if output.bias is None else output.bias.to(wide)
    if b is not None:
        through = output.weight.to(wide) @ b.to(wide)
        bias = through if bias is None else bias + through
    return _linear(product.to(w.dtype), None if bias is None else bias.to(w.dtype), trainable)


def _linear(weight: Tensor, bias: Tensor | None, trainable: bool) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    linear.weight = nn.Parameter(weight.clone(), trainable)
    if bias is not None:
        linear.bias = nn.Parameter(bias.clone(), trainable)
    return linear
