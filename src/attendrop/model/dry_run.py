"""Finds the attention calls and the blocks of a model by running it once on a few tokens.

Declarations are not reliable: T5 names the wrong class, and ALBERT calls one module many times.
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

from .pooled_config import encodes_apart
from .sites import Site, unwrapped
from .sounds import convolutions_of, few_samples, frames_of

# Cross attention is recognised by its lengths, except in models that feed one sequence to encoder and decoder.
_CROSS = re.compile(r"cross|encoder_attn|EncDec", re.IGNORECASE)


@dataclass
class AttentionCall:
    """One attention call that the dry run observed."""

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
    input_shape: Sequence[int] = ()
    output_shape: Sequence[int] = ()


@dataclass
class Trace:
    """All events of a dry run, in order."""

    samples: int | None = None  # the length of the sound, where the model takes samples
    outputs: dict[str, tuple[int, ...]] = field(default_factory=dict)  # name -> shape
    calls: list[AttentionCall] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)


@dataclass
class Block:
    """One call of a block."""

    name: str  # the module's qualified name; ALBERT calls one module many times
    feed_forward: str | None = None  # the name of the last linear layer of its feed-forward, where there is one


# The traces of the dry runs that are under way, for each module of their models: several threads may bind at once.
_traces: dict[int, Trace] = {}


@contextmanager
def traced(model: nn.Module) -> Iterator[Trace]:
    """Record every call of a module of `model` in the block, and every attention call."""
    trace = Trace()

    def shape(x: Any) -> Sequence[int]:
        x = x[0] if isinstance(x, tuple) and x else x
        return tuple(x.shape) if isinstance(x, Tensor) else ()

    def enter(module: nn.Module, args: Any) -> None:
        trace.events.append(Event("enter", module))

    def leave(module: nn.Module, args: Any, result: Any) -> None:
        trace.events.append(Event("leave", module, shape(args), shape(result)))

    hooks = [module.register_forward_pre_hook(enter) for module in model.modules()]
    hooks += [module.register_forward_hook(leave) for module in model.modules()]
    modules = [id(module) for module in model.modules()]
    _traces.update(dict.fromkeys(modules, trace))
    try:
        yield trace
    finally:
        for module in modules:
            _traces.pop(module, None)
        for hook in hooks:
            hook.remove()


def shapes_of(outputs: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the outputs that have names."""
    named = outputs.items() if isinstance(outputs, Mapping) else ()
    return {name: tuple(value.shape) for name, value in named if isinstance(value, Tensor)}


def is_traced(module: nn.Module) -> bool:
    """Return whether a dry run of the model of this module is under way."""
    return bool(_traces) and id(module) in _traces


def record_attention(module: nn.Module, query: Tensor, key: Tensor) -> None:
    """Add an attention call to the trace of the dry run, if one is under way."""
    if is_traced(module):
        trace = _traces[id(module)]
        trace.calls.append(
            AttentionCall(module, query.shape[2], key.shape[2], query.shape[1], key.shape[1], width=query.shape[3])
        )
        trace.events.append(Event("attend", module))


def stack_and_block(name: str, modules: Mapping[str, nn.Module]) -> tuple[str, str]:
    """Return the outermost module list on the path to `name`, and the member of that list: the stack and the block."""
    parts = name.split(".")
    for end in range(1, len(parts)):
        stack = ".".join(parts[:end])
        if isinstance(modules.get(stack), nn.ModuleList):
            return stack, ".".join(parts[: end + 1])
    return "", name


def sites_and_blocks(trace: Trace, model: nn.Module) -> tuple[list[Site], list[Block]]:
    """Return the sites and the blocks of the model, both in calling order."""
    modules = dict(model.named_modules())
    names = {id(module): name for name, module in modules.items()}
    paths = [stack_and_block(names[id(call.module)], modules) for call in trace.calls]
    blocks, block_of = _blocks(trace.events, {block for _, block in paths}, names, modules)
    kinds = [
        "cross" if call.queries != call.keys or _CROSS.search(names[id(call.module)]) else "self"
        for call in trace.calls
    ]
    has_several = len({(stack, kind) for (stack, _), kind in zip(paths, kinds, strict=True)}) > 1
    layers: Counter[tuple[str, str]] = Counter()
    convolutions = convolutions_of(unwrapped(model).config) if trace.samples is not None else ()
    frames = frames_of(trace.samples, convolutions) if trace.samples is not None else None
    sites: list[Site] = []
    for index, (call, (stack, _), kind) in enumerate(zip(trace.calls, paths, kinds, strict=True)):
        layer = layers[stack, kind]
        layers[stack, kind] += 1
        prefix = f"{(stack.split('.')[-2:] or ['model'])[0]}_{kind}_" if has_several else ""
        sites.append(
            Site(
                index, names[id(call.module)], stack, kind, layer, call.queries, call.keys, f"{prefix}layer_{layer}",
                call.heads, call.groups, call.width, block_of[index],
                convolutions if call.queries == call.keys == frames else (),
            )
        )  # fmt: skip
    return sites, blocks


