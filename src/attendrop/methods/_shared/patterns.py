"""The patterns of random attention dropout: single positions, whole key columns, or runs of columns."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from ...core.step import MicroBatch
from ...model.sites import Layers, map_shape

PATTERNS = ("element", "column", "span")


def shape_of_draws(shape: tuple[int, int, int, int], pattern: str, span: int) -> tuple[int, int, int, int]:
    """Return the shape of the draws that a map of `shape` [B, H, Q, K] needs."""
    rows, heads, _, keys = shape
    if pattern == "element":
        return shape
    # Runs may start before the first key; otherwise the first keys would be dropped less often than the others.
    return rows, heads, 1, keys + (span - 1 if pattern == "span" else 0)


def keep_pattern(draws: Tensor, p: float | Tensor, pattern: str, span: int) -> Tensor:
    """bool, broadcastable to [B, H, Q, K]: False with probability p.

    "element" drops each position independently, "column" a key for all queries of a head, "span" runs of `span` such
    keys. A run ends at each key with probability 1 − (1−p)^(1/span), so that a key is in no run with probability 1 − p.
    """
    if pattern != "span":
        return draws >= p
    is_end = draws < 1 - (1 - p) ** (1 / span)
    return ~is_end.unfold(-1, span, 1).any(-1)


def draw_keep(
    batch: MicroBatch, layers: Layers, p: float | Tensor, pattern: str, span: int, owner: str
) -> Iterator[tuple[int, Tensor]]:
    """Yield each site that `layers` selects and its keep mask, with separate draws for each example, head and view."""
    step = batch.step
    for index in step.seams.select(layers, f"{owner}.layers"):
        site = step.seams.sites[index]
        rows, queries, keys = map_shape(site, batch.examples)
        shape = shape_of_draws((rows, site.heads, queries, keys), pattern, span)
        yield index, keep_pattern(batch.uniform_of_views(index, shape, step.device, owner), p, pattern, span)
