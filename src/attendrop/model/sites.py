"""Finds the attention calls and the blocks of a model by running it once on a few tokens.

Declarations are not trusted: T5 names the wrong class, and ALBERT calls one module many times.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

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
    heads: int  # of the query
    groups: int  # heads of key and value: fewer where heads share them
    width: int  # of a head
    block: int  # the number of the block that it is in

    def __str__(self) -> str:
        return f"{self.index}: {self.name} ({self.kind} attention, layer {self.layer})"


@dataclass
class Call:
    """What the dry run saw of one attention call."""

    module: Any
    queries: int
    keys: int
    heads: int
    groups: int
    width: int


@dataclass
class Event:
    """A module was entered or left, or attention was called."""

    kind: str  # "enter", "leave" or "attend"
    module: nn.Module
    takes: Sequence[int] = ()  # shapes, where they are those of tensors
    gives: Sequence[int] = ()


@dataclass
class Watch:
    """All that a dry run saw."""

    calls: list[Call] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)


_seen: Watch | None = None  # of the dry run that is going on


@contextmanager
def watching(model: nn.Module) -> Iterator[Watch]:
    """Every call of a module of `model` inside is noted, and every attention call."""
    global _seen
    seen = Watch()

    def shape(x: Any) -> Sequence[int]:
        x = x[0] if isinstance(x, tuple) and x else x
        return tuple(x.shape) if isinstance(x, Tensor) else ()

    def enter(module: nn.Module, args: Any) -> None:
        seen.events.append(Event("enter", module))

    def leave(module: nn.Module, args: Any, result: Any) -> None:
        seen.events.append(Event("leave", module, shape(args), shape(result)))

    hooks = [module.register_forward_pre_hook(enter) for module in model.modules()]
    hooks += [module.register_forward_hook(leave) for module in model.modules()]
    _seen = seen
    try:
        yield seen
    finally:
        _seen = None
        for hook in hooks:
            hook.remove()


def is_watching() -> bool:
    return _seen is not None


def note(module: nn.Module, query: Tensor, key: Tensor) -> None:
    if _seen is not None:
        _seen.calls.append(
            Call(module, query.shape[2], key.shape[2], query.shape[1], key.shape[1], width=query.shape[3])
        )
        _seen.events.append(Event("attend", module))


def stack_and_block(name: str, modules: Mapping[str, nn.Module]) -> tuple[str, str]:
    """The outermost list on the way to `name`, and the member of that list: the stack and the block."""
    parts = name.split(".")
    for end in range(1, len(parts)):
        stack = ".".join(parts[:end])
        if isinstance(modules.get(stack), nn.ModuleList):
            return stack, ".".join(parts[: end + 1])
    return "", name


@dataclass
class Block:
    """One call of a block."""

    name: str  # the module's qualified name; ALBERT calls one module many times
    feed_forward: str | None = None  # the name of the last linear map of its feed-forward, where there is one


def number(watch: Watch, model: nn.Module) -> tuple[list[Site], list[Block]]:
    """Sites and blocks, both in calling order."""
    modules = dict(model.named_modules())
    names = {id(module): name for name, module in modules.items()}
    places = [stack_and_block(names[id(call.module)], modules) for call in watch.calls]
    blocks, block_of = _blocks(watch.events, {block for _, block in places}, names, modules)
    kinds = [
        "cross" if call.queries != call.keys or _CROSS.search(names[id(call.module)]) else "self"
        for call in watch.calls
    ]
    several = len({(stack, kind) for (stack, _), kind in zip(places, kinds, strict=True)}) > 1
    layers: Counter[tuple[str, str]] = Counter()
    sites: list[Site] = []
    for index, (call, (stack, _), kind) in enumerate(zip(watch.calls, places, kinds, strict=True)):
        layer = layers[stack, kind]
        layers[stack, kind] += 1
        prefix = f"{(stack.split('.')[-2:] or ['model'])[0]}_{kind}_" if several else ""
        sites.append(
            Site(
                index, names[id(call.module)], stack, kind, layer, call.queries, call.keys, f"{prefix}layer_{layer}",
                call.heads, call.groups, call.width, block_of[index],
            )
        )  # fmt: skip
    return sites, blocks


def _blocks(
    events: Sequence[Event], wanted: set[str], names: Mapping[int, str], modules: Mapping[str, nn.Module]
) -> tuple[list[Block], list[int]]:
    """The calls of blocks, and for each attention call the number of the block that it is in."""
    attention = tuple(f"{names[id(event.module)]}." for event in events if event.kind == "attend")
    maps = {name for name in _linear_maps(modules) if not name.startswith(attention)}
    blocks: list[Block] = []
    block_of: list[int] = []
    last: list[tuple[str, Event]] = []  # the linear maps of the block that is going on
    for event in events:
        name = names[id(event.module)]
        if event.kind == "enter" and name in wanted:
            blocks.append(Block(name))
            last = []
        elif event.kind == "attend":
            block_of.append(len(blocks) - 1)
        elif name in maps:
            if event.kind == "leave" and blocks and name.startswith(f"{blocks[-1].name}."):
                last.append((name, event))
        elif event.kind == "leave" and name in wanted:
            has_experts = any(n.startswith(f"{name}.") and n.endswith(".experts") for n in modules)
            blocks[-1].feed_forward = None if has_experts else _feed_forward(last, event.gives)
    return blocks, block_of


def _feed_forward(maps: Sequence[tuple[str, Event]], hidden: Sequence[int]) -> str | None:
    """The last map, where it gives hidden states and another map feeds it: widths match, or gate and value are one."""
    if len(maps) < 2:
        return None
    (_, before), (name, event) = maps[-2:]
    is_fed = bool(event.takes and before.gives) and before.gives[-1] % event.takes[-1] == 0
    return name if is_fed and tuple(event.gives) == tuple(hidden) else None


def _linear_maps(modules: Mapping[str, nn.Module]) -> list[str]:
    """The names of all linear maps; of those that a tuner such as LoRA wraps, the wrapper's."""
    found: list[str] = []
    for name, module in modules.items():  # in pre-order: a wrapper comes before what it wraps
        inside = bool(found) and name.startswith(f"{found[-1]}.")
        if not inside and isinstance(getattr(module, "base_layer", module), (nn.Linear, Conv1D)):
            found.append(name)
    return found


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
