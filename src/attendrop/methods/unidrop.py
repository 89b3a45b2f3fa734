"""UniDrop: dropout of features in four places, of whole blocks, and of tokens, all at once.

    x ⊙ m / (1 − p), m ~ Bernoulli(1 − p) for each element x of
        FD-1   the attention weights, after the softmax
        FD-2   the feed-forward's inner activation
        FD-3   query, key and value
        FD-4   the last block's output, which the head reads
    LayerDrop with probability p for each block and step
    tokens: with probability p_k an example keeps all of its tokens; else each of them is dropped with probability p_d

Wu et al., "UniDrop: A Simple yet Effective Technique to Improve Transformer without Extra Cost", arXiv 2104.04946.
Differs from the paper in: a dropped token keeps its position and is hidden from all attention, its own included; the
first token, and those that the configuration names as special, are never dropped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from ..core.hyper import hyper
from ..core.regularizer import Regularizer
from ..core.schedule import Strength, largest, value_at
from ..core.step import MicroBatch, Step
from ..model.plan import Edit, Factors, Plan
from ..model.seams import Seams
from ..model.sites import Site, map_shape, unwrapped
from ..model.tokens import is_decoder_of_two, real_keys
from ._shared.dropping import dropped_blocks, feature_dropout


def hidden_tokens(draws: Tensor, droppable: Tensor, p_k: float | Tensor, p_d: float | Tensor) -> Tensor:
    """Return the dropped tokens: bool [B, L].

    `draws` [B, 1 + L] has one draw for the example, then one for each token.
    """
    return droppable & (draws[:, :1] >= p_k) & (draws[:, 1:] < p_d)


def droppable_tokens(model: nn.Module, site: Site, batch: Mapping[str, Any]) -> Tensor:
    """Return the keys that may be dropped, bool [rows, K]: not padding, not the first token, not a special one."""
    real = real_keys(model, site, batch)
    droppable = real & (real.cumsum(-1) > 1)
    ids = batch.get("decoder_input_ids" if is_decoder_of_two(model, site) else "input_ids")
    if ids is not None and ids.numel() == real.numel():
        config = unwrapped(model).config
        names = ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", "pad_token_id")
        for special in {number for name in names if isinstance(number := getattr(config, name, None), int)}:
            droppable = droppable & (ids.reshape(real.shape) != special)
    return droppable


@dataclass
class UniDrop(Regularizer):
    """Dropout of features, blocks and tokens. Every field is a probability: a number from 0 to 1, or a schedule.

    Args:
        fd1: that an attention weight is dropped
        fd2: that an element of the feed-forward's inner activation is dropped
        fd3: that an element of query, key or value is dropped
        fd4: that an element of the last block's output is dropped
        layerdrop: that a block is skipped for the step
        p_k: that an example keeps all of its tokens
        p_d: that a token is dropped, in an example that does not keep all of them
    """

    name: ClassVar[str] = "unidrop"

    fd1: Strength = hyper(0.1, high=1, search="0.05..0.3")
    fd2: Strength = hyper(0.1, high=1, search="0.05..0.3")
    fd3: Strength = hyper(0.1, high=1)
    fd4: Strength = hyper(0.1, high=1)
    layerdrop: Strength = hyper(0.1, below=1, search="0.05..0.3")
    p_k: Strength = hyper(0.5, high=1)
    p_d: Strength = hyper(0.1, high=1, search="0.05..0.3")

    def check(self, model: nn.Module, seams: Seams, epochs: int | None) -> None:
        if largest(self.fd2) > 0:
            seams.needs_feed_forward("UniDrop.fd2")

    def capture_key(self, step: Step) -> Hashable:
        return tuple(self._acts(step).values())

    def _acts(self, step: Step) -> dict[str, bool]:
        """Return which of its parts act in this step."""
        now = {field.name: value_at(getattr(self, field.name), step.progress) for field in dataclasses.fields(self)}
        parts = {name: now[name] > 0 for name in ("fd1", "fd2", "fd3", "fd4", "layerdrop")}
        return {**parts, "tokens": now["p_d"] > 0 and now["p_k"] < 1}

    def plan(self, batch: MicroBatch) -> Plan:
        step = batch.step
        acts = self._acts(step)
        fd1, fd2, fd3, fd4, _, p_k, p_d = (
            step.strength(f"{self.name} {field.name}", getattr(self, field.name)) for field in dataclasses.fields(self)
        )
        sites, blocks = step.seams.sites, range(len(step.seams.blocks))
        inner: dict[int, tuple[Edit, ...]] = {}
        edits: dict[int, tuple[Edit, ...]] = {}
        if acts["fd2"]:
            inner = {block: (feature_dropout(batch, fd2, block, f"{self.name}/fd2"),) for block in blocks}
        if acts["fd4"]:
            edits = {blocks[-1]: (feature_dropout(batch, fd4, blocks[-1], f"{self.name}/fd4"),)}
        skipped = dropped_blocks(step, self.layerdrop, self.name) if acts["layerdrop"] else Plan()
        return skipped | Plan(
            weights={site.index: self._weights(site, batch, fd1) for site in sites} if acts["fd1"] else {},
            projections={site.index: self._projections(site, batch, fd3) for site in sites} if acts["fd3"] else {},
            keep={site.index: self._keep(site, batch, p_k, p_d) for site in sites} if acts["tokens"] else {},
            inner=inner,
            edits=edits,
        )

    def _weights(self, site: Site, batch: MicroBatch, p: float | Tensor) -> Tensor:
        rows, queries, keys = map_shape(site, batch.examples)
        return self._factor(site, batch, "fd1", (rows, site.heads, queries, keys), p)

    def _projections(self, site: Site, batch: MicroBatch, p: float | Tensor) -> Factors:
        rows, queries, keys = map_shape(site, batch.examples)
        query = self._factor(site, batch, "fd3/query", (rows, site.heads, queries, site.width), p)
        key, value = (
            self._factor(site, batch, f"fd3/{which}", (rows, site.groups, keys, site.width), p)
            for which in ("key", "value")
        )
        return query, key, value

    def _factor(
        self, site: Site, batch: MicroBatch, stream: str, shape: tuple[int, int, int, int], p: float | Tensor
    ) -> Tensor:
        return batch.dropout_of_views(site.index, shape, batch.step.device, f"{self.name}/{stream}", p)

    def _keep(self, site: Site, batch: MicroBatch, p_k: float | Tensor, p_d: float | Tensor) -> Tensor:
        """Return the keep mask of the site. A sequence loses the same tokens in all attention over it."""
        step = batch.step
        droppable = droppable_tokens(step.model, site, batch.examples)
        rows, keys = droppable.shape
        sequence = int(is_decoder_of_two(step.model, site))
        draws = batch.uniform_of_views(sequence, (rows, 1, 1, 1 + keys), droppable.device, f"{self.name}/tokens")
        hidden = hidden_tokens(draws.flatten(1), droppable.repeat(step.views, 1), p_k, p_d)
        return ~hidden[:, None, None]
