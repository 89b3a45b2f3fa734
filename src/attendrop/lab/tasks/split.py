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

    from .catalogue import Task
    from .data import Data

FEW = 20  # validation examples; the standard error of an accuracy on so many is up to 11 points


def _training_split(data: Data) -> Dataset:
    if data.train is None:
        raise UserError(f"{data.task.name} has no training split here.")
    return data.train


def _groups(task: Task, split: Dataset) -> list[np.ndarray]:
    """Return the indices of the examples of each class; one group of all if there are no classes."""
    if not kind_of(task).has_one_class or task.label not in split.column_names:
        return [np.arange(len(split))]
    labels = np.asarray(split[task.label][:])
    return [np.flatnonzero(labels == label) for label in range(len(task.labels))]


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
    train = _training_split(data)
    groups = _groups(data.task, train)
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
    train = _training_split(data)
    groups = _groups(data.task, train)
    for name, group in zip(data.task.labels, groups, strict=True):
        if len(group) < shots:
            raise UserError(f"--shots is {shots}, but the class {name!r} has {plural(len(group), 'training example')}.")
    chosen = _draw(groups, [shots] * len(groups), seed)
    note = f"{shots} training examples of each class, {len(chosen):,} of {len(train):,}, seed {seed}"
    available = {"train": len(train), **data.available}
    return dataclasses.replace(data, train=train.select(chosen), notes=[*data.notes, note], available=available)


def at_most(data: Data, part: str, count: int, seed: int = 42) -> Data:
    """Keep at most `count` examples of a part of the data.

    Every class keeps at least one example, if `count` is large enough for that.

    Args:
        data: The data of a task.
        part: The part: "train", "validation", or another one of `Data.splits`.
        count: The number of examples to keep.
        seed: The seed of the random choice.
    """
    split = data.splits()[part]
    if len(split) <= count:
        return data
    groups = _groups(data.task, split)
    sizes = [len(group) for group in groups]
    lowest = [min(size, 1) if count >= len(groups) else 0 for size in sizes]
    quotas = _quotas(sizes, count / len(split), lowest, sizes)
    while sum(quotas) > count:  # rare classes keep more than their share, at the cost of the largest
        quotas[int(np.argmax(quotas))] -= 1
    noun = "training" if part == "train" else part
    how = "stratified" if len(groups) > 1 else "drawn at random"
    notes = [*data.notes, f"{count:,} of {len(split):,} {noun} examples, {how}, seed {seed}"]
    if empty := sum(size > 0 and not quota for size, quota in zip(sizes, quotas, strict=True)):
        notes.append(f"warning: {plural(count, f'{noun} example')} cannot hold all classes; {empty} have none")
    sampled = data.with_splits({**data.splits(), part: split.select(_draw(groups, quotas, seed))})
    return dataclasses.replace(sampled, notes=notes, available={part: len(split), **data.available})


def with_rest(data: Data, whole: Data) -> Data:
    """Add the training examples that were not drawn to the validation examples.

    Of these, an example with the text of a training or a validation example is left out.

    Args:
        data: The data, whose training examples were drawn from those of `whole`.
        whole: The data before.
    """
    from datasets import concatenate_datasets

    train, pool, validation = _training_split(data), _training_split(whole), data.validation
    assert validation is not None
    used = {*_texts(data, train), *_texts(data, validation)}
    rest = [row for row, text in enumerate(_texts(whole, pool)) if text not in used]
    if not rest:
        raise UserError(f"score_on is 'rest', and all {len(pool):,} training examples of {data.task.name} are drawn.")
    added = pool.select(rest).select_columns(validation.column_names).cast(validation.features)
    note = "the training examples that were not drawn are scored, too"
    joined = concatenate_datasets([validation, added])
    return dataclasses.replace(data, validation=joined, origin=None, notes=[*data.notes, note])


def fraction(data: Data, share: float, seed: int = 42) -> Data:
    """Keep a share of the training examples, and at least one of each class.

    Args:
        data: The data of a task.
        share: The share to keep, above 0 and at most 1.
        seed: The seed of the random choice.
    """
    if not 0 < share <= 1:
        raise UserError(f"--fraction is {share}; it must be above 0 and at most 1.")
    train = _training_split(data)
    groups = _groups(data.task, train)
    sizes = [len(group) for group in groups]
    quotas = _quotas(sizes, share, [min(size, 1) for size in sizes], sizes)
    chosen = _draw(groups, quotas, seed)
    note = f"{len(chosen):,} of {len(train):,} training examples ({share:g}), {_strategy(data)}, seed {seed}"
    available = {"train": len(train), **data.available}
    return dataclasses.replace(data, train=train.select(chosen), notes=[*data.notes, note], available=available)
