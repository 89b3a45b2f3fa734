"""Attention sites: the attention calls of a forward pass, how they are numbered and selected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from ..utils.batches import batch_size
from .sounds import Convolutions, frames_of

Layers = str | int | Sequence[int] | slice

# The attention of one part of an encoder-decoder model, as a value of `layers`.
PARTS = ("encoder", "decoder", "cross")


@dataclass(frozen=True)
class Site:
    """One attention call of a forward pass."""

    index: int  # in calling order over the whole model
    name: str  # the module's qualified name
    stack: str  # the name of the module list that its block is in
    kind: str  # "self" or "cross"
    layer: int  # its number among the calls of its stack and kind
    queries: int  # lengths in the dry run; the only lengths of an image model
    keys: int
    label: str  # a short name: "layer_3", or "decoder_cross_layer_3" where layer numbers are not unique
    heads: int  # of the query
    groups: int  # heads of key and value: fewer where query heads share them
    width: int  # of a head
    block: int  # the number of the block that it is in
    convolutions: Convolutions = ()  # what turns samples into the positions of a model that takes sounds of any length

    def __str__(self) -> str:
        return f"{self.index}: {self.name} ({self.kind} attention, layer {self.layer})"

    @property
    def part(self) -> str:
        """Return "cross", "decoder" or "encoder"; a single stack is an encoder, unless its name says decoder."""
        return "cross" if self.kind == "cross" else "decoder" if "decoder" in self.stack else "encoder"

    def is_over_input(self, sites: Sequence[Site]) -> bool:
        """Return whether it is self attention over the model's input: that of the only stack, or of the encoder."""
        return self.kind == "self" and self.stack == sites[0].stack


def pretrained_part(model: nn.Module) -> nn.Module:
    """Return the base model, outside of which everything is the head.

    It has the name `base_model_prefix`. In a class without a module of that name, such as Whisper's for sounds, it is
    the only transformers model among the modules.

    Args:
        model: a transformers model; PEFT, DDP and torch.compile may wrap it.
    """
    inner = unwrapped(model)
    inside = [module for module in inner.children() if isinstance(module, PreTrainedModel)]
    return inside[0] if inner.base_model is inner and len(inside) == 1 else inner.base_model


def unwrapped(model: nn.Module) -> Any:
    """Return the transformers model inside of torch.compile, DDP and PEFT, or the only one in a pipeline of modules.

    Models for embeddings are such pipelines: a transformers model, a pooling, maybe a linear layer.
    """
    for attribute in ("_orig_mod", "module"):
        inner = getattr(model, attribute, None)
        if isinstance(inner, nn.Module):
            return unwrapped(inner)
    base = getattr(model, "get_base_model", None)  # PEFT
    if base is not None:
        return base()
    inside = transformers_inside(model) if isinstance(model, nn.Sequential) else []
    return inside[0] if len(inside) == 1 else model


def transformers_inside(model: nn.Module) -> list[nn.Module]:
    """Return the transformers models inside of a module, without those that are part of another one."""
    if isinstance(model, PreTrainedModel):
        return [model]
    return [inner for child in model.children() for inner in transformers_inside(child)]


def called_by_name(model: nn.Module) -> nn.Module:
    """Return the module that takes inputs by name: the model, or the transformers model in a pipeline."""
    return unwrapped(model) if isinstance(model, nn.Sequential) else model


def map_shape(site: Site, batch: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return rows, queries and keys of the site's attention map on `batch`, without running the model."""
    ids = batch.get("input_ids")
    if ids is None:
        sound = batch.get("input_values")
        if site.convolutions and sound is not None:
            frames = frames_of(int(sound.shape[-1]), site.convolutions)
            return sound.shape[0], frames, frames
        return batch_size(batch), site.queries, site.keys
    rows, length = ids.numel() // ids.shape[-1], ids.shape[-1]
    if site.kind == "self" and "decoder" not in site.stack:
        return rows, length, length
    target = batch.get("decoder_input_ids", batch.get("labels"))
    if "decoder" not in site.stack or target is None or target.dim() < 2:
        target = ids
    queries = target.shape[-1]
    return rows, queries, length if site.kind == "cross" else queries


def select(sites: Sequence[Site], layers: Layers, owner: str = "layers") -> list[int]:
    """Return the indices of the sites that `layers` selects.

    Args:
        sites: the sites of a model.
        layers: "all", "first", a layer number, a list or a slice of layer numbers; or, in a model with an encoder and
            a decoder, "encoder", "decoder" (self attention) or "cross". Numbers count in each stack by itself, for
            self and cross attention alike.
        owner: the name of the setting, for error messages.
    """
    if layers in PARTS:
        return _select_part(sites, str(layers), owner)
    depth = 1 + max(site.layer for site in sites)
    numbers = _layer_numbers(layers, depth, owner)
    selected = [site.index for site in sites if site.layer in numbers]
    if not selected:
        raise ValueError(f"{owner} is {layers!r}, which selects no layer; this model has layers 0 to {depth - 1}.")
    return selected


def _select_part(sites: Sequence[Site], part: str, owner: str) -> list[int]:
    parts = sorted({site.part for site in sites})
    if len(parts) == 1:
        raise ValueError(f"{owner} is {part!r}, and this model has no encoder and decoder; use 'all', for example.")
    if part not in parts:
        raise ValueError(f"{owner} is {part!r}; this model has {' and '.join(parts)} attention.")
    return [site.index for site in sites if site.part == part]


def _layer_numbers(layers: Layers, depth: int, owner: str) -> set[int]:
    if isinstance(layers, str) or layers is None:
        if layers not in ("first", "all"):
            raise ValueError(
                f"{owner} is {layers!r}; it must be 'first', 'all', 'encoder', 'decoder', 'cross', a list of layer "
                f"numbers from 0 to {depth - 1}, or a slice."
            )
        return {0} if layers == "first" else set(range(depth))
    if isinstance(layers, slice):
        return set(range(depth)[layers])
    numbers = [layers] if isinstance(layers, int) else list(layers)
    for n in numbers:
        if not isinstance(n, int) or not -depth <= n < depth:
            raise ValueError(
                f"{owner} is {layers!r}, but there is no layer {n!r}; this model has layers 0 to {depth - 1}."
            )
    return {n % depth for n in numbers}
