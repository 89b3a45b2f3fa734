"""Tickets: heads and feed-forwards that are masked by zeros in the weights, in an otherwise ordinary model.

The weights of the output projection that read a masked head are zero, and so is the last linear map of a masked
feed-forward. The masked network is therefore the same in training, in evaluation and in a saved folder, which plain
transformers can load.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from ...model.dry_run import few_tokens
from ...model.modes import evaluating
from ...model.plan import Edit, Plan
from ...model.seams import Seams, bind
from ...model.sites import unwrapped
from ...prune.evaluation import isolated_eval
from ...random import preserved
from ...utils.batches import batch_size
from ...utils.checks import check_choice, check_number
from ...utils.files import load_json, write_whole

PER = ("example", "token")


@dataclass(frozen=True)
class Tickets:
    """The masked parts. Attention sites and blocks are numbered in the order in which the model calls them.

    Args:
        heads: Pairs (attention site, head).
        feed_forwards: The numbers of the blocks whose feed-forward is masked.
    """

    heads: tuple[tuple[int, int], ...] = ()
    feed_forwards: tuple[int, ...] = ()

    def __init__(self, heads: Iterable[Iterable[int]] = (), feed_forwards: Iterable[int] = ()) -> None:
        try:
            pairs = sorted({(int(site), int(head)) for site, head in heads})
            blocks = sorted({int(block) for block in feed_forwards})
        except (TypeError, ValueError):
            raise ValueError(
                f"Tickets has heads {heads!r} and feed_forwards {feed_forwards!r}; they must be pairs (site, head) and "
                "numbers of blocks."
            ) from None
        object.__setattr__(self, "heads", tuple(pairs))
        object.__setattr__(self, "feed_forwards", tuple(blocks))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return {"heads": [list(pair) for pair in self.heads], "feed_forwards": list(self.feed_forwards)}

    def save(self, path: str | Path) -> None:
        """Write a JSON file that `Tickets.load` can read."""
        write_whole(Path(path), json.dumps(self.to_dict()) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Tickets:
        """Read a file that `save` wrote."""
        if not Path(path).is_file():
            raise ValueError(f"{path} does not exist; it must be a file that Tickets.save wrote.")
        return cls(**load_json(path))

    def apply(self, model: nn.Module, batch: Mapping[str, Any] | None = None) -> None:
        """Masks a model permanently, in place.

        Args:
            model: A model that is not bound.
            batch: Inputs for the dry run that finds the weights. Models of text and images need none.
        """
        seams = bind(model, batch)
        try:
            places = masked_places(self, model, seams, batch)
        finally:
            seams.unbind()
        for parameter, dim, index in places.of(model):
            zero(parameter, dim, index)


@dataclass
class Importance:
    """Σ |∂L/∂ξ| over the examples, where ξ is a factor of the output of a head or of a feed-forward.

    Args:
        heads: The importance of the heads of each attention site, [H] each.
        feed_forwards: The importance of the feed-forward of each block, [blocks].
    """

    heads: list[Tensor]
    feed_forwards: Tensor

    def lowest(self, share: float) -> Tickets:
        """Mask the least important heads and feed-forwards.

        Heads are compared over all layers, after the scores of each layer are divided by their L2 norm.

        Args:
            share: The share of all heads, and of all feed-forwards, to mask, from 0 to 1; rounded down.
        """
        check_number("share", share, 0, 1)
        scores = [
            (score, site, head)
            for site, of_site in enumerate(self.heads)
            for head, score in enumerate((of_site / of_site.norm().clamp(min=1e-30)).tolist())
        ]
        blocks = sorted(range(len(self.feed_forwards)), key=self.feed_forwards.tolist().__getitem__)
        return Tickets(
            [pair for _, *pair in sorted(scores)[: _count(share, len(scores))]], blocks[: _count(share, len(blocks))]
        )


def _count(share: float, n: int) -> int:
    return int(share * n + 1e-9)


def sensitivity(output: Tensor, gradient: Tensor, per: str) -> Tensor:
    """Σ |∂L/∂ξ| for a factor ξ [...] of an output.

    Args:
        output: [examples, tokens, ..., d].
        gradient: ∂L/∂output, of the same shape.
        per: "example" if ξ is one factor for all tokens of an example, "token" if each token has its own.
    """
    products = (output.detach().float() * gradient.float()).sum(-1)
    return (products.abs().sum(1) if per == "token" else products.sum(1).abs()).sum(0)


def importance(model: nn.Module, batches: Iterable[Mapping[str, Any]], per: str = "example") -> Importance:
    """Measure how much the loss of the examples depends on each head and each feed-forward.

    Args:
        model: A model that is not bound. It runs in eval mode and is not changed.
        batches: Batches as the model takes them, with labels, on the device of the model.
        per: Whether a factor belongs to an "example" or to a "token"; see `sensitivity`.
    """
    check_choice("per", per, PER)
    seams = bind(model)
    try:
        seams.needs_feed_forward("SuperTickets")
        device = next(model.parameters()).device
        heads = [torch.zeros(site.heads, device=device) for site in seams.sites]
        feed_forwards = torch.zeros(len(seams.blocks), device=device)
        for batch in batches:
            _add_importance(model, seams, batch, per, heads, feed_forwards)
    finally:
        seams.unbind()
    return Importance(heads, feed_forwards)


def _add_importance(
    model: nn.Module, seams: Seams, batch: Mapping[str, Any], per: str, heads: list[Tensor], feed_forwards: Tensor
) -> None:
    """Add the importance on one batch to `heads` and `feed_forwards`."""
    ffn_outputs: dict[int, Tensor] = {}

    def record(block: int) -> Edit:
        def edit(x: Tensor) -> Tensor:
            ffn_outputs[block] = x if x.requires_grad else x.requires_grad_()
            return x

        return edit

    plan = Plan(
        record=frozenset(range(len(seams.sites))), ffn={block: (record(block),) for block in range(len(seams.blocks))}
    )
    examples = batch_size(batch)
    device = next(model.parameters()).device
    with preserved(device), evaluating(model), torch.enable_grad(), seams.applied(plan):
        loss = model(**batch)["loss"] * examples  # the sum over the examples; the model returns their mean
        outputs = [seams.records[site].output for site in range(len(heads))]
        outputs += [ffn_outputs[block] for block in range(len(feed_forwards))]
        gradients = torch.autograd.grad(loss, outputs, materialize_grads=True)
    scores = []
    for output, gradient in zip(outputs, gradients, strict=True):
        last = output.shape[2:] if output.dim() == 4 else output.shape[-1:]  # of [B, Q, H, d] and of [B, L, d]
        shape = (examples, -1, *last)
        scores.append(sensitivity(output.reshape(shape), gradient.reshape(shape), per))
    for total, score in zip(heads, scores, strict=False):
        total += score
    feed_forwards += torch.stack(scores[len(heads) :])


@dataclass
class Places:
    """The weights that are set to zero.

    Args:
        entries: The name of a parameter, a dimension and the indices in it; without a dimension, the whole parameter.
    """

    entries: list[tuple[str, int | None, Tensor | None]] = field(default_factory=list)

    def of(self, model: nn.Module) -> list[tuple[nn.Parameter, int | None, Tensor | None]]:
        """Return the entries with the parameters of `model` instead of their names."""
        return [(model.get_parameter(name), dim, index) for name, dim, index in self.entries]


@torch.no_grad()
def zero(x: Tensor, dim: int | None, index: Tensor | None) -> None:
    """Set an entry of `Places` to zero, in place."""
    if dim is None or index is None:
        x.zero_()
    else:
        x.index_fill_(dim, index.to(x.device), 0)


def masked_places(tickets: Tickets, model: nn.Module, seams: Seams, batch: Mapping[str, Any] | None = None) -> Places:
    """Find the weights that the tickets set to zero.

    Args:
        tickets: The masked parts.
        model: The model.
        seams: Of the model, bound.
        batch: Inputs for the dry run that finds the weights. Models of text and images need none.
    """
    _check(tickets, seams)
    places = Places()
    if not tickets.heads and not tickets.feed_forwards:
        return places
    projections, last_maps = _linear_maps(tickets, model, seams, batch)
    for index in dict.fromkeys(site for site, _ in tickets.heads):
        site = seams.sites[index]
        if index not in projections:
            raise ValueError(f"{site.name} of {seams.name} has no output projection in which a head could be masked.")
        columns = [head * site.width + i for s, head in tickets.heads if s == index for i in range(site.width)]
        for name, input_dim, _ in _weights_of(model, projections[index]):
            places.entries.append((name, input_dim, torch.tensor(columns)))
    for block in tickets.feed_forwards:
        for name, _, bias in _weights_of(model, last_maps[block]):
            places.entries.extend((part, None, None) for part in (name, bias) if part is not None)
    return places


def _check(tickets: Tickets, seams: Seams) -> None:
    names = [site.name for site in seams.sites]
    for site, head in tickets.heads:
        if not 0 <= site < len(names) or not 0 <= head < seams.sites[site].heads:
            raise ValueError(
                f"tickets has head {head} of site {site}; {seams.name} has sites 0 to {len(names) - 1} with heads 0 to "
                f"{seams.sites[0].heads - 1}."
            )
        if names.count(names[site]) > 1:
            raise ValueError(f"tickets has head {head} of site {site}, whose weights several layers share.")
    for block in tickets.feed_forwards:
        if not 0 <= block < len(seams.blocks):
            raise ValueError(
                f"tickets has the feed-forward of block {block}; {seams.name} has blocks 0 to {len(seams.blocks) - 1}."
            )
        if seams.blocks.count(seams.blocks[block]) > 1:
            raise ValueError(f"tickets has the feed-forward of block {block}, whose weights several layers share.")


def _weights_of(model: nn.Module, name: str) -> list[tuple[str, int, str | None]]:
    """Return the weights of a linear map that read its input: name, dimension of the input, and name of the bias.

    One, or several where LoRA adds others.
    """
    module = model.get_submodule(name)
    base = getattr(module, "base_layer", module)
    path = name if base is module else f"{name}.base_layer"
    bias = f"{path}.bias" if base.bias is not None else None
    weights: list[tuple[str, int, str | None]] = [(f"{path}.weight", 0 if isinstance(base, Conv1D) else 1, bias)]
    for adapter in getattr(module, "lora_A", {}):
        weights.append((f"{name}.lora_A.{adapter}.weight", 1, None))
    return weights


def _linear_maps(
    tickets: Tickets, model: nn.Module, seams: Seams, batch: Mapping[str, Any] | None
) -> tuple[dict[int, str], dict[int, str]]:
    """Return the names of the output projection of each site and of the last map of each feed-forward, by a dry run."""
    names = {
        module: name
        for name, module in model.named_modules()
        if isinstance(getattr(module, "base_layer", module), (nn.Linear, Conv1D))
    }
    projections: dict[int, str] = {}
    last_maps: dict[int, str] = {}
    called: list[str] = []

    def on_call(module: nn.Module, args: tuple[Any, ...]) -> None:
        called.append(names[module])
        for site, record in seams.records.items():
            # The first map whose input is the output of the attention. Of a map that LoRA wraps, the wrapper.
            if site not in projections and torch.equal(record.output.flatten(), args[0].flatten()):
                projections[site] = names[module]

    def on_inner_activation(block: int) -> Edit:
        def edit(x: Tensor) -> Tensor:
            last_maps[block] = called[-1]
            return x

        return edit

    inner = {block: (on_inner_activation(block),) for block in tickets.feed_forwards}
    plan = Plan(record=frozenset(range(len(seams.sites))), inner=inner)
    base = unwrapped(model)
    inputs = dict(batch) if batch is not None else few_tokens(base, base.config)
    hooks = [module.register_forward_pre_hook(on_call) for module in names]
    try:
        with isolated_eval(model), seams.applied(plan):
            model(**inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return projections, last_maps
