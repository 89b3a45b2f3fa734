"""Which layers to prune first: one score for each encoder layer, higher = sooner.

    similarity   E_tokens cos(X, X + Attn(X)), X what the residual adds: a layer that turns its input little
    gradient     −E_examples |Σ ∂L/∂O · (Ō − O)|, Ō the mean of the values: a layer that the loss would miss little
    gate         the mean drop probability that a generator (AttendOut's) has learned for the layer

"similarity" is LLM-Drop's (arXiv 2406.15786). "gradient" is the first-order estimate of how the loss of an example
changes when the layer's attention becomes uniform, O → Ō. "gate" is self-pruning's own (AttendOut v1, arXiv
2104.04692v1).
Differs from the papers in: for a block that normalises after the residual (BERT), Y is taken before that norm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..model.plan import Plan
from ..model.probe import Probe
from ..model.seams import Record, bind
from ..utils.checks import check_choice
from .measure import undisturbed
from .surgery import Layer, encoder_layers, not_in_the_table, path_of_o

CRITERIA = ("similarity", "gradient", "gate")

Batch = Mapping[str, Any]


class Gate(Protocol):
    """A generator of masks: the mean drop probability of each layer, [layers], over the valid positions of a batch."""

    def drop_probabilities(self, batch: Batch) -> Tensor: ...


def score_layers(
    model: Any, data: Iterable[Batch], by: str = "similarity", generator: Gate | None = None
) -> list[float]:
    """One score for each encoder layer, higher = prune first; −inf for a layer that is pruned already.

    `data` are batches as the model takes them, with labels for "gradient". The model is asked in eval mode and left as
    it was found. `generator` belongs to "gate".
    """
    check_choice("by", by, CRITERIA)
    if (by == "gate") != (generator is not None):
        raise ValueError(
            f"by is {by!r} and generator is {generator!r}; 'gate' needs a generator with drop_probabilities(batch), "
            "and the other criteria take none."
        )
    device = next(model.parameters()).device
    batches = [
        {name: value.to(device) if isinstance(value, Tensor) else value for name, value in batch.items()}
        for batch in data
    ]
    if not batches:
        raise ValueError("data is empty; it must hold at least one batch.")
    layers = encoder_layers(model)
    if not layers:
        raise ValueError(f"{type(model).__name__} has no bidirectional self attention, so no layer that could go.")
    alive = [layer for layer in layers if not layer.is_pruned]
    if not alive:
        return [float("-inf")] * len(layers)
    if generator is not None:
        scores = _gates(generator, batches, len(layers))
        return [float("-inf") if layer.is_pruned else score for layer, score in zip(layers, scores, strict=True)]
    if by == "similarity":
        found = iter(_similarities(model, alive, batches))
    else:
        found = iter([-float(effect.abs().mean()) for effect in _effects(model, alive, batches)])
    return [float("-inf") if layer.is_pruned else next(found) for layer in layers]


def effects_of_uniform(model: Any, data: Iterable[Batch]) -> Tensor:
    """How the loss of each example would change, to first order, if one layer became uniform: [examples, layers].

    Σ ∂L/∂O · (Ō − O), with its sign; layers that are pruned already are left out.
    """
    layers = [layer for layer in encoder_layers(model) if not layer.is_pruned]
    return torch.stack(_effects(model, layers, list(data)), -1)


def _similarities(model: Any, layers: list[Layer], batches: Sequence[Batch]) -> list[float]:
    """The mean over all valid tokens of cos(X, X + Attn(X)), for each layer."""
    residuals: dict[str, Tensor] = {}
    cosines: list[Tensor] = []  # [B, L] for each attention call of a pass, in calling order

    def before(name: str) -> Callable[..., None]:
        def keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            residuals[name] = args[0] if args else kwargs["hidden_states"]

        return keep

    def after(name: str) -> Callable[..., None]:
        def compare(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            x = residuals[name].float()
            cosines.append(functional.cosine_similarity(x, x + output.float(), dim=-1))

        return compare

    hooks = []
    for name, layer in {layer.site.name: layer for layer in layers}.items():
        layout = layer.layout
        if layout is None:
            raise ValueError(f"layer {layer.site.layer} of {type(model).__name__} {not_in_the_table(layer.module)}.")
        owner = name.rpartition(".")[0] if layout.prenorm else name
        hooks.append(model.get_submodule(owner).register_forward_pre_hook(before(name), with_kwargs=True))
        hooks.append(model.get_submodule(path_of_o(name, layout)).register_forward_hook(after(name)))
    totals, tokens = [0.0] * len(layers), 0
    try:
        for batch in batches:
            cosines.clear()
            with undisturbed(model):
                model(**batch)
            valid = _valid(batch, cosines[0]) if cosines else torch.zeros(0)
            tokens += int(valid.sum())
            for number, cosine in enumerate(cosines):
                totals[number] += float((cosine * valid).sum())
    finally:
        for hook in hooks:
            hook.remove()
    return [total / tokens for total in totals]


def _valid(batch: Batch, like: Tensor) -> Tensor:
    """The tokens that are not padding, [B, L]; rows of several choices are laid one after the other."""
    mask = batch.get("attention_mask")
    if mask is None:
        return torch.ones_like(like)
    if mask.shape[-1] != like.shape[-1] or mask.numel() != like.numel():
        raise ValueError(f"attention_mask has shape {list(mask.shape)}; it must be one row for each sequence, [B, L].")
    return (mask.reshape(like.shape) != 0).to(like.dtype)


def _effects(model: Any, layers: list[Layer], batches: Sequence[Batch]) -> list[Tensor]:
    """Σ ∂L/∂O · (Ō − O) for each example, one vector for each layer."""
    names = {layer.site.name for layer in layers}
    found: list[list[Tensor]] = [[] for _ in layers]
    seams = bind(model)
    try:
        sites = [site.index for site in seams.sites if site.name in names]
        for batch in batches:
            probe = Probe(model, seams, batch)
            with probe.untracked(training=False):
                gradients, records = probe.gradients(Plan(), _loss, sites, with_labels=True)
            for number, site in enumerate(sites):
                record = records[site]
                change = _wide(gradients[site]) * (_uniform(record) - _wide(record.output.detach()))
                # The loss is a mean over the batch: times its size is the loss of one example. An example has several
                # rows where a head lays its choices one after the other.
                size = _size(batch)
                found[number].append(change.reshape(size, -1).sum(1).cpu() * size)
    finally:
        seams.unbind()
    return [torch.cat(parts) for parts in found]


def _loss(outputs: Any) -> Tensor:
    loss = outputs.get("loss")
    if loss is None:
        raise ValueError("the batch has no labels, so that the model gives no loss, which by='gradient' needs.")
    return loss


def _uniform(record: Record) -> Tensor:
    """The output of the layer if its attention were uniform over the valid positions, [B, Q or 1, H, d]"""
    values = _wide(record.value_of_heads())
    valid = record.valid.to(values.dtype)
    return ((valid / valid.sum(-1, keepdim=True)) @ values).transpose(1, 2)


def _wide(x: Tensor) -> Tensor:
    """In single precision at least: the difference of two outputs may be small."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _gates(generator: Gate, batches: Sequence[Batch], layers: int) -> list[float]:
    """The mean over the examples of all batches."""
    total, examples = torch.zeros(layers, dtype=torch.float64), 0
    for batch in batches:
        with torch.no_grad():
            probabilities = generator.drop_probabilities(batch)
        if probabilities.shape != (layers,):
            raise ValueError(
                f"generator.drop_probabilities gave shape {list(probabilities.shape)}; it must be [{layers}], one for "
                "each encoder layer."
            )
        size = _size(batch)
        total += probabilities.double().cpu() * size
        examples += size
    return (total / examples).tolist()


def _size(batch: Batch) -> int:
    return len(next(value for value in batch.values() if isinstance(value, Tensor)))
