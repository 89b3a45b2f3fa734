"""The keys of random draws, generators that all processes share, and the global random state preserved.

There are two kinds of draws. A *local* draw is made for one example (a mask, say). It is a pure function of a key and
of the example's position in the global batch (`attendrop.kernels.draws`). One process and several therefore draw the
same, a recomputation under gradient checkpointing sees the same, longer padding changes nothing, and there is no state
to save with a checkpoint. A *shared* draw is made for what all processes must agree on: structure, weights, gradients.
"""

from __future__ import annotations

import functools
import hashlib
import random as python_random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
import torch
from torch import Tensor

from .kernels.draws.reference import GOLDEN, WORD, mix, mix_numpy, signed


def key_of(seed: int, step: int, site: int, stream: str = "keep") -> int:
    """Return the 32-bit key of the local draws of one attention site in one step; `stream` names their purpose."""
    key = _word_of(stream)
    for word in (seed & WORD, seed >> 32 & WORD, step, site):
        key = mix((key + word * GOLDEN + 1) & WORD)
    return key


def keys_of(seed: int, step: int, sites: Sequence[int], streams: Sequence[str]) -> np.ndarray:
    """`key_of` for each site and its stream, int32 as in `as_keys`, in far less time than one after the other."""
    keys = np.array([_word_of(stream) for stream in streams], dtype=np.uint32)
    for word in (seed & WORD, seed >> 32 & WORD, step):
        keys = mix_numpy(keys + np.uint32((word * GOLDEN + 1) & WORD))
    words = np.array(sites, dtype=np.int64).astype(np.uint32)
    return mix_numpy(keys + words * np.uint32(GOLDEN) + np.uint32(1)).view(np.int32)


@functools.cache
def _word_of(stream: str) -> int:
    return int.from_bytes(hashlib.blake2s(stream.encode(), digest_size=4).digest(), "little")


def as_keys(words: Sequence[int]) -> Tensor:
    """32-bit keys as an int32 tensor on the CPU."""
    return torch.tensor([signed(word) for word in words], dtype=torch.int32)


def shared_generator(seed: int, step: int, name: str) -> torch.Generator:
    """Return a CPU generator that is the same on every process; `name` distinguishes generators of one step."""
    generator = torch.Generator()
    generator.manual_seed(key_of(seed, step, 0, name) << 32 | key_of(seed, step, 1, name))
    return generator


def cuda_generator(device: torch.device) -> torch.Generator:
    """Return the global generator of a GPU."""
    return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]


_advances: ContextVar[bool] = ContextVar("advances", default=False)


@contextmanager
def advancing() -> Iterator[None]:
    """Keep `preserved` from restoring the state of a GPU in the block, as during a capture."""
    token = _advances.set(True)
    try:
        yield
    finally:
        _advances.reset(token)


@contextmanager
def preserved(device: torch.device | None = None) -> Iterator[None]:
    """Restore the global random state of torch, on the CPU and on `device`, and of numpy, when the block ends.

    SpecAugment, in the forward of wav2vec2 and Whisper, draws from numpy.
    The state of a GPU cannot be read during graph capture. The code that replays the graph restores it.
    """
    cpu, of_numpy = torch.get_rng_state(), np.random.get_state()
    on_cuda = device is not None and device.type == "cuda" and not _advances.get()
    on_cuda = on_cuda and not torch.cuda.is_current_stream_capturing()
    cuda = torch.cuda.get_rng_state(device) if on_cuda and device is not None else None
    try:
        yield
    finally:
        torch.set_rng_state(cpu)
        np.random.set_state(of_numpy)
        if cuda is not None and device is not None:
            torch.cuda.set_rng_state(cuda, device)


@contextmanager
def all_preserved(device: torch.device | None = None) -> Iterator[None]:
    """Like `preserved`, with the global generator of Python, from which a collator may draw."""
    state = python_random.getstate()
    try:
        with preserved(device):
            yield
    finally:
        python_random.setstate(state)
