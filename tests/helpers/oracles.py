"""Slow reference versions, written literally from the equations of the papers. They share no code with the library."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask


class LiteralAttention:
    """Eager attention that keeps every map in the graph and scales the map of one call: A ← factor · A.

    Registered with transformers as "literal". MPNet and DeBERTa do not use the attention interface of transformers;
    their maps are read at the dropout module that follows the softmax.
    """

    def __init__(self) -> None:
        self.maps: list[Tensor] = []
        self.scaled: int | None = None
        self.factor = 1.0

    def _see(self, attention: Tensor) -> Tensor:
        if self.scaled == len(self.maps):
            attention = attention * self.factor
        self.maps.append(attention)
        return attention

    def __call__(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any
    ) -> Any:
        s, value = _scores_and_values(query, key, value, kwargs)
        if mask is not None:
            s = s + mask
        attention = self._see(s.softmax(-1))
        return (attention @ value).transpose(1, 2).contiguous(), None

    def attach(self, model: nn.Module) -> None:
        """`model` must be in eval mode or without dropout."""
        watched = False
        for module in model.modules():
            if type(module).__name__ in ("MPNetSelfAttention", "DisentangledSelfAttention"):
                module.dropout = _Watch(self)
                watched = True
        if not watched:
            _use(model, "literal", self)


def _scores_and_values(query: Tensor, key: Tensor, value: Tensor, kwargs: Any) -> tuple[Tensor, Tensor]:
    """The scores before any mask, [B, H, Q, K], and the values of every head."""
    heads = query.shape[1]
    key = key.repeat_interleave(heads // key.shape[1], dim=1)
    value = value.repeat_interleave(heads // value.shape[1], dim=1)
    scaling = kwargs.get("scaling")
    s = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if kwargs.get("position_bias") is not None:
        s = s + kwargs["position_bias"]
    return s, value


def _use(model: nn.Module, name: str, function: Any) -> None:
    """Sets `function` as the attention of every module; a decoder may have a configuration of its own."""
    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, eager_mask)
    for module in model.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation_internal = name


class _Watch(nn.Module):
    def __init__(self, literal: LiteralAttention) -> None:
        super().__init__()
        self.literal = literal
        self.p = 0.0

    def forward(self, attention: Tensor) -> Tensor:
        return self.literal._see(attention)


def literal_objective(kind: str, outputs: Any, batch: dict[str, Tensor], target: list[Any]) -> Tensor:
    """F by example loops; `target` is filled at the first call with the model's own prediction."""
    if kind.endswith("regression"):
        return -outputs.loss
    if kind == "span":
        heads = [outputs.start_logits, outputs.end_logits]
        if not target:
            target.append([h.argmax(-1) for h in heads])
        return sum(
            (h[b].log_softmax(-1)[target[0][i][b]] for i, h in enumerate(heads) for b in range(len(h))), torch.zeros(())
        )
    logits = outputs.logits
    if kind == "multilabel":
        if not target:
            target.append(logits > 0)
        p = logits.sigmoid()
        return torch.where(target[0], p, 1 - p).log().sum()
    if not target:
        target.append(logits.argmax(-1))
    if logits.dim() == 2:
        if kind == "choice":
            return sum((logits[b].log_softmax(-1)[target[0][b]] for b in range(len(logits))), torch.zeros(()))
        return sum((logits[b, target[0][b]] for b in range(len(logits))), torch.zeros(()))
    causal = kind in ("gpt2", "llama", "qwen2")
    total = torch.zeros(())
    for b in range(logits.shape[0]):
        for i in range(logits.shape[1] - causal):
            if batch["labels"][b, i + causal] != -100:
                total = total + logits[b, i].log_softmax(-1)[target[0][b, i]]
    return total


