"""Counter-based random numbers: the specification, in numpy and in plain torch, which give the same numbers.

A draw is a hash of a 32-bit key, the position of an example in the global batch, and the indices of the element:

    word = mix(key + position · GOLDEN)
    word = mix(word + index · GOLDEN)          once for each further axis
    draw = (word >> 8) · 2⁻²⁴                  in [0, 1)

There is no generator and no state: the same counters give the same draw on every process and device.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

WORD = 0xFFFFFFFF
GOLDEN = 0x9E3779B9  # odd, so that its multiples visit every word
MULTIPLY_1, MULTIPLY_2 = 0x7FEB352D, 0x846CA68B


def mix(x: int) -> int:
    """Return a bijection of 32-bit words in which every input bit changes every output bit about half of the time."""
    x ^= x >> 16
    x = x * MULTIPLY_1 & WORD
    x ^= x >> 15
    x = x * MULTIPLY_2 & WORD
    return x ^ x >> 16


def mix_numpy(x: np.ndarray, buffer: np.ndarray | None = None) -> np.ndarray:
    """`mix` of uint32, in place; `buffer` is memory for one intermediate result."""
    x ^= np.right_shift(x, np.uint32(16), out=buffer)
    x *= np.uint32(MULTIPLY_1)
    x ^= np.right_shift(x, np.uint32(15), out=buffer)
    x *= np.uint32(MULTIPLY_2)
    x ^= np.right_shift(x, np.uint32(16), out=buffer)
    return x


def _mix_torch(x: Tensor) -> Tensor:
    """`mix` of int32, in place."""
    # torch shifts int32 arithmetically, so the sign bits are masked away; products wrap as unsigned ones do.
    x ^= (x >> 16).bitwise_and_(0xFFFF)
    x *= signed(MULTIPLY_1)
    x ^= (x >> 15).bitwise_and_(0x1FFFF)
    x *= signed(MULTIPLY_2)
    x ^= (x >> 16).bitwise_and_(0xFFFF)
    return x


def signed(word: int) -> int:
    """Return the int32 with the same bits as the uint32 `word`."""
    return word - (1 << 32) if word >> 31 else word


def words_numpy(key: int | Tensor, positions: Tensor, shape: tuple[int, ...]) -> np.ndarray:
    """Return the words that draws are made of: uint32 [..., len(positions), *shape].

    The leading axes are those of `key`.
    """
    x = key.numpy().view(np.uint32) if isinstance(key, Tensor) else np.array(key, dtype=np.uint32)
    x = mix_numpy(x + positions.cpu().numpy().astype(np.uint32) * np.uint32(GOLDEN))
    for n in shape:
        x = mix_numpy(x[..., None] + np.arange(n, dtype=np.uint32) * np.uint32(GOLDEN))
    return x


def words_torch(key: int | Tensor, positions: Tensor, shape: tuple[int, ...], device: torch.device | str) -> Tensor:
    """Like `words_numpy`, as int32 on `device`."""
    if not isinstance(key, Tensor):
        key = torch.full((), signed(key), dtype=torch.int32, device=device)
    x = _mix_torch(key + positions.to(device, torch.int32) * signed(GOLDEN))
    for n in shape:
        x = _mix_torch(x.unsqueeze(-1) + torch.arange(n, dtype=torch.int32, device=device) * signed(GOLDEN))
    return x


def last_axis(x: np.ndarray, out: np.ndarray, buffer: np.ndarray) -> np.ndarray:
    """Return the words of one more axis, [rows, n], from the words of the axes before it, [rows]."""
    offsets = np.arange(out.shape[-1], dtype=np.uint32) * np.uint32(GOLDEN)
    return mix_numpy(np.add(x[:, None], offsets, out=out), buffer)


def uniform_torch(key: int | Tensor, positions: Tensor, shape: tuple[int, ...], device: torch.device | str) -> Tensor:
    """Return draws in [0, 1) on any device."""
    x = words_torch(key, positions, shape, device)
    return (x >> 8).bitwise_and_(0xFFFFFF).to(torch.float32).mul_(2**-24)


def largest_word_below(q: float) -> int:
    """Return the largest word whose draw is below q, as float32; −1 where there is none."""
    return math.ceil(float(np.float32(q)) * 2**24) * 256 - 1


def are_below(limit: int, x: np.ndarray, out: np.ndarray, buffer: np.ndarray) -> np.ndarray:
    """Return whether the draws of one more axis are below q, without computing them: bool [rows, n].

    `limit` is `largest_word_below(q)`, and `x` are the words of the axes before, [rows].
    """
    return last_axis(x, out, buffer) <= np.uint32(limit)
