"""Finds the attention calls and the blocks of a model by running it once on a few tokens.

Declarations are not trusted: T5 names the wrong class, and ALBERT calls one module many times.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

# Lengths tell cross attention apart, except in models that feed one sequence to encoder and decoder.
_CROSS = re.compile(r"cross|encoder_attn|EncDec", re.IGNORECASE)

Layers = str | int | Sequence[int] | slice


@dataclass(frozen=True)
class Site:
    """One attention call of a forward pass."""

    index: int  # in calling order over the whole model
    name: str  # the module's qualified name
    stack: str  # the list of blocks that it is in
    kind: str  # "self" or "cross"
    layer: int  # its number among the calls of its stack and kind
    queries: int  # of the dry run: a model of images has no other length
    keys: int
    label: str  # a short name: "layer_3", or "decoder_cross_layer_3" where layer numbers are not unique

    def __str__(self) -> str:
        return f"{self.index}: {self.name} ({self.kind} attention, layer {self.layer})"


@dataclass
class Call:
    """What the dry run saw of one attention call."""

    module: Any
    queries: int
    keys: int


_seen: list[Call] | None = None  # the calls of the dry run that is going on


@contextmanager
def watching() -> Iterator[list[Call]]:
    """Every attention call inside is noted."""
    global _seen
    calls: list[Call] = []
    _seen = calls
    try:
        yield calls
    finally:
        _seen = None


def is_watching() -> bool:
    return _seen is not None


def note(module: nn.Module, query: Tensor, key: Tensor) -> None:
    if _seen is not None:
        _seen.append(Call(module, query.shape[2], key.shape[2]))


def stack_and_block(name: str, modules: Mapping[str, nn.Module]) -> tuple[str, str]:
    """The outermost list on the way to `name`, and the member of that list: the stack and the block."""
    parts = name.split(".")
    for end in range(1, len(parts)):
        stack = ".".join(parts[:end])
        if isinstance(modules.get(stack), nn.ModuleList):
            return stack, ".".join(parts[: end + 1])
    return "", name


def number(calls: Sequence[Call], model: nn.Module) -> tuple[list[Site], list[str]]:
    """Sites and the names of the blocks, both in calling order."""
    modules = dict(model.named_modules())
    names = {id(module): name for name, module in modules.items()}
    places: list[tuple[str, str, str, int, int]] = []
    blocks: list[str] = []
    for call in calls:
        name = names[id(call.module)]
        stack, block = stack_and_block(name, modules)
        is_cross = call.queries != call.keys or _CROSS.search(name) is not None
        places.append((name, stack, "cross" if is_cross else "self", call.queries, call.keys))
        if block not in blocks:
            blocks.append(block)
    several = len({place[1:3] for place in places}) > 1
    layers: Counter[tuple[str, str]] = Counter()
    sites: list[Site] = []
    for index, (name, stack, kind, queries, keys) in enumerate(places):
        layer = layers[stack, kind]
        layers[stack, kind] += 1
        prefix = f"{(stack.split('.')[-2:] or ['model'])[0]}_{kind}_" if several else ""
        sites.append(Site(index, name, stack, kind, layer, queries, keys, f"{prefix}layer_{layer}"))
    return sites, blocks


def map_shape(site: Site, batch: Mapping[str, Any]) -> tuple[int, int, int]:
    """Rows, queries and keys of the site's attention map on `batch`, without running the model."""
    ids = batch.get("input_ids")
    if ids is None:
        rows = next(value for value in batch.values() if isinstance(value, Tensor) and value.dim()).shape[0]
        return rows, site.queries, site.keys
    rows, length = ids.numel() // ids.shape[-1], ids.shape[-1]
    if site.kind == "self" and "decoder" not in site.stack:
        return rows, length, length
    target = batch.get("decoder_input_ids", batch.get("labels"))
    if "decoder" not in site.stack or target is None or target.dim() < 2:
        target = ids
    queries = target.shape[-1]
    return rows, queries, length if site.kind == "cross" else queries


def unwrapped(model: nn.Module) -> Any:
    """The transformers model inside of torch.compile, DDP and PEFT."""
    for attribute in ("_orig_mod", "module"):
        inner = getattr(model, attribute, None)
        if isinstance(inner, nn.Module):
            return unwrapped(inner)
    base = getattr(model, "get_base_model", None)  # PEFT
    return base() if base is not None else model


def few_tokens(model: nn.Module, config: Any) -> dict[str, Tensor]:
    """The smallest input on which every attention layer runs. Source and target differ in length on purpose."""
    device = next(model.parameters()).device
    main = getattr(model, "main_input_name", "input_ids")
    if main == "pixel_values":
        size = getattr(config, "image_size", 224)
        height, width = (size, size) if isinstance(size, int) else size
        dtype = next(model.parameters()).dtype
        channels = getattr(config, "num_channels", 3)
        return {"pixel_values": torch.zeros(1, channels, height, width, device=device, dtype=dtype)}
    if main != "input_ids":
        raise ValueError(
            f"{type(model).__name__} takes {main!r}, for which no example can be made up; pass one as bind(model, "
            "batch=...)."
        )
    shape = (1, 2, 5) if type(model).__name__.endswith("ForMultipleChoice") else (1, 5)
    inputs = {"input_ids": torch.full(shape, 3, device=device)}
    if getattr(config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = torch.full((1, 4), 3, device=device)
        eos = getattr(config, "eos_token_id", None)
        if type(model).__name__.endswith("ForSequenceClassification") and isinstance(eos, int):
            # These read the state of the end token, so there must be one.
            inputs["input_ids"][..., -1] = eos
            del inputs["decoder_input_ids"]
    return inputs


def select(sites: Sequence[Site], layers: Layers, owner: str = "layers") -> list[int]:
    """The indices of the sites that `layers` names: "first", "all", a number, a list or a slice of layer numbers.

    In a model with an encoder and a decoder the numbers count in each stack, for self and cross attention alike.
    """
    depth = 1 + max(site.layer for site in sites)
    if isinstance(layers, str):
        if layers not in ("first", "all"):
            raise ValueError(
                f"{owner} is {layers!r}; it must be 'first', 'all', a list of layer numbers from 0 to {depth - 1}, or "
                "a slice."
            )
        wanted = {0} if layers == "first" else set(range(depth))
    elif isinstance(layers, slice):
        wanted = set(range(depth)[layers])
    else:
        numbers = [layers] if isinstance(layers, int) else list(layers)
        for n in numbers:
            if not isinstance(n, int) or not -depth <= n < depth:
                raise ValueError(
                    f"{owner} is {layers!r}, but there is no layer {n!r}; this model has layers 0 to {depth - 1}."
                )
        wanted = {n % depth for n in numbers}
    chosen = [site.index for site in sites if site.layer in wanted]
    if not chosen:
        raise ValueError(f"{owner} is {layers!r}, which names no layer; this model has layers 0 to {depth - 1}.")
    return chosen
