"""Which layers to prune first: one score for each encoder layer; the higher it is, the sooner the layer is pruned.

    similarity   E_tokens cos(X, X + Attn(X)), X the residual: the layer changes the direction of its input little
    gradient     −E_examples |Σ ∂L/∂O · (Ō − O)|, Ō the mean of the values: the loss depends little on the layer
    gate         the mean drop probability that a generator (AttendOut's) has learned for the layer

"similarity" is LLM-Drop's (arXiv 2406.15786). "gradient" is the first-order estimate of how the loss of an example
changes when the attention of the layer becomes uniform, O → Ō. "gate" is the criterion of self-pruning (AttendOut v1,
arXiv 2104.04692v1).
Differs from the papers in: for a block that normalises after the residual connection (BERT), X + Attn(X) is taken
before that norm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..model.plan import Plan
from ..model.probe import Probe
from ..model.seams import Record, bind
from ..utils.batches import batch_size
from ..utils.checks import check_choice
from .evaluation import isolated_eval
from .stock_layout import REMOVED
from .surgery import Layer, encoder_layers
from .tail import all_tokens

CRITERIA = ("similarity", "gradient", "gate")

Batch = Mapping[str, Any]


class Gate(Protocol):
    """A generator of masks, such as AttendOut's."""

    def drop_probabilities(self, batch: Batch) -> Tensor:
        """Return the mean drop probability of each layer over the valid positions of a batch, [layers]."""


