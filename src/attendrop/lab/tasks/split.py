"""Sample the training examples: split off a validation set, keep a few examples of each class, or keep a share.

Each function has its own random generator, so that the result depends on the seed and the labels only. Sampling is
stratified by class if the label is a class. Examples keep their order.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Hashable
from typing import TYPE_CHECKING

import numpy as np

from ...errors import UserError
from .findings import plural
from .kinds import kind_of
from .modalities import modality_of

if TYPE_CHECKING:
    from datasets import Dataset

    from .data import Data

FEW = 20  # validation examples; the standard error of an accuracy on so many is up to 11 points


def _training_split(data: Data) -> Dataset:
    if data.train is None:
        raise UserError(f"{data.task.name} has no training split here.")
    return data.train


def _groups(data: Data) -> list[np.ndarray]:
    """Return the indices of the training examples of each class; one group of all if there are no classes."""
    train = _training_split(data)
    if not kind_of(data.task).has_one_class:
        return [np.arange(len(train))]
    labels = np.asarray(train[data.task.label][:])
    return [np.flatnonzero(labels == label) for label in range(len(data.task.labels))]


def _quotas(sizes: list[int], share: float, lowest: list[int], highest: list[int]) -> list[int]:
    """Return the number of examples to draw from each group so that they are `share` of all examples together.

    The largest remainders are rounded up. Each number stays between `lowest` and `highest` of its group.
    """
    exact = [share * size for size in sizes]
    bounds = list(zip(lowest, highest, strict=True))
    quotas = [min(max(int(x), low), high) for x, (low, high) in zip(exact, bounds, strict=True)]
    total = round(share * sum(sizes))
    for group in sorted(range(len(sizes)), key=lambda g: (quotas[g] - exact[g], g)):
        if sum(quotas) >= total:
            break
        quotas[group] = min(quotas[group] + 1, highest[group])
    return quotas


def _draw(groups: list[np.ndarray], quotas: list[int], seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    drawn = [generator.permutation(group)[:quota] for group, quota in zip(groups, quotas, strict=True)]
    return np.sort(np.concatenate(drawn)) if drawn else np.empty(0, dtype=int)


def _strategy(data: Data) -> str:
    return "stratified" if kind_of(data.task).has_one_class else "at random"


def split_validation(data: Data, share: float = 0.1, seed: int = 42) -> Data:
    """Split a validation set off the training examples. Data that have a validation split are returned unchanged.

    Args:
        data: The data of a task.
        share: The share of the training examples to split off. A class with a single example stays in training.
        seed: The seed of the random choice.
    """
    if data.validation is not None:
        return data
    if not 0 < share < 1:
        raise UserError(f"validation_share is {share}; it must be between 0 and 1.")
    train, groups = _training_split(data), _groups(data)
    texts = _texts(data, train)
    chosen = _draw_unique(groups, share, seed, texts)
    if not len(chosen):
        raise UserError(
            f"{data.task.name} has no validation split, and its {len(train)} training examples are too few to split "
            f"{share:.0%} off; use --validation-file."
        )
    rest = np.setdiff1d(np.arange(len(train)), chosen)
    counts = f"{len(chosen):,} of {len(train):,} training examples"
    notes = [*data.notes, f"no validation split: {counts} split off, {_strategy(data)}, seed {seed}"]
    if len(chosen) < FEW:
        notes.append(
            f"warning: a score on {plural(len(chosen), 'validation example')} says little; split off more with "
            "--validation-share, or use --validation-file"
        )
    kept = {texts[i] for i in rest}
    if repeated := sum(texts[i] in kept for i in chosen):
        notes.append(
            f"warning: {repeated:,} of {plural(len(chosen), 'validation example')} have the "
            f"{modality_of(data.task).noun} of a training example; scores on them are too good"
        )
    return dataclasses.replace(data, train=train.select(rest), validation=train.select(chosen), notes=notes)


def _texts(data: Data, train: Dataset) -> list[tuple[Hashable, ...]]:
    """Return the key of each example: its texts, or its file."""
    modality = modality_of(data.task)
    return list(zip(*(modality.keys(data.task, train[name][:]) for name in data.task.text), strict=True))


def _draw_unique(groups: list[np.ndarray], share: float, seed: int, texts: list[tuple[Hashable, ...]]) -> np.ndarray:
    """Draw a share of the examples, of those whose text occurs once: repeated texts stay in training.

    Where fewer than half of the examples that are needed have such a text, all examples are drawn from.
    """
    counts = Counter(texts)
    sizes = [len(group) for group in groups]
    unique = [np.array([i for i in group if counts[texts[i]] == 1], dtype=int) for group in groups]
    for candidates in (unique, groups):
        most = [min(max(size - 1, 0), len(of)) for size, of in zip(sizes, candidates, strict=True)]
        quotas = _quotas(sizes, share, [0] * len(sizes), most)
        if 2 * sum(quotas) >= round(share * sum(sizes)):
            break
    return _draw(candidates, quotas, seed)


def few_shots(data: Data, shots: int, seed: int = 42) -> Data:
    """Keep `shots` training examples of each class.

    Args:
        data: The data of a classification task.
        shots: The number of examples of each class.
        seed: The seed of the random choice.
    """
    if not kind_of(data.task).has_one_class:
        raise UserError(f"--shots counts examples of each class, and {data.task.name} is of kind {data.task.kind}.")
    if shots < 1:
        raise UserError(f"--shots is {shots}; it must be at least 1.")
    train, groups = _training_split(data), _groups(data)
    for name, group in zip(data.task.labels, groups, strict=True):
        if len(group) < shots:
            raise UserError(f"--shots is {shots}, but the class {name!r} has {plural(len(group), 'training example')}.")
    chosen = _draw(groups, [shots] * len(groups), seed)
    note = f"{shots} training examples of each class, {len(chosen):,} of {len(train):,}, seed {seed}"
    return dataclasses.replace(data, train=train.select(chosen), notes=[*data.notes, note])


def fraction(data: Data, share: float, seed: int = 42) -> Data:
    """Keep a share of the training examples, and at least one of each class.

    Args:
        data: The data of a task.
        share: The share to keep, above 0 and at most 1.
        seed: The seed of the random choice.
    """
    if not 0 < share <= 1:
        raise UserError(f"--fraction is {share}; it must be above 0 and at most 1.")
    train, groups = _training_split(data), _groups(data)
    sizes = [len(group) for group in groups]
    quotas = _quotas(sizes, share, [min(size, 1) for size in sizes], sizes)
    chosen = _draw(groups, quotas, seed)
    note = f"{len(chosen):,} of {len(train):,} training examples ({share:g}), {_strategy(data)}, seed {seed}"
    return dataclasses.replace(data, train=train.select(chosen), notes=[*data.notes, note])