def _blocks(
    events: Sequence[Event], block_names: set[str], names: Mapping[int, str], modules: Mapping[str, nn.Module]
) -> tuple[list[Block], list[int]]:
    """Return the calls of blocks, and for each attention call the number of the block that it is in."""
    attention = tuple(f"{names[id(event.module)]}." for event in events if event.kind == "attend")
    linears = {name for name in _linear_layers(modules) if not name.startswith(attention)}
    blocks: list[Block] = []
    block_of: list[int] = []
    called: list[tuple[str, Event]] = []  # the linear layers that the current block has called
    for event in events:
        name = names[id(event.module)]
        if event.kind == "enter" and name in block_names:
            blocks.append(Block(name))
            called = []
        elif event.kind == "attend":
            block_of.append(len(blocks) - 1)
        elif name in linears:
            if event.kind == "leave" and blocks and name.startswith(f"{blocks[-1].name}."):
                called.append((name, event))
        elif event.kind == "leave" and name in block_names:
            has_experts = any(n.startswith(f"{name}.") and n.endswith(".experts") for n in modules)
            blocks[-1].feed_forward = None if has_experts else _feed_forward(called, event.output_shape)
    return blocks, block_of


def _feed_forward(called: Sequence[tuple[str, Event]], hidden: Sequence[int]) -> str | None:
    """Return the last linear layer, if it returns hidden states and reads what another one returns.

    That is so if the widths match, or if the other layer returns gate and value in one tensor.
    """
    if len(called) < 2:
        return None
    (_, before), (name, last) = called[-2:]
    reads_it = bool(last.input_shape and before.output_shape) and before.output_shape[-1] % last.input_shape[-1] == 0
    return name if reads_it and tuple(last.output_shape) == tuple(hidden) else None


def _linear_layers(modules: Mapping[str, nn.Module]) -> list[str]:
    """Return the names of all linear layers; of those that a tuner such as LoRA wraps, the name of the wrapper."""
    names: list[str] = []
    for name, module in modules.items():  # in pre-order: a wrapper comes before what it wraps
        is_inside = bool(names) and name.startswith(f"{names[-1]}.")
        if not is_inside and isinstance(getattr(module, "base_layer", module), (nn.Linear, Conv1D)):
            names.append(name)
    return names


def word_embeddings(trace: Trace, model: nn.Module) -> tuple[nn.Module | None, int]:
    """Return the module that looks up the tokens of the only stack, or of the encoder, and how often a pass calls it.

    None where no token ids are looked up, as in models of images and sounds.
    """
    inner: Any = unwrapped(model)
    try:
        stack = inner.get_encoder() if getattr(inner.config, "is_encoder_decoder", False) else inner
        module = stack.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        return None, 0
    calls = [event for event in trace.events if event.kind == "leave" and event.module is module]
    looks_up = all(len(event.output_shape) == len(event.input_shape) + 1 for event in calls)
    return (module, len(calls)) if calls and looks_up else (None, 0)


def few_tokens(model: nn.Module, config: Any) -> dict[str, Tensor]:
    """Return the smallest input on which every attention layer runs. Source and target differ in length on purpose."""
    device = next(model.parameters()).device
    main = getattr(model, "main_input_name", "input_ids")
    if main == "pixel_values":
        size = getattr(config, "image_size", 224)
        height, width = (size, size) if isinstance(size, int) else size
        dtype = next(model.parameters()).dtype
        channels = getattr(config, "num_channels", 3)
        return {"pixel_values": torch.zeros(1, channels, height, width, device=device, dtype=dtype)}
    sound = few_samples(main, config)
    if sound is not None:
        return {name: x.to(next(model.parameters())) for name, x in sound.items()}
    if main != "input_ids":
        raise ValueError(
            f"{type(model).__name__} takes {main!r}, for which no example can be created; pass one as bind(model, "
            "batch=...)."
        )
    has_rows = type(model).__name__.endswith("ForMultipleChoice") or encodes_apart(config)
    shape = (1, 2, 5) if has_rows else (1, 5)
    inputs = {"input_ids": torch.full(shape, 3, device=device)}
    if getattr(config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = torch.full((1, 4), 3, device=device)
        eos = getattr(config, "eos_token_id", None)
        if type(model).__name__.endswith("ForSequenceClassification") and isinstance(eos, int):
            # These read the state of the end token, so there must be one.
            inputs["input_ids"][..., -1] = eos
            del inputs["decoder_input_ids"]
    return inputs
