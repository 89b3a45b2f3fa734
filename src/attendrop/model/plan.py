"""The plan: the changes of one pass through a model. It is data only: it runs no model and draws no number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..kernels.attention_mask import KeepForm, as_keep

K = TypeVar("K")
T = TypeVar("T")

Edit = Callable[[Tensor], Tensor]
MapEdit = Callable[[Tensor, Tensor], Tensor]
Factors = tuple[Tensor | None, Tensor | None, Tensor | None]


@dataclass(frozen=True)
class Plan:
    """The changes of one pass. Attention sites and blocks are numbered in the order in which the model calls them.

    The empty plan changes nothing. `plan | other` does both at once.

    Args:
        keep: site -> bool, broadcastable to [B, H, Q, K], True = stays. Applied before the softmax. A row of which
            nothing is kept becomes uniform over its valid positions. A `KeepForm` holds the same as a bias or as bits.
        uniform: sites whose attention is uniform over the valid positions.
        uniform_where: site -> 0-d bool tensor: the same, decided on the device. For captured steps.
        weights: site -> factor of the attention weights after the softmax, broadcastable to [B, H, Q, K].
        maps: site -> functions of these weights and of the positions that attend (bool), in order.
        projections: site -> factors of query, key and value, before all else; each None or broadcastable to
            [B, H, L, d] (key and value: [B, G, L, d], with G < H where heads share them).
        scale: site -> factor of the attention's output, a number or a tensor broadcastable to [B, Q, H, d].
        skip: blocks that return their input.
        skip_where: block -> 0-d bool tensor: the same, decided on the device. For captured steps.
        instead: block -> function that returns its result, so that the block does not run. For probes.
        words: functions of the word embeddings, before positions, norm and dropout, in order; of the encoder's, where
            there is one. In a model that reads no token ids, of the input of the first block.
        edits: block -> functions of the hidden states after it, in order; block -1 is the input of the first one.
        ffn: block -> functions of the feed-forward's output, before its dropout and the residual connection.
        inner: block -> functions of the feed-forward's inner activation, the input of its last linear layer.
        linear_inputs: name of a linear layer -> functions of its input, in order; the layer must be open
            (`Seams.open_linear`).
        linear_outputs: the same for its output.
        record: sites whose query, key, value and output are stored in `Seams.records`.
        like_masked: sites whose attention runs by the kernel that a mask would need. For probes: the pass that they
            prepare then draws the same dropout.
    """

    keep: Mapping[int, Tensor | KeepForm] = field(default_factory=dict)
    uniform: frozenset[int] = frozenset()
    uniform_where: Mapping[int, Tensor] = field(default_factory=dict)
    weights: Mapping[int, Tensor] = field(default_factory=dict)
    maps: Mapping[int, tuple[MapEdit, ...]] = field(default_factory=dict)
    projections: Mapping[int, Factors] = field(default_factory=dict)
    scale: Mapping[int, float | Tensor] = field(default_factory=dict)
    skip: frozenset[int] = frozenset()
    skip_where: Mapping[int, Tensor] = field(default_factory=dict)
    instead: Mapping[int, Callable[[], Any]] = field(default_factory=dict)
    words: tuple[Edit, ...] = ()
    edits: Mapping[int, tuple[Edit, ...]] = field(default_factory=dict)
    ffn: Mapping[int, tuple[Edit, ...]] = field(default_factory=dict)
    inner: Mapping[int, tuple[Edit, ...]] = field(default_factory=dict)
    linear_inputs: Mapping[str, tuple[Edit, ...]] = field(default_factory=dict)
    linear_outputs: Mapping[str, tuple[Edit, ...]] = field(default_factory=dict)
    record: frozenset[int] = frozenset()
    like_masked: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        return any(  # not `bool`, which torch 2.11 cannot compile for a dictionary
            (
                self.keep,
                self.uniform,
                self.uniform_where,
                self.weights,
                self.maps,
                self.projections,
                self.scale,
                self.skip,
                self.skip_where,
                self.instead,
                self.words,
                self.edits,
                self.ffn,
                self.inner,
                self.linear_inputs,
                self.linear_outputs,
                self.record,
                self.like_masked,
            )
        )

    def __or__(self, other: Plan) -> Plan:
        """Both plans at once: keep masks AND, sets OR, factors multiply, edits in order."""
        return Plan(
            keep=_merged(self.keep, other.keep, lambda a, b: as_keep(a) & as_keep(b)),
            uniform=self.uniform | other.uniform,
            uniform_where=_merged(self.uniform_where, other.uniform_where, lambda a, b: a | b),
            weights=_merged(self.weights, other.weights, lambda a, b: a * b),
            maps=_merged(self.maps, other.maps, _in_order),
            projections=_merged(self.projections, other.projections, _product),
            scale=_merged(self.scale, other.scale, lambda a, b: a * b),
            skip=self.skip | other.skip,
            skip_where=_merged(self.skip_where, other.skip_where, lambda a, b: a | b),
            instead={**self.instead, **other.instead},
            words=_in_order(self.words, other.words),
            edits=_merged(self.edits, other.edits, _in_order),
            ffn=_merged(self.ffn, other.ffn, _in_order),
            inner=_merged(self.inner, other.inner, _in_order),
            linear_inputs=_merged(self.linear_inputs, other.linear_inputs, _in_order),
            linear_outputs=_merged(self.linear_outputs, other.linear_outputs, _in_order),
            record=self.record | other.record,
            like_masked=self.like_masked | other.like_masked,
        )

    def repeated(self, views: int, rows: int) -> Plan:
        """Return the same plan for `views` copies of a batch of `rows` rows, one after the other.

        Tensors that have the rows of all views already stay as they are.
        """
        if views == 1:
            return self

        def tiled(x: Tensor) -> Tensor:
            # Only a tensor with all four dimensions has one for the batch.
            return torch.cat([x] * views) if x.dim() == 4 and x.shape[0] == rows > 1 else x

        return replace(
            self,
            keep={
                site: tiled(mask) if isinstance(mask, Tensor) else mask.mapped(tiled)
                for site, mask in self.keep.items()
            },
            weights={site: tiled(factor) for site, factor in self.weights.items()},
            projections={
                site: (
                    None if q is None else tiled(q),
                    None if k is None else tiled(k),
                    None if v is None else tiled(v),
                )
                for site, (q, k, v) in self.projections.items()
            },
            scale={site: tiled(x) if isinstance(x, Tensor) else x for site, x in self.scale.items()},
        )

    @property
    def changes_blocks(self) -> bool:
        """Whether the plan changes anything but attention."""
        return any((self.skip, self.skip_where, self.instead, self.edits, self.ffn, self.inner))

    def masks(self, site: int) -> bool:
        """Return whether the plan drops positions of the attention site `site`, or makes it uniform."""
        return site in self.keep or site in self.uniform or site in self.uniform_where

    def touches(self, site: int) -> bool:
        """Return whether the plan changes or records the attention site `site`."""
        return (
            self.masks(site)
            or site in self.weights
            or site in self.maps
            or site in self.projections
            or site in self.scale
            or site in self.record
            or site in self.like_masked
        )


def _merged(a: Mapping[K, T], b: Mapping[K, T], both: Callable[[T, T], T]) -> dict[K, T]:
    return {**a, **{at: both(a[at], value) if at in a else value for at, value in b.items()}}


def _in_order(a: tuple[T, ...], b: tuple[T, ...]) -> tuple[T, ...]:
    return (*a, *b)


def _product(a: Factors, b: Factors) -> Factors:
    q, k, v = (x if y is None else y if x is None else x * y for x, y in zip(a, b, strict=True))
    return q, k, v
