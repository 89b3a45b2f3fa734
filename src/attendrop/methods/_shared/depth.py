"""How deep in the model each parameter is: in the embeddings, in a block, or above the blocks."""

from __future__ import annotations

from torch import nn

from ...model.seams import Seams
from ...model.sites import pretrained_part

EMBEDDINGS = -1


def depths(owner: str, model: nn.Module, seams: Seams) -> dict[str, int]:
    """Return the depth of each parameter by name: -1 in the embeddings, its block's number, or the number of blocks.

    Blocks are numbered in the order of their calls: those of a decoder follow those of its encoder. Above the blocks
    are the head, the pooler and the last norm. What the base model has beside its blocks belongs to the embeddings if
    it comes before the first block, is an embedding layer or has "embed" in its name. A weight that the head shares
    with the embeddings belongs to the embeddings.

    Args:
        owner: the method, for the error message.
        model: the model.
        seams: its seams.
    """
    count = len(seams.blocks)
    if len(set(seams.blocks)) < count:
        raise ValueError(f"{seams.name} uses one block several times, so {owner} cannot tell its layers apart.")
    blocks = {
        id(parameter): number
        for number, name in enumerate(seams.blocks)
        for parameter in model.get_submodule(name).parameters()
    }
    embeddings = _embeddings(pretrained_part(model), set(blocks))
    return {
        name: blocks.get(id(parameter), EMBEDDINGS if id(parameter) in embeddings else count)
        for name, parameter in model.named_parameters()
    }


def _embeddings(base: nn.Module, in_blocks: set[int]) -> set[int]:
    """Return the parameters of the base model, by id, that belong to its embeddings."""
    ids: set[int] = set()
    is_before = True
    for name, parameter in base.named_parameters():
        is_before = is_before and id(parameter) not in in_blocks
        if is_before or "embed" in name:
            ids.add(id(parameter))
    for module in base.modules():
        if isinstance(module, nn.Embedding):
            ids.update(id(parameter) for parameter in module.parameters())
    return ids
