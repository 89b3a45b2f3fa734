"""The AD-DROP mask on a CPU: selection instead of a sort, in chunks that stay in the cache, on all threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from ..draws import reference as draws_reference
from . import reference

_CHUNK = 1 << 16  # entries that a thread works on at once


def keep_from_scores(scores: Tensor, valid: Tensor, rule: reference.DropRule) -> Tensor:
    batch, heads, queries, keys = scores.shape
    limit = draws_reference.largest_word_below(float(rule.q))
    if limit < 0 or not scores.numel():
        return torch.ones(scores.shape, dtype=torch.bool)
    scores = scores.detach()
    if scores.dtype not in (torch.float32, torch.float64):
        scores = scores.float()
    shared = valid.dim() == 1 or valid.shape[-3:-1] == (1, 1)  # by all rows of an example
    valid = valid.expand(batch, *((1, 1) if shared else (heads, queries)), keys)
    n = valid.sum(-1)
    index = reference.rank(n, rule.p, rule.direction)
    index = index.masked_fill((index < 0) | (index >= n), -1)
    words = draws_reference.words_numpy(rule.key, rule.positions, (heads, queries))
    keep = torch.empty(scores.shape, dtype=torch.bool)
    rows = heads * queries
    size = min(rows, max(1, _CHUNK // keys))
    workers = min(batch, torch.get_num_threads())

    def work(first: int) -> None:
        buffers = _Buffers(size, keys, scores.dtype)
        for example in range(first, batch, workers):
            buffers.keep_rows(
                scores[example].reshape(rows, keys).numpy(),
                valid[example].reshape(-1, keys).numpy(),
                index[example].reshape(-1).numpy(),
                words[example].reshape(rows),
                limit,
                rule.direction == "high",
                keep[example].view(rows, keys).numpy(),
            )

    if workers == 1:
        work(0)
    else:
        with ThreadPoolExecutor(workers) as threads:
            list(threads.map(work, range(workers)))
    return keep


class _Buffers:
    """Buffers of one thread. Allocating them for every chunk would take longer than the work."""

    def __init__(self, rows: int, keys: int, dtype: torch.dtype) -> None:
        self.rows = rows
        self.ordered = torch.empty(rows, keys, dtype=dtype).numpy()
        self.draws, self.buffer = np.empty((2, rows, keys), np.uint32)
        self.chosen = np.empty((rows, keys), bool)

    def keep_rows(
        self,
        scores: np.ndarray,
        valid: np.ndarray,
        index: np.ndarray,
        words: np.ndarray,
        limit: int,
        high: bool,
        keep: np.ndarray,
    ) -> None:
        """`scores` and `keep` are [rows, K]; `valid` and `index` have one row for all, or one for each."""
        shared, full = len(valid) == 1, bool(valid.all())
        if shared and index[0] < 0:
            keep[:] = True
            return
        for start in range(0, len(scores), self.rows):
            here = slice(start, start + self.rows)
            x, ok = scores[here], valid if shared else valid[here]
            ordered, chosen, draws, buffer = (
                memory[: len(x)] for memory in (self.ordered, self.chosen, self.draws, self.buffer)
            )
            np.copyto(ordered, x)
            if not full:
                np.copyto(ordered, np.nan, where=~ok)
            if shared:
                ordered.partition(index[0], axis=-1)
                threshold = ordered[:, index[0], None]
            else:
                ordered.sort(axis=-1)
                threshold = np.take_along_axis(ordered, np.maximum(index[here, None], 0), -1)
                threshold[index[here] < 0] = np.nan
            (np.greater_equal if high else np.less_equal)(x, threshold, out=chosen)
            if not full:
                chosen &= ok
            np.logical_and(chosen, draws_reference.are_below(limit, words[here], draws, buffer), out=chosen)
            np.logical_not(chosen, out=keep[here])
