"""The two random streams: local draws, one for each example, and shared draws, the same on every process.

A local draw is a pure function of (seed, optimizer step, site, position of the example in the global batch, head,
query, key). One process and several therefore draw the same, a replay under gradient checkpointing sees the same, a
longer padding changes nothing, and there is no state to save with a checkpoint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

_WORD = 0xFFFFFFFF
_GOLDEN = 0x9E3779B9  # odd, so that multiples of it visit every word
_MULTIPLY_1, _MULTIPLY_2 = 0x7FEB352D, 0x846CA68B


def _mix(x: int) -> int:
    """A bijection of 32-bit words in which every input bit changes every output bit about half of the time."""
    x ^= x >> 16
    x = x * _MULTIPLY_1 & _WORD
    x ^= x >> 15
    x = x * _MULTIPLY_2 & _WORD
    return x ^ x >> 16


def _mix_numpy(x: np.ndarray) -> np.ndarray:
    x ^= x >> np.uint32(16)
    x *= np.uint32(_MULTIPLY_1)
    x ^= x >> np.uint32(15)
    x *= np.uint32(_MULTIPLY_2)
    x ^= x >> np.uint32(16)
    return x


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word


def _mix_torch(x: Tensor) -> Tensor:
    # torch shifts int32 arithmetically, so the sign bits are masked away; products wrap as the unsigned ones do.
    x ^= (x >> 16) & 0xFFFF
    x *= _signed(_MULTIPLY_1)
    x ^= (x >> 15) & 0x1FFFF
    x *= _signed(_MULTIPLY_2)
    x ^= (x >> 16) & 0xFFFF
    return x


def key_of(seed: int, step: int, site: int, stream: str = "keep") -> int:
    """The 32-bit key of one site in one optimizer step."""
    key = int.from_bytes(hashlib.blake2s(stream.encode(), digest_size=4).digest(), "little")
    for word in (seed & _WORD, seed >> 32 & _WORD, step, site):
        key = _mix((key + word * _GOLDEN + 1) & _WORD)
    return key


def uniform(key: int, positions: Tensor, shape: tuple[int, ...], device: torch.device | str = "cpu") -> Tensor:
    """Draws in [0, 1) for the examples at `positions` of the global batch: [len(positions), *shape], 24 bits each.

    `shape` is (H, Q, K). The CPU takes numpy, which is three times as fast as torch at this; every device gives the
    same numbers.
    """
    draw = _uniform_numpy if torch.device(device).type == "cpu" else _uniform_torch
    return draw(key, positions, shape, device)


def _axis(rank: int, axis: int) -> tuple[int, ...]:
    return tuple(-1 if i == axis else 1 for i in range(rank))


def _uniform_numpy(key: int, positions: Tensor, shape: tuple[int, ...], device: torch.device | str) -> Tensor:
    rank = 1 + len(shape)
    x = np.full((1,) * rank, key, dtype=np.uint32)
    for axis, counter in enumerate([positions.cpu().numpy(), *(np.arange(n) for n in shape)]):
        x = _mix_numpy(x + (counter.astype(np.uint32) * np.uint32(_GOLDEN)).reshape(_axis(rank, axis)))
    return torch.from_numpy((x >> np.uint32(8)).astype(np.float32) * np.float32(2**-24))


def _uniform_torch(key: int, positions: Tensor, shape: tuple[int, ...], device: torch.device | str) -> Tensor:
    rank = 1 + len(shape)
    x = torch.full((1,) * rank, _signed(key), dtype=torch.int32, device=device)
    for axis, counter in enumerate([positions.to(device), *(torch.arange(n, device=device) for n in shape)]):
        x = _mix_torch(x + (counter.to(torch.int32) * _signed(_GOLDEN)).reshape(_axis(rank, axis)))
    return ((x >> 8) & 0xFFFFFF).to(torch.float32) * 2**-24


def shared_generator(seed: int, step: int, name: str) -> torch.Generator:
    """For what all replicas must agree on: structure, weights, gradients. The same on every process."""
    generator = torch.Generator()
    generator.manual_seed(key_of(seed, step, 0, name) << 32 | key_of(seed, step, 1, name))
    return generator


@contextmanager
def preserved(device: torch.device | None = None) -> Iterator[None]:
    """Leaves the global random state (CPU and `device`) as it was found."""
    cpu = torch.get_rng_state()
    cuda = torch.cuda.get_rng_state(device) if device is not None and device.type == "cuda" else None
    try:
        yield
    finally:
        torch.set_rng_state(cpu)
        if cuda is not None and device is not None:
            torch.cuda.set_rng_state(cuda, device)
