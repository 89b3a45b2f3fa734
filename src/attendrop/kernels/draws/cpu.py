"""The draws on a CPU: in chunks that stay in the cache, on all threads of torch.

NumPy releases the interpreter's lock while it works on a chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from . import reference

_CHUNK = 1 << 16  # words that a thread works on at once
_ALONE = 1 << 18  # so few words are drawn faster by one thread

# Writes the results of some rows: their numbers, and memory for two arrays of words of these rows.
Work = Callable[[slice, np.ndarray, np.ndarray], None]


def uniform(key: int | Tensor, positions: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return draws in [0, 1), as `reference.uniform_torch` gives them.

    Args:
        key: a 32-bit key, or an int32 tensor of keys.
        positions: the positions of the examples in the global batch.
        shape: the shape of the draws of one example.
    """
    *leading, last = shape
    words = reference.words_numpy(key, positions, tuple(leading))
    rows = words.reshape(-1)
    draws = np.empty((len(rows), last), np.float32)

    def work(here: slice, x: np.ndarray, buffer: np.ndarray) -> None:
        draws[here] = np.right_shift(reference.last_axis(rows[here], x, buffer), np.uint32(8), out=x)
        draws[here] *= np.float32(2**-24)

    _on_all_threads(work, len(rows), last)
    return torch.from_numpy(draws.reshape(*words.shape, last))


def rows_below(key: int | Tensor, p: float | Tensor, rows: int, n: int) -> Tensor:
    """Return whether the n draws of each of the positions 0 … rows − 1 are below p: bool [rows, n].

    Args:
        key: a 32-bit key, or a 0-d int32 tensor.
        p: the probability.
        rows: the number of positions.
        n: the number of draws of each.
    """
    limit = reference.largest_word_below(float(p))
    if limit < 0 or limit >= reference.WORD:
        return torch.full((rows, n), limit >= 0)
    words = reference.words_numpy(key, torch.arange(rows), ())
    is_below = np.empty((rows, n), bool)

    def work(here: slice, x: np.ndarray, buffer: np.ndarray) -> None:
        np.less_equal(reference.last_axis(words[here], x, buffer), np.uint32(limit), out=is_below[here])

    _on_all_threads(work, rows, n)
    return torch.from_numpy(is_below)


def _on_all_threads(work: Work, rows: int, n: int) -> None:
    """Call `work` for all rows, of n words each, a chunk at a time."""
    size = max(1, _CHUNK // max(1, n))
    starts = range(0, rows, size)
    threads = min(len(starts), torch.get_num_threads()) if rows * n > _ALONE else 1

    def part(first: int) -> None:
        buffers = np.empty((2, min(size, rows), n), np.uint32)
        for start in starts[first::threads]:
            here = slice(start, min(start + size, rows))
            work(here, *buffers[:, : here.stop - start])

    if threads <= 1:
        part(0)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(part, range(threads)))
