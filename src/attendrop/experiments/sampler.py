"""Length-grouped batches that are the same on one process and on several, and after a resume.

The sampler of transformers draws from the global random state. A checkpoint in the middle of an epoch cannot restore
that state, and it differs between processes during training.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import Sampler, Subset

POOL = 50  # batches that are sorted together: enough to save padding, few enough to stay random


class LengthGroupedSampler(Sampler[int]):
    """Shuffle the examples, sort pools of `POOL` batches by length, and shuffle the batches of each pool.

    Args:
        lengths: The length of each example.
        batch_size: The number of examples in a batch of all processes together.
        seed: The seed; each epoch has a different order.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int) -> None:
        self.lengths = torch.as_tensor(list(lengths))
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(len(self.lengths), generator=generator)
        for pool in order.split(POOL * self.batch_size):
            by_length = pool[self.lengths[pool].argsort(descending=True, stable=True)]
            batches = list(by_length.split(self.batch_size))
            # A batch that is not full must stay last. Otherwise all batches after it would begin elsewhere.
            full = len(batches) - (len(batches[-1]) < self.batch_size)
            for i in [*torch.randperm(full, generator=generator).tolist(), *range(full, len(batches))]:
                yield from batches[i].tolist()


def length_grouped(base: Any) -> Any:
    """Return a subclass of a Trainer class that groups batches by length with `LengthGroupedSampler`."""

    class LengthGroupedTrainer(base):
        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            if self.args.train_sampling_strategy != "group_by_length" or self.train_dataset is None:
                return super()._get_train_sampler(train_dataset)
            batch_size = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
            seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
            return LengthGroupedSampler(_lengths(self.train_dataset), batch_size, seed)

    return LengthGroupedTrainer


def _lengths(dataset: Any) -> list[int]:
    if isinstance(dataset, Subset):  # a method holds out the other examples
        lengths = _lengths(dataset.dataset)
        return [lengths[i] for i in dataset.indices]
    return list(dataset["length"])
