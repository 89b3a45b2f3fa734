"""Counter-based draws: uniform, independent of how a batch is split, the same on every device."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest
import torch

from attendrop import random
from attendrop.capture.draws import DrawKeys, StaticMicroBatch
from attendrop.core.schedule import Progress
from attendrop.core.step import MicroBatch, Step
from attendrop.kernels.draws import bernoulli_rows, cpu, reference, uniform


def test_numpy_and_torch_draws_are_equal() -> None:
    positions = torch.tensor([0, 3, 70_000])
    for key in (0, 1, 2**31, 2**32 - 1):
        a = cpu.uniform(key, positions, (2, 5, 7))
        b = reference.uniform_torch(key, positions, (2, 5, 7), "cpu")
        assert torch.equal(a, b)
        assert a.min() >= 0
        assert a.max() < 1


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("shape", [(3, 40, 5), (900, 3), (1, 1)], ids=str)
def test_draws_of_several_threads_are_those_of_one(
    threads: int, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of 64 words, so that every thread has several, the last of which is not full."""
    seen = set()

    def mixed(x: np.ndarray, buffer: np.ndarray | None = None) -> np.ndarray:
        seen.add(threading.get_ident())
        return mix(x, buffer)

    mix = reference.mix_numpy
    monkeypatch.setattr(cpu, "_CHUNK", 64)
    monkeypatch.setattr(cpu, "_ALONE", 300)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(reference, "mix_numpy", mixed)
    positions = torch.tensor([5, 0, 7])
    assert torch.equal(cpu.uniform(9, positions, shape), reference.uniform_torch(9, positions, shape, "cpu"))
    is_large = 3 * math.prod(shape) > 300
    assert (len(seen) > 1) is (threads > 1 and is_large)
    rows, n = shape[0], shape[-1]
    draws = reference.uniform_torch(9, torch.arange(rows), (n,), "cpu")
    for p in (-1.0, 0.0, 0.3, 1 - 2**-24, 1.0, 2.0):
        assert torch.equal(bernoulli_rows(p, 9, rows, n), draws < p)
        assert torch.equal(bernoulli_rows(torch.tensor(p), 9, rows, n), draws < p)
    p = draws[0, 0].item()  # a draw is not below itself
    assert torch.equal(bernoulli_rows(p, 9, rows, n), draws < p)


def test_keys_of_several_sites_are_those_of_each() -> None:
    sites, streams = [-1, 0, 7, 2**31], ["keep", "mixout a.weight", "", "keep"]
    for seed, step in ((0, 0), (42, 70_000), (2**63 + 5, 1)):
        expected = [random.key_of(seed, step, site, stream) for site, stream in zip(sites, streams, strict=True)]
        assert random.keys_of(seed, step, sites, streams).tolist() == random.as_keys(expected).tolist()


def test_draws_of_several_keys_match_those_of_each_key() -> None:
    words, positions = [0, 7, 2**31, 2**32 - 1], torch.tensor([2, 70_000, 5])
    keys = random.as_keys(words)
    assert keys.dtype == torch.int32
    alone = torch.stack([uniform(word, positions, (2, 5, 7)) for word in words])
    for draw in (uniform, reference.uniform_torch):
        assert torch.equal(draw(keys.unsqueeze(1), positions, (2, 5, 7), "cpu"), alone)
        # a key for each site and row
        mixed = draw(torch.stack([keys[:3], keys[1:]]), positions, (5, 7), "cpu")
        for i, site in enumerate((words[:3], words[1:])):
            for j, word in enumerate(site):
                assert torch.equal(mixed[i, j], uniform(word, positions[j : j + 1], (5, 7))[0])
        assert torch.equal(draw(keys[1], positions, (5, 7), "cpu"), uniform(7, positions, (5, 7)))


def test_keys_of_a_step_match_those_in_device_memory() -> None:
    device = torch.device("cpu")
    step = Step(None, None, Progress(step=14), seed=3)  # type: ignore[arg-type]
    batch = MicroBatch(step, first_position=8, size=2)
    draws = DrawKeys(device)
    static = StaticMicroBatch.of(batch, draws)
    sites = (4, 0, 9)
    static.keys(sites, "x", device)
    for number in (14, 15):
        step.progress = Progress(step=number)
        draws.write(batch)
        alone = torch.stack([batch.uniform(site, (4, 2, 5, 7), device, "x") for site in sites])
        for source in (batch, static):
            keys, positions = source.keys(sites, "x", device), source.positions(4, device)
            assert keys.shape == (3, 1)
            for draw in (uniform, reference.uniform_torch):
                assert torch.equal(draw(keys, positions, (2, 5, 7), device), alone)


def test_draws_depend_on_the_example_and_not_on_the_batch() -> None:
    key = random.key_of(seed=7, step=3, site=1)
    whole = uniform(key, torch.arange(6), (4, 9, 9))
    half = uniform(key, torch.arange(3, 6), (4, 9, 9))
    assert torch.equal(whole[3:], half)
    longer = uniform(key, torch.arange(6), (4, 12, 12))
    assert torch.equal(whole, longer[:, :, :9, :9])


@pytest.mark.parametrize("other", [{"seed": 8}, {"seed": 7 + 2**32}, {"step": 4}, {"site": 2}, {"stream": "x"}])
def test_every_counter_changes_the_draws(other: dict) -> None:
    base = {"seed": 7, "step": 3, "site": 1}
    a = uniform(random.key_of(**base), torch.arange(4), (4, 16, 16))
    b = uniform(random.key_of(**{**base, **other}), torch.arange(4), (4, 16, 16))
    correlation = torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1]
    assert abs(correlation) < 4 / a.numel() ** 0.5


def test_draws_are_uniform_and_neighbours_are_independent() -> None:
    x = uniform(random.key_of(0, 0, 0), torch.arange(16), (8, 64, 64))
    n = x.numel()
    assert abs(x.mean() - 0.5) < 4 * (1 / 12 / n) ** 0.5
    counts = torch.histc(x, bins=64, min=0, max=1)
    chi2 = ((counts - n / 64) ** 2 / (n / 64)).sum()
    assert chi2 < 63 + 4 * (2 * 63) ** 0.5
    for dim in range(4):
        a, b = x.narrow(dim, 0, x.shape[dim] - 1), x.narrow(dim, 1, x.shape[dim] - 1)
        correlation = torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1]
        assert abs(correlation) < 4 / a.numel() ** 0.5


def test_shared_generator_is_reproducible_and_changes_with_the_step() -> None:
    a, b, c = (torch.rand(8, generator=random.shared_generator(1, step, "layers")) for step in (5, 5, 6))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
