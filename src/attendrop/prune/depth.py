"""Makes a model shallower by removing blocks, after training with LayerDrop (arXiv 1909.11556).

    rate = 0.5    removes blocks 2, 4, 6 … counted from 1: every other one
    rate = p      removes the blocks d with d ≡ 0 mod ⌊1/p⌋

The result is an ordinary model of its class: `save_pretrained`, plain `from_pretrained` and key-value caches, which use
the number of a block, all work.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel

from ..model.dry_run import stack_and_block
from ..model.sites import Layers
from .stock_layout import constants_of, store_in_stock_layout
from .surgery import dry_bind

# The field of a configuration with the number of blocks, by the kind of stack: the first of these that it has.
_DEPTH_FIELDS = {
    "decoder": ("decoder_layers", "num_decoder_layers"),
    "encoder": ("encoder_layers", "num_layers"),
    "only": ("num_hidden_layers",),
}


class Stack(NamedTuple):
    """A list of blocks."""

    path: str
    kind: str  # "encoder", "decoder", or "only" in a model with one stack
    depth: int


def every_other(depth: int, rate: float = 0.5) -> list[int]:
    """Choose blocks to keep, evenly spaced.

    Args:
        depth: The number of blocks.
        rate: The approximate share to remove, above 0 and at most 0.5.

    Returns:
        The numbers of the blocks to keep, counted from 0.
    """
    if not isinstance(rate, (int, float)) or isinstance(rate, bool) or not 0 < rate <= 0.5:
        raise ValueError(f"rate is {rate!r}; it must be above 0 and at most 0.5, or use keep to name the layers.")
    return [block for block in range(depth) if (block + 1) % int(1 / rate)]


def drop_layers(
    model: Any,
    keep: Layers | None = None,
    rate: float = 0.5,
    stack: str | None = None,
    batch: Mapping[str, Any] | None = None,
) -> dict[str, list[int]]:
    """Remove blocks of a model, in place. If something is refused, the model is not changed.

    Args:
        model: A transformers model that is not bound.
        keep: The blocks of each stack to keep, counted from 0: a list, a slice, a number, "first" or "all".
        rate: Without `keep`: the approximate share of the blocks to remove; see `every_other`.
        stack: "encoder" or "decoder", to shorten only that one. By default both are.
        batch: Inputs for the dry run that finds the blocks. Models of text and images need none.

    Returns:
        The blocks that were kept, by the path of the stack.
    """
    if not isinstance(model, PreTrainedModel):
        raise ValueError(f"model is a {type(model).__name__}; it must be a transformers model (merge adapters first).")
    name = type(model).__name__
    stacks = _chosen_stacks(stacks_of(model, batch), stack, name)
    kept = {each.path: _kept_blocks(keep, rate, each.depth) for each in stacks}
    config = copy.deepcopy(model.config)
    for each in stacks:
        _shorten_config(config, each, kept[each.path], name)
    _check_weights(model, config, kept)
    for each in stacks:
        _remove_blocks(model, each.path, kept[each.path])
        owner: Any = model.get_submodule(each.path.rpartition(".")[0])
        configs = {id(c): c for c in (model.config, getattr(owner, "config", None)) if c is not None}
        for own_config in configs.values():
            _shorten_config(own_config, each, kept[each.path], name)
        _renumber_pruned(model, each.path, kept[each.path])
    return kept


def stacks_of(model: Any, batch: Mapping[str, Any] | None) -> list[Stack]:
    """Return the lists of blocks that the model calls.

    Args:
        model: A transformers model that is not bound.
        batch: Inputs for the dry run that finds the blocks. Models of text and images need none.
    """
    seams = dry_bind(model, batch)
    names = list(seams.blocks)
    seams.unbind()
    modules = dict(model.named_modules())
    calls: dict[str, list[str]] = {}
    for name in names:
        calls.setdefault(stack_and_block(f"{name}.x", modules)[0], []).append(name)
    has_two = bool(getattr(model.config, "is_encoder_decoder", False))
    stacks = []
    for path, blocks in calls.items():
        if path == "" or blocks != [f"{path}.{i}" for i in range(len(modules[path]))]:
            where = repr(path) if path else "the model"
            raise ValueError(
                f"{type(model).__name__} does not call the blocks of {where} one after the other, each once, so none "
                "can be removed."
            )
        kind = ("decoder" if "decoder" in path else "encoder") if has_two else "only"
        stacks.append(Stack(path, kind, len(blocks)))
    return stacks


def _chosen_stacks(stacks: Sequence[Stack], kind: str | None, name: str) -> list[Stack]:
    chosen = [stack for stack in stacks if kind in (None, stack.kind)]
    if kind is not None and (not chosen or kind not in _DEPTH_FIELDS):
        kinds = sorted({stack.kind for stack in stacks} - {"only"})
        raise ValueError(f"stack is {kind!r}; {name} has {' and '.join(map(repr, kinds)) or 'only one'}.")
    return chosen


def _kept_blocks(keep: Layers | None, rate: float, depth: int) -> list[int]:
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
    if not numbers:
        raise ValueError(f"keep is {keep!r}, which leaves no layer; it must name at least one of 0 to {depth - 1}.")
    return sorted({n % depth for n in numbers})


def _shorten_config(config: Any, stack: Stack, kept: Sequence[int], name: str) -> None:
    """Set the number of blocks, and shorten the lists that have one entry for each block."""
    field = next((field for field in _DEPTH_FIELDS[stack.kind] if hasattr(config, field)), None)
    if field is None or getattr(config, field) not in (stack.depth, len(kept)):
        raise ValueError(
            f"the configuration of {name} has no field with the number of layers of its {stack.kind} stack."
        )
    if getattr(config, field) == len(kept):
        return  # encoder and decoder share this configuration, and it is shortened already
    setattr(config, field, len(kept))
    for attribute, value in vars(config).items():
        if stack.kind == "only" and isinstance(value, list) and len(value) == stack.depth and "layer" in attribute:
            setattr(config, attribute, [value[i] for i in kept])


def _check_weights(model: Any, config: Any, kept: Mapping[str, list[int]]) -> None:
    """Compare the weights that will remain with those of a new model of the shortened configuration."""
    with torch.device("meta"):
        expected = {name: tuple(x.shape) for name, x in type(model)(config).state_dict().items()}
    remaining: dict[str, tuple[int, ...]] = {}
    for name, x in model.state_dict().items():
        path = next((path for path in kept if name.startswith(f"{path}.")), None)
        if path is not None:
            number, _, rest = name[len(path) + 1 :].partition(".")
            if int(number) not in kept[path]:
                continue
            name = f"{path}.{kept[path].index(int(number))}.{rest}"
        remaining[name] = tuple(x.shape)
    wrong = sorted(name for name in expected.keys() | remaining.keys() if expected.get(name) != remaining.get(name))
    if wrong:
        first = wrong[0]
        problem = "missing" if first not in remaining else "left over" if first not in expected else "of another shape"
        raise ValueError(
            f"{type(model).__name__} cannot do without these layers: {first} would be {problem} (kept: "
            f"{', '.join(map(str, next(iter(kept.values()))))})."
        )


def _renumber_pruned(model: Any, path: str, kept: Sequence[int]) -> None:
    """Give pruned layers, which know their numbers, those of the shortened stack."""
    constants = constants_of(model)
    for name, constant in constants.items():
        if name.startswith(f"{path}."):
            constant.layers = tuple(kept.index(number) for number in constant.layers)
    if constants:
        store_in_stock_layout(model)


def _remove_blocks(model: nn.Module, path: str, kept: Sequence[int]) -> None:
    blocks: Any = model.get_submodule(path)
    for new, old in enumerate(kept):
        for module in blocks[old].modules():
            for attribute in ("layer_idx", "layer_id", "layer_index"):
                if getattr(module, attribute, None) == old:
                    setattr(module, attribute, new)
    parent, _, child = path.rpartition(".")
    setattr(model.get_submodule(parent), child, type(blocks)([blocks[i] for i in kept]))
