"""The two random streams: local draws, one for each example, and shared draws, the same on every process.

A local draw is a pure function of (seed, optimizer step, site, position of the example in the global batch, head,
query, key). One process and several therefore draw the same, a replay under gradient checkpointing sees the same, a
longer padding changes nothing, and there is no state to save with a checkpoint.
"""

from __future__ import annotations

import hashlib
import math
import random as python_random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from .kernels import has_triton

_WORD = 0xFFFFFFFF
_GOLDEN = 0x9E3779B9  # odd, so that multiples of it visit every word
_MULTIPLY_1, _MULTIPLY_2 = 0x7FEB352D, 0x846CA68B
_PIECE = 1 << 16  # numpy works on so many words at once, which stay in the cache


def _mix(x: int) -> int:
    """A bijection of 32-bit words in which every input bit changes every output bit about half of the time."""
    x ^= x >> 16
    x = x * _MULTIPLY_1 & _WORD
    x ^= x >> 15
    x = x * _MULTIPLY_2 & _WORD
    return x ^ x >> 16


def _mix_numpy(x: np.ndarray, spare: np.ndarray | None = None) -> np.ndarray:
    """In place; `spare` is room for one step."""
    x ^= np.right_shift(x, np.uint32(16), out=spare)
    x *= np.uint32(_MULTIPLY_1)
    x ^= np.right_shift(x, np.uint32(15), out=spare)
    x *= np.uint32(_MULTIPLY_2)
    x ^= np.right_shift(x, np.uint32(16), out=spare)
    return x


def signed(word: int) -> int:
    """The int32 of the same bits."""
    return word - (1 << 32) if word >> 31 else word


def _mix_torch(x: Tensor) -> Tensor:
    """In place, with room for one more such tensor."""
    # torch shifts int32 arithmetically, so the sign bits are masked away; products wrap as the unsigned ones do.
    x ^= (x >> 16).bitwise_and_(0xFFFF)
    x *= signed(_MULTIPLY_1)
    x ^= (x >> 15).bitwise_and_(0x1FFFF)
    x *= signed(_MULTIPLY_2)
    x ^= (x >> 16).bitwise_and_(0xFFFF)
    return x


def key_of(seed: int, step: int, site: int, stream: str = "keep") -> int:
    """The 32-bit key of one site in one optimizer step."""
    key = int.from_bytes(hashlib.blake2s(stream.encode(), digest_size=4).digest(), "little")
    for word in (seed & _WORD, seed >> 32 & _WORD, step, site):
        key = _mix((key + word * _GOLDEN + 1) & _WORD)
    return key


def as_keys(words: Sequence[int]) -> Tensor:
    """Keys of 32 bits as int32, on the host."""
    return torch.tensor([signed(word) for word in words], dtype=torch.int32)


def uniform(key: int | Tensor, positions: Tensor, shape: tuple[int, ...], device: torch.device | str = "cpu") -> Tensor:
    """Draws in [0, 1) for the examples at `positions` of the global batch: [len(positions), *shape], 24 bits each.

    `shape` is (H, Q, K). The CPU takes numpy, which is three times as fast as torch at this; every device gives the
    same numbers. A key may be an int32 on `device`: a captured graph reads it there. It may have dimensions, of which
    the last is that of the examples or 1: [sites, 1] draws [sites, len(positions), *shape] in one go, each site as
    its key alone would.
    """
    if torch.device(device).type != "cpu":
        return _uniform_torch(key, positions, shape, device)
    return _uniform_numpy(key, positions, shape, device)


def words(key: int | Tensor, positions: Tensor, shape: tuple[int, ...]) -> np.ndarray:
    """The words that draws are made of: uint32 [..., len(positions), *shape]; the first are those of the key."""
    x = key.numpy().view(np.uint32) if isinstance(key, Tensor) else np.array(key, dtype=np.uint32)
    x = _mix_numpy(x + positions.cpu().numpy().astype(np.uint32) * np.uint32(_GOLDEN))
    for n in shape:
        x = _mix_numpy(x[..., None] + np.arange(n, dtype=np.uint32) * np.uint32(_GOLDEN))
    return x