def score_layers(
    model: Any, data: Iterable[Batch], by: str = "similarity", generator: Gate | None = None
) -> list[float]:
    """Score each encoder layer; the layer with the highest score should be pruned first.

    The model runs in eval mode and is not changed.

    Args:
        model: A transformers model that is not bound.
        data: Batches as the model takes them; with labels for "gradient".
        by: The criterion: "similarity", "gradient" or "gate".
        generator: Only for "gate": an object with the method `drop_probabilities(batch)`.

    Returns:
        One score for each layer; −inf for a layer that is pruned already.
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
        raise ValueError(f"{type(model).__name__} has no bidirectional self attention, so no layer can be pruned.")
    if all(layer.is_pruned for layer in layers):
        return [-inf] * len(layers)
    with all_tokens(model):
        return _scores(model, batches, by, generator, layers)


def _scores(
    model: Any, batches: Sequence[Batch], by: str, generator: Gate | None, layers: Sequence[Layer]
) -> list[float]:
    remaining = [layer for layer in layers if not layer.is_pruned]
    if generator is not None:
        removed = tuple(getattr(model.config, REMOVED, None) or ())
        whole = len(layers) + len(removed)  # the layers that a generator of the model before knows
        gates = _gates(generator, batches, (len(layers), len(remaining), whole))
        if removed and len(gates) == whole:
            gates = [gates[number] for number in range(whole) if number not in removed]
        if len(gates) == len(layers):
            gates = [gate for layer, gate in zip(layers, gates, strict=True) if not layer.is_pruned]
        scores = iter(gates)
    elif by == "similarity":
        scores = iter(_similarities(model, remaining, batches))
    else:
        scores = iter([-float(effect.abs().mean()) for effect in _effects(model, remaining, batches)])
    return [-inf if layer.is_pruned else next(scores) for layer in layers]


def effects_of_uniform(model: Any, data: Iterable[Batch]) -> Tensor:
    """Estimate, to first order, how the loss of each example changes if the attention of one layer becomes uniform.

    The estimate is Σ ∂L/∂O · (Ō − O), with its sign.

    Args:
        model: A transformers model that is not bound.
        data: Batches as the model takes them, with labels, on the device of the model.

    Returns:
        [examples, layers], without the layers that are pruned already.
    """
    layers = [layer for layer in encoder_layers(model) if not layer.is_pruned]
    return torch.stack(_effects(model, layers, list(data)), -1)


def _similarities(model: Any, layers: list[Layer], batches: Sequence[Batch]) -> list[float]:
    """Return the mean over all valid tokens of cos(X, X + Attn(X)), for each layer."""
    residuals: dict[str, Tensor] = {}
    cosines: list[Tensor] = []  # [B, L] for each attention call of one forward, in the order of the calls

    def save_residual(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            residuals[name] = args[0] if args else kwargs["hidden_states"]

        return hook

    def compare(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            x = residuals[name].float()
            cosines.append(functional.cosine_similarity(x, x + output.float(), dim=-1))

        return hook

    hooks = []
    totals, tokens = [0.0] * len(layers), 0
    try:
        for name, layer in {layer.site.name: layer for layer in layers}.items():
            layout = layer.known_layout()
            owner = name.rpartition(".")[0] if layout.prenorm else name
            hooks.append(model.get_submodule(owner).register_forward_pre_hook(save_residual(name), with_kwargs=True))
            hooks.append(model.get_submodule(layout.output_path(name)).register_forward_hook(compare(name)))
        for batch in batches:
            cosines.clear()
            with isolated_eval(model):
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
    """1 at the tokens that are not padding, [B, L]. The choices of a multiple-choice example are separate rows."""
    mask = batch.get("attention_mask")
    if mask is None:
        return torch.ones_like(like)
    if mask.shape[-1] != like.shape[-1] or mask.numel() != like.numel():
        raise ValueError(f"attention_mask has shape {list(mask.shape)}; it must be one row for each sequence, [B, L].")
    return (mask.reshape(like.shape) != 0).to(like.dtype)


def _effects(model: Any, layers: list[Layer], batches: Sequence[Batch]) -> list[Tensor]:
    """Σ ∂L/∂O · (Ō − O) for each example, one vector for each layer."""
    names = {layer.site.name for layer in layers}
    effects: list[list[Tensor]] = [[] for _ in layers]
    seams = bind(model)
    try:
        sites = [site.index for site in seams.sites if site.name in names]
        for batch in batches:
            probe = Probe(model, seams, batch)
            with probe.untracked(training=False):
                gradients, records = probe.gradients(Plan(), _loss, sites, with_labels=True)
            size = batch_size(batch)
            for number, site in enumerate(sites):
                record = records[site]
                change = _at_least_float32(gradients[site]) * (
                    _uniform(record) - _at_least_float32(record.output.detach())
                )
                # The loss is the mean over the batch; times its size, it is the loss of one example. An example of
                # multiple choice has several rows.
                effects[number].append(change.reshape(size, -1).sum(1).cpu() * size)
    finally:
        seams.unbind()
    return [torch.cat(parts) for parts in effects]


def _loss(outputs: Any) -> Tensor:
    loss = outputs.get("loss")
    if loss is None:
        raise ValueError("the batch has no labels, so the model returns no loss, which by='gradient' needs.")
    return loss


def _uniform(record: Record) -> Tensor:
    """Return the output of the layer if its attention were uniform over the valid positions, [B, Q or 1, H, d]."""
    values = _at_least_float32(record.value_of_heads())
    valid = record.valid.to(values.dtype)
    return ((valid / valid.sum(-1, keepdim=True)) @ values).transpose(1, 2)


def _at_least_float32(x: Tensor) -> Tensor:
    """In single precision or better, because the difference of two outputs may be small."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _gates(generator: Gate, batches: Sequence[Batch], counts: Sequence[int]) -> list[float]:
    """Return the drop probability of each layer, as the mean over the examples of all batches.

    Args:
        generator: The generator.
        batches: The batches.
        counts: The numbers of layers that it may know: all layers, or those that a pruned model still had.
    """
    total, examples = torch.zeros((), dtype=torch.float64), 0
    for batch in batches:
        with torch.no_grad():
            probabilities = generator.drop_probabilities(batch)
        if list(probabilities.shape) not in [[count] for count in counts]:
            allowed = " or ".join(f"[{count}]" for count in dict.fromkeys(counts))
            raise ValueError(
                f"generator.drop_probabilities gave shape {list(probabilities.shape)}; it must be {allowed}, one for "
                "each encoder layer."
            )
        size = batch_size(batch)
        total = total + probabilities.double().cpu() * size
        examples += size
    return (total / examples).tolist()
