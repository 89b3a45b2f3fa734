"""Length-grouped batches that are the same on one process and on several, and after a resume.

transformers' own sampler draws from the global random state, which no checkpoint of the middle of an epoch can bring
back, and which differs between processes once training runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

POOL = 50  # batches that are sorted together: enough to save padding, few enough to stay random


class LengthGroupedSampler(torch.utils.data.Sampler[int]):
    """Shuffles, sorts pools of `POOL` batches by length, and shuffles the batches of each pool."""

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int) -> None:
        self.lengths = torch.as_tensor(list(lengths))
        self.batch_size = batch_size  # of all processes together
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
            # a batch that is not full stays last, or all batches behind it would be cut elsewhere
            full = len(batches) - (len(batches[-1]) < self.batch_size)
            for i in [*torch.randperm(full, generator=generator).tolist(), *range(full, len(batches))]:
                yield from batches[i].tolist()
