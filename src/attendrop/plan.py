"""What the next pass through a model changes. Data only: nothing here runs a model or draws a number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

Edit = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Plan:
    """One pass, described. Attention sites and blocks are numbered in the order in which the model calls them.

    keep     site  -> bool, broadcastable to [B, H, Q, K]; True = stays. Applied before the softmax. A row of which
             nothing is kept becomes uniform over its valid positions.
    uniform  sites whose attention is uniform over the valid positions.
    scale    site  -> factor of the attention's output, a number or a tensor broadcastable to [B, Q, H, d].
    skip     blocks that hand on their input.
    edits    block -> functions of the hidden states behind it, in order; block -1 is the embeddings.
    record   sites whose query, key, value and output the pass leaves in `Seams.records`.

    The empty plan is the identity.
    """

    keep: Mapping[int, Tensor] = field(default_factory=dict)
    uniform: frozenset[int] = frozenset()
    scale: Mapping[int, float | Tensor] = field(default_factory=dict)
    skip: frozenset[int] = frozenset()
    edits: Mapping[int, tuple[Edit, ...]] = field(default_factory=dict)
    record: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.keep or self.uniform or self.scale or self.skip or self.edits or self.record)

    def __or__(self, other: Plan) -> Plan:
        """Both plans at once: keep masks AND, sets OR, scales multiply, edits in order."""
        keep = dict(self.keep)
        for site, mask in other.keep.items():
            keep[site] = keep[site] & mask if site in keep else mask
        scale = dict(self.scale)
        for site, factor in other.scale.items():
            scale[site] = scale[site] * factor if site in scale else factor
        edits = dict(self.edits)
        for block, functions in other.edits.items():
            edits[block] = edits.get(block, ()) + tuple(functions)
        return Plan(
            keep=keep,
            uniform=self.uniform | other.uniform,
            scale=scale,
            skip=self.skip | other.skip,
            edits=edits,
            record=self.record | other.record,
        )

    def repeated(self, views: int) -> Plan:
        """The same plan for `views` copies of the batch, laid one after the other."""
        if views == 1:
            return self

        def tiled(x: Tensor) -> Tensor:
            return x if x.dim() == 0 or x.shape[0] == 1 else torch.cat([x] * views)

        keep = {site: tiled(mask) for site, mask in self.keep.items()}
        scale = {site: tiled(x) if isinstance(x, Tensor) else x for site, x in self.scale.items()}
        return replace(self, keep=keep, scale=scale)

    def touches(self, site: int) -> bool:
        """Whether attention site `site` does anything out of the ordinary."""
        return site in self.keep or site in self.uniform or site in self.scale or site in self.record
