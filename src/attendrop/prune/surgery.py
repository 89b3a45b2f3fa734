"""Finds the attention layers of an encoder and replaces chosen ones by `ConstantAttention`.

Residual connection, LayerNorm and dropout of a pruned block stay as they are.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..model.dry_run import record_attention
from ..model.seams import Seams, bind
from ..model.sites import Layers, Site, select
from .constant_attention import ConstantAttention
from .layouts import LAYOUTS, Layout
from .stock_layout import store_in_stock_layout


@dataclass(frozen=True)
class Layer:
    """A bidirectional self-attention layer of an encoder."""

    site: Site
    module: nn.Module

    @property
    def layout(self) -> Layout | None:
        """Where the module keeps its projections; None if its class is not in `LAYOUTS`."""
        if isinstance(self.module, ConstantAttention):
            return self.module.layout
        cls = type(self.module)
        return LAYOUTS.get(cls.__name__) if cls.__module__.startswith("transformers.models.") else None

    @property
    def is_pruned(self) -> bool:
        return isinstance(self.module, ConstantAttention)

    def known_layout(self) -> Layout:
        """Return the layout, for layers that must have one."""
        if self.layout is None:
            raise ValueError(f"{self.site.name} {_no_layout(self)}.")
        return self.layout


def encoder_layers(model: Any, batch: Mapping[str, Any] | None = None) -> list[Layer]:
    """Return the self-attention layers of the encoder, pruned or not, in the order in which the model calls them.

    Args:
        model: A transformers model that is not bound.
        batch: Inputs for the dry run that finds the layers. Models of text and images need none.
    """
    seams = dry_bind(model, batch)
    sites = seams.sites
    seams.unbind()
    layers = [Layer(site, model.get_submodule(site.name)) for site in sites if site.kind == "self"]
    layers = [layer for layer in layers if not getattr(layer.module, "is_causal", False)]
    stacks = list(dict.fromkeys(layer.site.stack for layer in layers))
    if len(stacks) > 1:
        raise ValueError(
            f"{type(model).__name__} has {len(stacks)} encoders ({', '.join(stacks)}); pass the one to be pruned."
        )
    return layers


def dry_bind(model: Any, batch: Mapping[str, Any] | None = None) -> Seams:
    """Bind a model so that pruned layers are sites too. The caller unbinds it.

    Args:
        model: A transformers model that is not bound.
        batch: Inputs for the dry run. Models of text and images need none.
    """
    if Seams.of(model) is not None:
        raise ValueError(
            f"{type(model).__name__} is bound already, so that its layers cannot be changed; call unbind() on its "
            "seams (close() on its engine) first."
        )
    hooks = [
        module.register_forward_pre_hook(_record_call, with_kwargs=True)
        for module in model.modules()
        if isinstance(module, ConstantAttention)
    ]
    try:
        return bind(model, batch)
    finally:
        for hook in hooks:
            hook.remove()


def _record_call(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Report the call of a pruned layer to the dry run, which otherwise sees only real attention."""
    hidden = (args[0] if args else kwargs["hidden_states"]).unsqueeze(1)
    record_attention(module, hidden, hidden)


@dataclass(frozen=True)
class Pruned:
    """What `prune` did: the layers it pruned, those that still have attention, and the numbers of parameters."""

    layers: tuple[int, ...]
    remaining: tuple[int, ...]
    parameters_before: int
    parameters_after: int

    def __str__(self) -> str:
        saved = 1 - self.parameters_after / self.parameters_before
        return (
            f"pruned layers {', '.join(map(str, self.layers))}; "
            f"layers with attention: {', '.join(map(str, self.remaining)) or 'none'}; "
            f"parameters {self.parameters_before:,} -> {self.parameters_after:,} (-{saved:.1%})"
        )


def prune(model: Any, layers: Layers, batch: Mapping[str, Any] | None = None) -> Pruned:
    """Make the attention of these encoder layers the constant 1/n, in place.

    Layers that share one module, as in ALBERT, can only be pruned together. If one of the layers cannot be pruned, the
    model is not changed at all.

    Args:
        model: A transformers model that is not bound.
        layers: The self-attention layers of the encoder, counted from 0: a number, a list, a slice, "first" or "all".
        batch: Inputs for the dry run that finds the layers. Models of text and images need none.

    Returns:
        The pruned parts. Print it for a summary.
    """
    return prune_layers(model, layers, "layers", batch)


