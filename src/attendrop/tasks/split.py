"""Takes parts of the training examples: a validation part, a few examples of each class, a share of them.

Each draw has a generator of its own, so that it depends on nothing but the seed and the labels. Where the label is a
class, every class gives its share. Examples keep their order.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from ..errors import UserError
from .files import plural

if TYPE_CHECKING:
    from datasets import Dataset

    from .data import Data


def _train(data: Data) -> Dataset:
    if data.train is None:
        raise UserError(f"{data.task.name} has no training part here.")
    return data.train


def _groups(data: Data) -> list[np.ndarray]:
    """The places of the training examples by class; in one group where there are no classes."""
    train = _train(data)
    if data.task.kind != "classification":
        return [np.arange(len(train))]
    labels = np.asarray(train[data.task.label][:])
    return [np.flatnonzero(labels == label) for label in range(len(data.task.labels))]


def _quotas(sizes: list[int], share: float, lowest: list[int], highest: list[int]) -> list[int]:
    """How many each group gives, so that they are `share` of all together: the largest remainders are rounded up."""
    exact = [share * size for size in sizes]
    bounds = list(zip(lowest, highest, strict=True))
    quotas = [min(max(int(x), low), high) for x, (low, high) in zip(exact, bounds, strict=True)]
    wanted = round(share * sum(sizes))
    for group in sorted(range(len(sizes)), key=lambda g: (quotas[g] - exact[g], g)):
        if sum(quotas) >= wanted:
            break
        quotas[group] = min(quotas[group] + 1, highest[group])
    return quotas


def _draw(groups: list[np.ndarray], quotas: list[int], seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    drawn = [generator.permutation(group)[:quota] for group, quota in zip(groups, quotas, strict=True)]
    return np.sort(np.concatenate(drawn)) if drawn else np.empty(0, dtype=int)


def _how(data: Data) -> str:
    return "stratified" if data.task.kind == "classification" else "at random"


def split_validation(data: Data, share: float = 0.1, seed: int = 42) -> Data:
    """Splits a validation part off the training part; a class with one example stays in training.

    Data that have a validation part come back as they are.
    """
    if data.validation is not None:
        return data
    if not 0 < share < 1:
        raise UserError(f"the share for validation is {share}; it must lie between 0 and 1.")
    train, groups = _train(data), _groups(data)
    sizes = [len(group) for group in groups]
    quotas = _quotas(sizes, share, [0] * len(sizes), [max(size - 1, 0) for size in sizes])
    chosen = _draw(groups, quotas, seed)
    if not len(chosen):
        raise UserError(
            f"{data.task.name} has no validation part, and its {len(train)} training examples are too few to split "
            f"{share:.0%} off; give a validation file."
        )
    rest = np.setdiff1d(np.arange(len(train)), chosen)
    note = (
        f"no validation part: {len(chosen):,} of {len(train):,} training examples split off, {_how(data)}, seed {seed}"
    )
    return dataclasses.replace(
        data, train=train.select(rest), validation=train.select(chosen), notes=[*data.notes, note]
    )


def few_shots(data: Data, shots: int, seed: int = 42) -> Data:
    """Keeps `shots` training examples of each class."""
    if data.task.kind != "classification":
        raise UserError(f"--shots counts examples of each class, and {data.task.name} is of kind {data.task.kind}.")
    if shots < 1:
        raise UserError(f"--shots is {shots}; it must be at least 1.")
    train, groups = _train(data), _groups(data)
    for name, group in zip(data.task.labels, groups, strict=True):
        if len(group) < shots:
            raise UserError(f"--shots is {shots}, but the class {name!r} has {plural(len(group), 'training example')}.")
    chosen = _draw(groups, [shots] * len(groups), seed)
    note = f"{shots} training examples of each class, {len(chosen):,} of {len(train):,}, seed {seed}"
    return dataclasses.replace(data, train=train.select(chosen), notes=[*data.notes, note])


def fraction(data: Data, share: float, seed: int = 42) -> Data:
    """Keeps a share of the training examples; at least one of each class."""
    if not 0 < share <= 1:
        raise UserError(f"--fraction is {share}; it must lie above 0 and at most at 1.")
    train, groups = _train(data), _groups(data)
    sizes = [len(group) for group in groups]
    quotas = _quotas(sizes, share, [min(size, 1) for size in sizes], sizes)
    chosen = _draw(groups, quotas, seed)
    note = f"{len(chosen):,} of {len(train):,} training examples ({share:g}), {_how(data)}, seed {seed}"
    return dataclasses.replace(data, train=train.select(chosen), notes=[*data.notes, note])
