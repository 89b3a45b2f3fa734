"""Parts of the slow reference versions of the methods: divergences computed by loops, hooks, names of modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from attendrop import Plan, Regularizer

from . import zoo

CAUSAL = ("gpt2", "llama", "qwen2")
FIRST_BLOCK = {
    "bert": "bert.encoder.layer.0",
    "gpt2": "transformer.h.0",
    "llama": "model.layers.0",
    "bart": "model.encoder.layers.0",
    "mpnet": "mpnet.encoder.layer.0",
}
WORDS = {
    "bert": "bert.embeddings.word_embeddings",
    "albert": "albert.embeddings.word_embeddings",
    "gpt2": "transformer.wte",
    "llama": "model.embed_tokens",
    "bart": "model.encoder.embed_tokens",
    "t5": "encoder.embed_tokens",
}
LAST_BLOCK = {
    "bert": "bert.encoder.layer.1",
    "gpt2": "transformer.h.1",
    "llama": "model.layers.1",
    "bart": "model.decoder.layers.1",
    "mpnet": "mpnet.encoder.layer.1",
}
# the last linear map of each block's feed-forward
FEED_FORWARD = {
    "bert": [f"bert.encoder.layer.{i}.output.dense" for i in (0, 1)],
    "gpt2": [f"transformer.h.{i}.mlp.c_proj" for i in (0, 1)],
    "llama": [f"model.layers.{i}.mlp.down_proj" for i in (0, 1)],
    "bart": [f"model.{side}.layers.{i}.fc2" for side in ("encoder", "decoder") for i in (0, 1)],
    "mpnet": [f"mpnet.encoder.layer.{i}.output.dense" for i in (0, 1)],
}


def rows_of(kind: str, logits: Tensor, labels: Tensor) -> list[Tensor]:
    """One distribution per row: over classes, choices, the two outcomes of each label, or the vocabulary."""
    if kind == "multilabel":
        return [torch.stack([z.sigmoid(), 1 - z.sigmoid()]) for z in logits.flatten()]
    if logits.dim() == 2:
        return [row.softmax(-1) for row in logits]
    shift = int(kind in CAUSAL)
    return [
        logits[b, t].softmax(-1)
        for b in range(logits.shape[0])
        for t in range(logits.shape[1] - shift)
        if labels[b, t + shift] != -100
    ]


def kl(p: Tensor, q: Tensor) -> Tensor:
    return (p * (p / q).log()).sum()


def js(p: Tensor, q: Tensor) -> Tensor:
    middle = (p + q) / 2
    return (kl(p, middle) + kl(q, middle)) / 2


def mean_over_rows(
    kind: str, one: Tensor, two: Tensor, labels: Tensor, divergence: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    if kind.endswith("regression"):
        scale = zoo.SCALE if kind in zoo.POOLED else 1  # in which the model computes its loss
        return (one - two).square().sum() / one.numel() / scale**2
    pairs = list(zip(rows_of(kind, one, labels), rows_of(kind, two, labels), strict=True))
    return sum((divergence(p, q) for p, q in pairs), torch.zeros((), dtype=one.dtype)) / len(pairs)


@contextmanager
def reading(block: nn.Module, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Inside this context the input of `block` is `change(hidden)`."""

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            return (change(args[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": change(kwargs["hidden_states"])}

    handle = block.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def giving(module: nn.Module, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Inside this context the output of `module` is `change(result)`."""

    def hook(module: nn.Module, args: Any, result: Any) -> Any:
        return change(result) if isinstance(result, Tensor) else (change(result[0]), *result[1:])

    handle = module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


class FixedNoise(Regularizer):
    """Multiplies the embeddings of each view by fixed noise.

    It makes the views differ in place of ordinary dropout, whose draws a reference with two passes cannot repeat.
    """

    name = "fixed_noise"

    def __init__(self, noise: Tensor) -> None:
        self.noise = noise  # [views · rows, 1, d]

    def plan(self, batch: Any) -> Plan:
        return Plan(edits={-1: (lambda x: x * (1 + self.noise),)})