def literal_ga(kind: str, model: nn.Module, batch: dict[str, Tensor]) -> list[Tensor]:
    """∂F/∂A with a backward for each layer."""
    literal = LiteralAttention()
    literal.attach(model)
    f = literal_objective(kind, model(**batch), batch, [])
    return [torch.autograd.grad(f, a, retain_graph=True)[0] for a in literal.maps]


def literal_iga(
    kind: str, model: nn.Module, batch: dict[str, Tensor], nodes: list[tuple[float, float]]
) -> list[Tensor]:
    """A ⊙ Σ w ∂F(αA)/∂A, one layer at a time, the label from the unscaled pass."""
    literal = LiteralAttention()
    literal.attach(model)
    target: list[Any] = []
    literal_objective(kind, model(**batch), batch, target)
    unscaled = [a.detach() for a in literal.maps]
    maps = []
    for layer, a in enumerate(unscaled):
        total = torch.zeros_like(a)
        for at, weight in nodes:
            literal.maps, literal.scaled, literal.factor = [], layer, at
            f = literal_objective(kind, model(**batch), batch, target)
            total += weight * torch.autograd.grad(f, literal.maps[layer])[0]
        maps.append(a * total)
    return maps


def literal_keep(
    scores: Tensor, valid: Tensor, p: float, q: float, draws: Tensor, direction: str = "high"
) -> tuple[Tensor, Tensor]:
    """The kept mask and the candidates, row by row with Python's own sort."""
    keep = torch.ones_like(scores, dtype=torch.bool)
    region = torch.zeros_like(keep)
    valid = valid.expand_as(keep)
    for index in torch.cartesian_prod(*(torch.arange(n) for n in scores.shape[:3])).tolist():
        row, ok, draw = (x[tuple(index)].tolist() for x in (scores, valid, draws))
        entries = sorted(s for s, v in zip(row, ok, strict=True) if v)
        n = len(entries)
        if direction == "high":
            place = n * (1 - Fraction(str(p))) // 1
            chosen = [v and place < n and s >= entries[place] for s, v in zip(row, ok, strict=True)]
        else:
            place = n * Fraction(str(p)) // 1 - 1
            chosen = [v and place >= 0 and s <= entries[place] for s, v in zip(row, ok, strict=True)]
        for k, candidate in enumerate(chosen):
            region[(*index, k)] = candidate
            keep[(*index, k)] = not (candidate and draw[k] < q)
    return keep, region


def literal_masked_attention(query: Tensor, key: Tensor, value: Tensor, valid: Tensor, keep: Tensor) -> Tensor:
    """Softmax over positions that are valid and kept. A row without any is uniform over its valid positions."""
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    allowed = (valid & keep).expand_as(scores)
    attention = scores.masked_fill(~allowed, float("-inf")).softmax(-1)
    even = valid.expand_as(scores) / valid.expand_as(scores).sum(-1, keepdim=True)
    return torch.where(allowed.any(-1, keepdim=True), attention, even) @ value


class ChangedAttention:
    """Eager attention whose map is `change(call, scores, valid)`, and whose output is `scale(call, output)`.

    Scores are those before the mask, [B, H, Q, K]; outputs are [B, H, Q, d]. For models of the interface, without
    dropout.
    """

    def __init__(self, change: Any = None, scale: Any = None) -> None:
        self.change = change or (lambda call, s, valid: s.masked_fill(~valid, float("-inf")).softmax(-1))
        self.scale = scale or (lambda call, output: output)
        self.calls = 0

    def __call__(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any
    ) -> Any:
        s, value = _scores_and_values(query, key, value, kwargs)
        valid = torch.ones_like(s, dtype=torch.bool) if mask is None else (mask > -1e30).expand_as(s)
        valid = valid | ~valid.any(-1, keepdim=True)  # the query of a padding token: nobody reads it
        output = self.scale(self.calls, self.change(self.calls, s, valid) @ value)
        self.calls += 1
        return output.transpose(1, 2).contiguous(), None

    def attach(self, model: nn.Module) -> None:
        _use(model, "changed", self)