def prune_layers(model: Any, layers: Layers, field: str, batch: Mapping[str, Any] | None = None) -> Pruned:
    """Like `prune`. Error messages name `field` as the source of `layers`."""
    layers = _with_python_numbers(layers)
    present = encoder_layers(model, batch)
    name = type(model).__name__
    if not present:
        raise ValueError(
            f"{field} is {layers!r}, but {name} has no bidirectional self attention: uniform over the past, or over "
            "another sequence, is not one vector; only layers of an encoder can be pruned."
        )
    chosen = set(select([layer.site for layer in present], layers, field))
    wanted = [layer for layer in present if layer.site.index in chosen]
    for layer in wanted:
        reason = _reason_against(layer) or _reason_of_sharing(layer, present, wanted)
        if reason is not None:
            prunable = [str(layer.site.layer) for layer in present if _reason_against(layer) is None]
            raise ValueError(
                f"{field} is {layers!r}, but layer {layer.site.layer} of {name} {reason}; allowed: "
                f"{', '.join(prunable) or 'none'}."
            )
    before = parameters_of(model)
    # All are created before the first is inserted, so that an error leaves the model unchanged.
    constants = {layer.site.name: _constant_attention(model, layer, wanted) for layer in wanted}
    for path, constant in constants.items():
        if constant.layout.o_outside:
            _set_submodule(model, constant.layout.output_path(path), nn.Identity())
        _set_submodule(model, path, constant)
    store_in_stock_layout(model)
    numbers = [layer.site.layer for layer in wanted]
    remaining = [layer.site.layer for layer in present if not layer.is_pruned and layer.site.index not in chosen]
    return Pruned(tuple(numbers), tuple(remaining), before, parameters_of(model))


def _with_python_numbers(layers: Any) -> Layers:
    """Convert integers of numpy and torch to Python's."""
    if isinstance(layers, (str, slice)):
        return layers
    numbers = layers if isinstance(layers, Iterable) else [layers]
    return [operator.index(number) if hasattr(number, "__index__") else number for number in numbers]


def parameters_of(model: nn.Module) -> int:
    """Return the number of parameters."""
    return sum(parameter.numel() for parameter in model.parameters())


def _set_submodule(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, child = path.rpartition(".")
    setattr(model.get_submodule(parent), child, module)


def _no_layout(layer: Layer) -> str:
    return f"is of class {type(layer.module).__name__}, whose projections are not in attendrop.prune.layouts.LAYOUTS"


def _reason_against(layer: Layer) -> str | None:
    """Return why this layer cannot be pruned, whatever the other layers are."""
    if layer.is_pruned:
        return "is pruned already"
    if layer.layout is None:
        return _no_layout(layer)
    window = getattr(layer.module, "sliding_window", None)
    if window is not None:
        return f"attends within a sliding window ({window} tokens to each side), where uniform is not one vector"
    return None


def _reason_of_sharing(layer: Layer, present: Sequence[Layer], wanted: Sequence[Layer]) -> str | None:
    """Return why this layer cannot be pruned without the layers that share its module."""
    together = [other for other in present if other.module is layer.module]
    if all(other in wanted for other in together):
        return None
    numbers = ", ".join(str(other.site.layer) for other in together)
    return f"shares its module with layers {numbers}, of which all or none must be pruned"


def _constant_attention(model: nn.Module, layer: Layer, wanted: Sequence[Layer]) -> ConstantAttention:
    layout = layer.known_layout()
    value: Any = layer.module.get_submodule(layout.v)
    output: Any = model.get_submodule(layout.output_path(layer.site.name))
    for linear in (value, output):
        if type(linear) is not nn.Linear:
            raise ValueError(
                f"{layer.site.name} projects with {type(linear).__module__}.{type(linear).__name__}, which cannot be "
                "multiplied out; it must be torch.nn.Linear (merge adapters and undo quantisation first)."
            )
    numbers = [other.site.layer for other in wanted if other.module is layer.module]
    return ConstantAttention(layer.module, output, layout, numbers)
