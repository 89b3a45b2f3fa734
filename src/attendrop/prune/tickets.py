"""Tickets: heads and feed-forwards that are masked, as an ordinary model.

A masked head gives nothing to the output projection, and a masked feed-forward gives nothing to the residual: the
weights that read the one, and the last linear map of the other, are zero. The masked network is the same in training,
in evaluation and in a saved folder, which plain transformers loads.
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

from ..model.dry_run import few_tokens
from ..model.modes import evaluating
from ..model.plan import Edit, Plan
from ..model.seams import Seams, bind
from ..model.sites import unwrapped
from ..random import preserved
from ..utils.checks import check_choice, check_number

PER = ("example", "token")


@dataclass(frozen=True)
class Tickets:
    """What is masked: heads as pairs (attention site, head), and the feed-forwards of these blocks.

    Sites and blocks are numbered in the order in which the model calls them.
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
        return {"heads": [list(pair) for pair in self.heads], "feed_forwards": list(self.feed_forwards)}

    def save(self, path: str | Path) -> None:
        Path(path).write_text(json.dumps(self.to_dict()) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Tickets:
        if not Path(path).is_file():
            raise ValueError(f"{path} does not exist; it must be a file that Tickets.save wrote.")
        return cls(**json.loads(Path(path).read_text(encoding="utf-8")))

    def apply(self, model: nn.Module, batch: Mapping[str, Any] | None = None) -> None:
        """Masks the model, in place and for good. `batch` is an example where a model needs one for its dry run."""
        seams = bind(model, batch)
        try:
            places = masked_places(self, model, seams, batch)
        finally:
            seams.unbind()
        for parameter, dim, index in places.of(model):
            zero(parameter, dim, index)


@dataclass
class Importance:
    """Σ |∂L/∂ξ| over examples, ξ a factor of the output: of each head, [H] for each site, and of each feed-forward."""

    heads: list[Tensor]
    feed_forwards: Tensor

    def lowest(self, share: float) -> Tickets:
        """The least important share of all heads and, as large, of all feed-forwards, rounded down.

        Heads are compared over all layers, after the scores of each layer are divided by their L2 norm.
        """
        check_number("share", share, 0, 1)
        scores = [
            (score, site, head)
            for site, of_site in enumerate(self.heads)
            for head, score in enumerate((of_site / of_site.norm().clamp(min=1e-30)).tolist())
        ]
        blocks = sorted(range(len(self.feed_forwards)), key=self.feed_forwards.tolist().__getitem__)
        return Tickets(
            [pair for _, *pair in sorted(scores)[: _part(share, len(scores))]], blocks[: _part(share, len(blocks))]
        )


def _part(share: float, n: int) -> int:
    return int(share * n + 1e-9)


def sensitivity(output: Tensor, gradient: Tensor, per: str) -> Tensor:
    """Σ |∂L/∂ξ| of outputs [examples, tokens, ..., d] that ξ [...] multiplies.

    ∂L/∂ξ is the sum of gradient · output over features and, `per` example, over its tokens; `per` token each is apart.
    """
    products = (output.detach().float() * gradient.float()).sum(-1)
    return (products.abs().sum(1) if per == "token" else products.sum(1).abs()).sum(0)


def importance(model: nn.Module, batches: Iterable[Mapping[str, Any]], per: str = "example") -> Importance:
    """How much the loss of the examples depends on each head and feed-forward, with the model in eval mode."""
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
    outputs: dict[int, Tensor] = {}

    def watch(block: int) -> Edit:
        def edit(x: Tensor) -> Tensor:
            outputs[block] = x if x.requires_grad else x.requires_grad_()
            return x

        return edit

    plan = Plan(
        record=frozenset(range(len(seams.sites))), ffn={block: (watch(block),) for block in range(len(seams.blocks))}
    )
    examples = next(value for value in batch.values() if isinstance(value, Tensor) and value.dim()).shape[0]
    device = next(model.parameters()).device
    with preserved(device), evaluating(model), torch.enable_grad(), seams.applied(plan):
        loss = model(**batch)["loss"] * examples  # the mean loss of a batch has a share of each example's
        tensors = [seams.records[site].output for site in range(len(heads))]
        tensors += [outputs[block] for block in range(len(feed_forwards))]
        gradients = torch.autograd.grad(loss, tensors, materialize_grads=True)
    found = []
    for x, gradient in zip(tensors, gradients, strict=True):
        kept = x.shape[2:] if x.dim() == 4 else x.shape[-1:]  # [B, Q, H, d] and [B, L, d]
        found.append(sensitivity(x.reshape(examples, -1, *kept), gradient.reshape(examples, -1, *kept), per))
    for score, more in zip(heads, found, strict=False):
        score += more
    feed_forwards += torch.stack(found[len(heads) :])


@dataclass
class Places:
    """The weights that are zero: (name of the parameter, dimension, indices); no dimension is all of it."""

    entries: list[tuple[str, int | None, Tensor | None]] = field(default_factory=list)

    def of(self, model: nn.Module) -> list[tuple[nn.Parameter, int | None, Tensor | None]]:
        return [(model.get_parameter(name), dim, index) for name, dim, index in self.entries]


@torch.no_grad()
def zero(x: Tensor, dim: int | None, index: Tensor | None) -> None:
    if dim is None or index is None:
        x.zero_()
    else:
        x.index_fill_(dim, index.to(x.device), 0)


def masked_places(tickets: Tickets, model: nn.Module, seams: Seams, batch: Mapping[str, Any] | None = None) -> Places:
    """Where the masks of `tickets` are in the weights of a bound model."""
    _check(tickets, seams)
    places = Places()
    if not tickets.heads and not tickets.feed_forwards:
        return places
    outputs, last = _maps(tickets, model, seams, batch)
    for index in dict.fromkeys(site for site, _ in tickets.heads):
        site = seams.sites[index]
        if index not in outputs:
            raise ValueError(
                f"{site.name} of {seams.name} has no linear map behind it, in which one of its heads could be masked."
            )
        columns = [head * site.width + i for s, head in tickets.heads if s == index for i in range(site.width)]
        for name, inputs, _ in _parts(model, outputs[index]):
            places.entries.append((name, inputs, torch.tensor(columns)))
    for block in tickets.feed_forwards:
        for name, _, bias in _parts(model, last[block]):
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


def _parts(model: nn.Module, name: str) -> list[tuple[str, int, str | None]]:
    """The weights that read the map's input: names, the dimension of inputs, and the bias. Two where LoRA adds one."""
    module = model.get_submodule(name)
    base = getattr(module, "base_layer", module)
    path = name if base is module else f"{name}.base_layer"
    bias = f"{path}.bias" if base.bias is not None else None
    found: list[tuple[str, int, str | None]] = [(f"{path}.weight", 0 if isinstance(base, Conv1D) else 1, bias)]
    for adapter in getattr(module, "lora_A", {}):
        found.append((f"{name}.lora_A.{adapter}.weight", 1, None))
    return found


def _maps(
    tickets: Tickets, model: nn.Module, seams: Seams, batch: Mapping[str, Any] | None
) -> tuple[dict[int, str], dict[int, str]]:
    """The names of the output projection of each site and of the last map of each feed-forward, by a dry run."""
    names = {
        module: name
        for name, module in model.named_modules()
        if isinstance(getattr(module, "base_layer", module), (nn.Linear, Conv1D))
    }
    outputs: dict[int, str] = {}
    last: dict[int, str] = {}
    entered: list[str] = []

    def enter(module: nn.Module, args: tuple[Any, ...]) -> None:
        entered.append(names[module])
        for site, record in seams.records.items():
            # the first map that takes what the attention gave; of a map that LoRA wraps, the wrapper
            if site not in outputs and torch.equal(record.output.flatten(), args[0].flatten()):
                outputs[site] = names[module]

    def mark(block: int) -> Edit:
        def edit(x: Tensor) -> Tensor:
            last[block] = entered[-1]
            return x

        return edit

    inner = {block: (mark(block),) for block in tickets.feed_forwards}
    plan = Plan(record=frozenset(range(len(seams.sites))), inner=inner)
    bare = unwrapped(model)
    inputs = dict(batch) if batch is not None else few_tokens(bare, bare.config)
    hooks = [module.register_forward_pre_hook(enter) for module in names]
    try:
        with preserved(next(model.parameters()).device), evaluating(model), torch.no_grad(), seams.applied(plan):
            model(**inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return outputs, last