def _next_words(x: np.ndarray, out: np.ndarray, spare: np.ndarray) -> np.ndarray:
    """The words of one more axis, [rows, n], from those of the axes before it, [rows]."""
    steps = np.arange(out.shape[-1], dtype=np.uint32) * np.uint32(_GOLDEN)
    return _mix_numpy(np.add(x[:, None], steps, out=out), spare)


def _uniform_numpy(key: int | Tensor, positions: Tensor, shape: tuple[int, ...], device: torch.device | str) -> Tensor:
    *before, last = shape
    found = words(key, positions, tuple(before))
    rows = found.reshape(-1)
    draws = np.empty((len(rows), last), np.float32)
    size = max(1, _PIECE // max(1, last))
    room = np.empty((2, min(size, len(rows)), last), np.uint32)
    for start in range(0, len(rows), size):
        some = rows[start : start + size]
        x, spare = room[:, : len(some)]
        draws[start : start + size] = np.right_shift(_next_words(some, x, spare), np.uint32(8), out=x)
    draws *= np.float32(2**-24)
    return torch.from_numpy(draws.reshape(*found.shape, last))


def limit(q: float) -> int:
    """The largest word whose draw is below q, as fp32; −1 where there is none."""
    return math.ceil(float(np.float32(q)) * 2**24) * 256 - 1


def are_below(limit: int, x: np.ndarray, out: np.ndarray, spare: np.ndarray) -> np.ndarray:
    """Which draws of one more axis are below q, without making them: bool [rows, n]. `limit` is that of q."""
    return _next_words(x, out, spare) <= np.uint32(limit)


def are_drawn(p: Tensor, key: int | Tensor, positions: Tensor) -> Tensor:
    """Whether what `uniform` draws is below p, which has a place for each: bool"""
    shape = p.shape[max(1, key.dim()) if isinstance(key, Tensor) else 1 :]
    if p.is_cuda and has_triton():
        from .kernels.draws.triton import are_below

        return are_below(_words_torch(key, positions, shape[:-1], p.device), p)
    return uniform(key, positions, shape, p.device) < p


def _words_torch(key: int | Tensor, positions: Tensor, shape: tuple[int, ...], device: torch.device | str) -> Tensor:
    """As `words`: int32."""
    if not isinstance(key, Tensor):
        key = torch.full((), signed(key), dtype=torch.int32, device=device)
    x = _mix_torch(key + positions.to(device, torch.int32) * signed(_GOLDEN))
    for n in shape:
        x = _mix_torch(x.unsqueeze(-1) + torch.arange(n, dtype=torch.int32, device=device) * signed(_GOLDEN))
    return x


def _uniform_torch(key: int | Tensor, positions: Tensor, shape: tuple[int, ...], device: torch.device | str) -> Tensor:
    if torch.device(device).type == "cuda" and has_triton():
        from .kernels.draws.triton import uniform as in_one_kernel

        return in_one_kernel(_words_torch(key, positions, shape[:-1], device), shape[-1])
    x = _words_torch(key, positions, shape, device)
    return (x >> 8).bitwise_and_(0xFFFFFF).to(torch.float32).mul_(2**-24)


def shared_generator(seed: int, step: int, name: str) -> torch.Generator:
    """For what all replicas must agree on: structure, weights, gradients. The same on every process."""
    generator = torch.Generator()
    generator.manual_seed(key_of(seed, step, 0, name) << 32 | key_of(seed, step, 1, name))
    return generator


@contextmanager
def preserved(device: torch.device | None = None) -> Iterator[None]:
    """Leaves the global random state (CPU and `device`) as it was found.

    While a graph is captured the device's cannot be read: what replays the graph puts it back.
    """
    cpu = torch.get_rng_state()
    on_cuda = device is not None and device.type == "cuda" and not torch.cuda.is_current_stream_capturing()
    cuda = torch.cuda.get_rng_state(device) if on_cuda and device is not None else None
    try:
        yield
    finally:
        torch.set_rng_state(cpu)
        if cuda is not None and device is not None:
            torch.cuda.set_rng_state(cuda, device)


@contextmanager
def all_preserved(device: torch.device | None = None) -> Iterator[None]:
    """As `preserved`, with the generators of Python and numpy: a collator may draw from any."""
    states = python_random.getstate(), np.random.get_state()
    try:
        with preserved(device):
            yield
    finally:
        python_random.setstate(states[0])
        np.random.set_state(states[1])
