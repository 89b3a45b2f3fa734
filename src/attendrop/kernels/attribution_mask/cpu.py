"""The kept mask on a CPU: selection instead of a sort, in pieces that stay in the cache, on all threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from ... import random
from . import reference

_PIECE = 1 << 16  # entries that a thread works on at once


def keep_from_scores(
    scores: Tensor, valid: Tensor, p: float, q: float, key: int, positions: Tensor, direction: str = "high"
) -> Tensor:
    batch, heads, queries, keys = scores.shape
    limit = random.limit(q)
    keep = torch.ones(scores.shape, dtype=torch.bool)
    if limit < 0 or not keep.numel():
        return keep
    if scores.dtype not in (torch.float32, torch.float64):
        scores = scores.float()
    shared = valid.shape[-3:-1] == (1, 1) or valid.dim() == 1  # by all rows of an example
    valid = valid.expand(batch, *((1, 1) if shared else (heads, queries)), keys)
    n = valid.sum(-1)
    index = reference.rank(n, p, direction)
    index = index.masked_fill((index < 0) | (index >= n), -1)
    words = random.words(key, positions, (heads, queries))

    def work(example: int) -> None:
        rows = heads * queries
        _keep_rows(
            scores[example].reshape(rows, keys).numpy(),
            valid[example].reshape(-1, keys).numpy(),
            index[example].reshape(-1).numpy(),
            words[example].reshape(rows),
            limit,
            direction == "high",
            keep[example].view(rows, keys).numpy(),
        )

    scores = scores.detach()
    with ThreadPoolExecutor(min(batch, torch.get_num_threads())) as threads:
        list(threads.map(work, range(batch)))
    return keep


def _keep_rows(
    scores: np.ndarray,
    valid: np.ndarray,
    index: np.ndarray,
    words: np.ndarray,
    limit: int,
    high: bool,
    keep: np.ndarray,
) -> None:
    """`scores` and `keep` are [rows, K]; `valid` and `index` have one row for all, or one for each."""
    rows, keys = scores.shape
    shared, full = len(valid) == 1, bool(valid.all())
    if shared and index[0] < 0:
        return
    size = min(rows, max(1, _PIECE // keys))
    ordered, draws, spare = np.empty((size, keys), scores.dtype), *np.empty((2, size, keys), np.uint32)
    beyond = np.empty((size, keys), bool)
    for start in range(0, rows, size):
        here = slice(start, min(start + size, rows))
        some = slice(0, here.stop - start)
        ok = valid if shared else valid[here]
        x, row, chosen = scores[here], ordered[some], beyond[some]
        np.copyto(row, x)
        if not full:
            np.copyto(row, np.nan, where=~ok)
        if shared:
            row.partition(index[0], axis=-1)
            threshold = row[:, index[0], None]
        else:
            row.sort(axis=-1)
            threshold = np.take_along_axis(row, np.maximum(index[here, None], 0), -1)
            threshold[index[here] < 0] = np.nan
        (np.greater_equal if high else np.less_equal)(x, threshold, out=chosen)
        if not full:
            chosen &= ok
        chosen &= random.are_below(limit, words[here], draws[some], spare[some])
        np.logical_not(chosen, out=keep[here])
