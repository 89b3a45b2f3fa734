"""Makes a shallower model by leaving blocks out, as after LayerDrop (arXiv 1909.11556).

    rate = 0.5    drops blocks 2, 4, 6 … counted from 1: every other one
    rate = p      drops the blocks d with d ≡ 0 mod ⌊1/p⌋

The result is an ordinary model of its class: `save_pretrained` and plain `from_pretrained` work, and so do caches,
which go by the number of a block.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ..model.dry_run import stack_and_block
from ..model.seams import bind
from ..model.sites import Layers

# Where a configuration keeps the number of blocks, by the kind of stack; the first name that it has.
_DEPTHS = {
    "decoder": ("decoder_layers", "num_decoder_layers"),
    "encoder": ("encoder_layers", "num_layers"),
    "only": ("num_hidden_layers",),
}


def every_other(depth: int, rate: float = 0.5) -> list[int]:
    """The blocks that stay, counted from 0, where a share of about `rate` goes, evenly spaced."""
    if not isinstance(rate, (int, float)) or isinstance(rate, bool) or not 0 < rate <= 0.5:
        raise ValueError(f"rate is {rate!r}; it must be above 0 and at most 0.5, or say which layers to keep.")
    return [block for block in range(depth) if (block + 1) % int(1 / rate)]


def drop_layers(
    model: Any,
    keep: Layers | None = None,
    rate: float = 0.5,
    stack: str | None = None,
    batch: Mapping[str, Any] | None = None,
) -> dict[str, list[int]]:
    """Removes blocks of `model`, in place, and returns for each stack the ones that stayed.

    `keep` counts the blocks of each stack from 0: a list, a slice, a number, "first" or "all"; without it `rate` says
    how many go. In a model with an encoder and a decoder both are shortened, or the one that `stack` names. `batch` is
    an example for the dry run that finds the blocks; text and image models need none. Nothing is changed where
    something is refused.
    """
    if not isinstance(model, PreTrainedModel):
        raise ValueError(f"model is a {type(model).__name__}; it must be a transformers model (merge adapters first).")
    found = _stacks(model, batch)
    if stack is not None:
        if stack not in _DEPTHS or not any(kind == stack for kind, _ in found.values()):
            kinds = sorted({kind for kind, _ in found.values()} - {"only"})
            raise ValueError(
                f"stack is {stack!r}; {type(model).__name__} has {' and '.join(map(repr, kinds)) or 'only one'}."
            )
        found = {path: (kind, depth) for path, (kind, depth) in found.items() if kind == stack}
    kept = {path: _chosen(keep, rate, depth) for path, (_, depth) in found.items()}
    config = copy.deepcopy(model.config)
    for path, (kind, depth) in found.items():
        _shorten_config(config, kind, depth, kept[path], type(model).__name__)
    _check(model, config, kept)
    for path, (kind, depth) in found.items():
        _shorten(model, path, kept[path])
        owner: Any = model.get_submodule(path.rpartition(".")[0])
        for each in {id(c): c for c in (model.config, getattr(owner, "config", None)) if c is not None}.values():
            _shorten_config(each, kind, depth, kept[path], type(model).__name__)
    return kept


def _stacks(model: Any, batch: Mapping[str, Any] | None) -> dict[str, tuple[str, int]]:
    """The lists of blocks: path -> kind ("encoder", "decoder", "only") and depth."""
    seams = bind(model, batch)
    names = list(seams.blocks)
    seams.unbind()
    modules = dict(model.named_modules())
    calls: dict[str, list[str]] = {}
    for name in names:
        calls.setdefault(stack_and_block(f"{name}.x", modules)[0], []).append(name)
    two = bool(getattr(model.config, "is_encoder_decoder", False))
    found = {}
    for path, blocks in calls.items():
        if path == "" or blocks != [f"{path}.{i}" for i in range(len(modules[path]))]:
            raise ValueError(
                f"{type(model).__name__} does not call the blocks of {path or 'its only one'!r} one after the other, "
                "each once, so that none can be taken out."
            )
        found[path] = ("decoder" if "decoder" in path else "encoder") if two else "only", len(blocks)
    return found


def _chosen(keep: Layers | None, rate: float, depth: int) -> list[int]:
    if keep is None:
        return every_other(depth, rate)
    if isinstance(keep, str):
        if keep not in ("first", "all"):
            raise ValueError(f"keep is {keep!r}; it must be 'first', 'all', a list of numbers, or a slice.")
        return [0] if keep == "first" else list(range(depth))
    if isinstance(keep, slice):
        numbers = list(range(depth))[keep]
    else:
        numbers = [operator.index(n) for n in (keep if isinstance(keep, Iterable) else [keep])]
    if not all(-depth <= n < depth for n in numbers):
        raise ValueError(f"keep is {keep!r}, but there are only layers 0 to {depth - 1}.")
    chosen = sorted({n % depth for n in numbers})
    if not chosen:
        raise ValueError(f"keep is {keep!r}, which leaves no layer; it must name one of 0 to {depth - 1} at least.")
    return chosen


def _shorten_config(config: Any, kind: str, depth: int, kept: list[int], name: str) -> None:
    field = next((field for field in _DEPTHS[kind] if hasattr(config, field)), None)
    if field is None or getattr(config, field) not in (depth, len(kept)):
        raise ValueError(f"the configuration of {name} has no number of layers of its {kind} stack that can be set.")
    if getattr(config, field) == len(kept):
        return  # a configuration that encoder and decoder share has been here
    setattr(config, field, len(kept))
    for attribute, value in vars(config).items():
        if kind == "only" and isinstance(value, list) and len(value) == depth and "layer" in attribute:
            setattr(config, attribute, [value[i] for i in kept])


def _check(model: Any, config: Any, kept: Mapping[str, list[int]]) -> None:
    """A fresh model of the new configuration must have the very weights that will be left."""
    with torch.device("meta"):
        fresh = {name: tuple(x.shape) for name, x in type(model)(config).state_dict().items()}
    left: dict[str, tuple[int, ...]] = {}
    for name, x in model.state_dict().items():
        path = next((path for path in kept if name.startswith(f"{path}.")), None)
        if path is not None:
            number, _, rest = name[len(path) + 1 :].partition(".")
            if int(number) not in kept[path]:
                continue
            name = f"{path}.{kept[path].index(int(number))}.{rest}"
        left[name] = tuple(x.shape)
    odd = sorted(name for name in fresh.keys() | left.keys() if fresh.get(name) != left.get(name))
    if odd:
        raise ValueError(
            f"{type(model).__name__} cannot do without these layers: {odd[0]} would be "
            + ("missing" if odd[0] not in left else "left over" if odd[0] not in fresh else "of another shape")
            + f" (kept: {', '.join(map(str, next(iter(kept.values()))))})."
        )


def _shorten(model: nn.Module, path: str, kept: list[int]) -> None:
    blocks: Any = model.get_submodule(path)
    for new, old in enumerate(kept):
        for module in blocks[old].modules():
            for attribute in ("layer_idx", "layer_id", "layer_index"):
                if getattr(module, attribute, None) == old:
                    setattr(module, attribute, new)
    parent, _, child = path.rpartition(".")
    setattr(model.get_submodule(parent), child, type(blocks)([blocks[i] for i in kept]))
