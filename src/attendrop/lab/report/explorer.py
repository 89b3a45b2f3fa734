"""The attention explorer of a report: attention, attribution and AD-DROP masks of a trained model on a few texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...core.schedule import Progress, value_at
from ...errors import UserError
from ...kernels.attribution_mask import candidates, keep_mask
from ...kernels.draws import uniform
from ...methods.addrop import ADDrop
from ...model.attribution import IntegrationRule, scores
from ...model.modes import evaluating
from ...model.probe import Probe
from ...model.seams import bound
from ...model.sites import Layers, Site
from ...random import key_of

Text = str | tuple[str, str]


@dataclass(frozen=True)
class SiteMaps:
    """The maps of one attention call on one example, each [H, Q, K]."""

    site: Site
    attention: Tensor
    attribution: Tensor
    candidates: Tensor  # bool: may be dropped
    dropped: Tensor  # bool: dropped in one draw


def attention_maps(
    model: nn.Module, batch: Mapping[str, Tensor], method: ADDrop, layers: Layers = "all", seed: int = 0
) -> Iterator[SiteMaps]:
    """Yield the maps of each layer: the attention, its attribution, and the positions that AD-DROP would drop.

    Args:
        model: A model with a head. It is put into eval mode temporarily and otherwise unchanged.
        batch: The inputs of one example, on the device of the model; with labels where the method needs them.
        method: The settings of AD-DROP. Of a schedule, the value at the end of training counts.
        layers: The layers.
        seed: The seed of the draw.
    """
    end = Progress(step=1, total_steps=1)
    p, q = value_at(method.p, end), value_at(method.q, end)
    rule = IntegrationRule(method.ig_rule, method.ig_steps)
    with bound(model) as seams, evaluating(model):
        probe, sites = Probe(model, seams, batch), seams.select(layers)
        for index, score, record in scores(probe, sites, method.attribution, method.label, rule):
            if score is None:
                raise UserError("attribution is 'rd', which attributes nothing; it must be 'ga', 'iga' or 'aa'.")
            first = torch.zeros(1, dtype=torch.long, device=score.device)
            draws = uniform(key_of(seed, 0, index), first, tuple(score.shape[1:]), score.device)
            region = candidates(score, record.valid, p, method.direction)
            keep = keep_mask(score, record.valid, p, q, draws, method.direction)
            yield SiteMaps(seams.sites[index], record.attention()[0], score[0], region[0], ~keep[0])


def explore(
    model: nn.Module,
    tokenizer: Any,
    texts: Sequence[Text],
    method: ADDrop | None = None,
    gold: Sequence[str | int | None] | None = None,
    pruned: nn.Module | None = None,
    seed: int = 0,
    max_examples: int = 4,
    max_tokens: int = 24,
) -> dict[str, Any]:
    """Make the part `explorer` of an analysis: the maps of all layers and heads for a few short texts.

    Args:
        model: A model with a head, over texts. Of an encoder-decoder the encoder is shown.
        tokenizer: Its tokenizer.
        texts: Texts, or pairs of texts. Those after the first `max_examples` are left out.
        method: The settings of AD-DROP; by default its own defaults.
        gold: The label of each text, by name or number.
        pruned: The same model after `attendrop.prune.prune`, to compare with.
        seed: The seed of the draw that decides which candidates are dropped.
        max_examples: The largest number of examples: the page must stay small.
        max_tokens: Longer texts are truncated to this number of tokens.

    Example:
        ```python
        analysis.explorer = explore(model, tokenizer, ["The film is not bad at all."])
        ```
    """
    if not texts or isinstance(texts, str):
        raise UserError("texts must be a list of one or more texts.")
    if max_examples < 1 or max_tokens < 1:
        raise UserError(f"max_examples is {max_examples} and max_tokens is {max_tokens}; both must be at least 1.")
    method = method or ADDrop(layers="all")
    examples = []
    for number, text in enumerate(texts[:max_examples]):
        label = gold[number] if gold is not None else None
        examples.append(_example(model, tokenizer, text, method, label, pruned, seed, max_tokens))
    return {"examples": examples, "p": _shown(method.p), "q": _shown(method.q), "attribution": method.attribution}


def _example(
    model: nn.Module, tokenizer: Any, text: Text, method: ADDrop, gold: str | int | None, pruned: nn.Module | None,
    seed: int, max_tokens: int,
) -> dict[str, Any]:  # fmt: skip
    parts = (text,) if isinstance(text, str) else tuple(text)
    device = next(model.parameters()).device
    batch = dict(tokenizer(*parts, return_tensors="pt", truncation=True, max_length=max_tokens).to(device))
    if isinstance(gold, int):
        batch["labels"] = torch.tensor([gold], device=device)
    names = getattr(model.config, "id2label", None) or {}
    numbers = _layer_numbers(model, batch)
    shown: dict[str, Any] = {
        "text": " · ".join(parts),
        "tokens": [_readable(tokenizer, token) for token in tokenizer.convert_ids_to_tokens(batch["input_ids"][0])],
        "gold": names.get(gold, gold) if isinstance(gold, int) else gold,
        "predicted": _prediction(model, batch),
        "layers": _layers(model, batch, method, numbers, seed),
        "pruned": None,
    }
    if pruned is not None:
        batch = {name: value.to(next(pruned.parameters()).device) for name, value in batch.items()}
        layers = _layers(pruned, batch, method, numbers, seed)
        shown["pruned"] = {"predicted": _prediction(pruned, batch), "layers": layers}
    return shown


def _identities(sites: Sequence[Site]) -> dict[int, tuple[str, int]]:
    """Return a key of a site that is the same in a model and in its pruned copy: its module, and the call of it."""
    seen: Counter[str] = Counter()
    identities = {}
    for site in sites:
        identities[site.index] = (site.name, seen[site.name])
        seen[site.name] += 1
    return identities


def _layer_numbers(model: nn.Module, batch: Mapping[str, Tensor]) -> dict[tuple[str, int], int]:
    """Return the layer number of each attention over the input, by the identity of its site."""
    with bound(model) as seams:
        identities = _identities(seams.sites)
        return {identities[s.index]: s.layer for s in seams.sites if s.is_over_input(seams.sites)}


def _layers(
    model: nn.Module, batch: Mapping[str, Tensor], method: ADDrop, numbers: Mapping[tuple[str, int], int], seed: int
) -> list[dict[str, Any]]:
    with bound(model) as seams:
        identities = _identities(seams.sites)
    sites = [index for index, identity in identities.items() if identity in numbers]
    if not sites:  # everything has been pruned
        return []
    layers = []
    for maps in attention_maps(model, batch, method, "all", seed):
        if maps.site.index in sites:
            heads = [_head(maps, head) for head in range(len(maps.attention))]
            layers.append({"layer": numbers[identities[maps.site.index]], "heads": heads})
    return layers


def _head(maps: SiteMaps, head: int) -> dict[str, Any]:
    return {
        "attention": [[round(value, 3) for value in row] for row in maps.attention[head].tolist()],
        "attribution": [[float(f"{value:.3g}") for value in row] for row in maps.attribution[head].tolist()],
        "candidates": maps.candidates[head].int().tolist(),
        "dropped": maps.dropped[head].int().tolist(),
    }


def _prediction(model: Any, batch: Mapping[str, Tensor]) -> str | float | None:
    """Return the predicted label of a classifier, or the value of a regression; None for other heads."""
    with evaluating(model), torch.no_grad():
        logits = getattr(model(**batch), "logits", None)
    if logits is None or logits.dim() != 2:
        return None
    if logits.shape[1] == 1:
        return round(logits.item(), 3)
    names = getattr(model.config, "id2label", None) or {}
    return str(names.get(int(logits.argmax()), int(logits.argmax())))


def _readable(tokenizer: Any, token: str) -> str:
    """Return a token without the marks that a tokenizer uses for spaces; a piece of a word keeps its `##`."""
    if token.startswith("##"):
        return token
    return tokenizer.convert_tokens_to_string([token]).strip() or token


def _shown(strength: Any) -> float | str:
    return strength if isinstance(strength, int | float) else str(strength)
