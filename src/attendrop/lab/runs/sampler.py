"""Length-grouped batches that are the same on one process and on several, and after a resume.

The sampler of transformers draws from the global random state. A checkpoint in the middle of an epoch cannot restore
that state, and it differs between processes during training.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.utils.data import Sampler

POOL = 50  # batches that are sorted together: enough to save padding, few enough to stay random


class LengthGroupedSampler(Sampler[int]):
    """Shuffle the examples, sort pools of `POOL` batches by length, and shuffle the batches of each pool.

    Args:
        lengths: The length of each example.
        batch_size: The number of examples in a batch of all processes together.
        seed: The seed; each epoch has a different order.
        classes: The class of each example, to draw equally many of each class; None = every example once.
        grouped: Whether batches are grouped by length.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        batch_size: int,
        seed: int,
        classes: Sequence[int] | None = None,
        grouped: bool = True,
    ) -> None:
        self.lengths = torch.as_tensor(list(lengths))
        self.classes = None if classes is None else torch.as_tensor(list(classes))
        self.grouped = grouped
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = self._order(generator)
        if not self.grouped:
            yield from order.tolist()
            return
        for pool in order.split(POOL * self.batch_size):
            by_length = pool[self.lengths[pool].argsort(descending=True, stable=True)]
            batches = list(by_length.split(self.batch_size))
            # A batch that is not full must stay last. Otherwise all batches after it would begin elsewhere.
            full = len(batches) - (len(batches[-1]) < self.batch_size)
            for i in [*torch.randperm(full, generator=generator).tolist(), *range(full, len(batches))]:
                yield from batches[i].tolist()

    def _order(self, generator: torch.Generator) -> Tensor:
        """Return the examples of an epoch in random order.

        Every class is drawn equally often, and the epoch has as many draws as examples. All examples of a rare class
        come once before any of them comes again.
        """
        if self.classes is None:
            return torch.randperm(len(self.lengths), generator=generator)
        present = self.classes.unique()
        drawn = []
        for place, label in enumerate(present):
            members = (self.classes == label).nonzero().flatten()
            quota = len(self) // len(present) + (place < len(self) % len(present))
            rounds = -(-quota // len(members))
            shuffled = [members[torch.randperm(len(members), generator=generator)] for _ in range(rounds)]
            drawn.append(torch.cat(shuffled)[:quota])
        chosen = torch.cat(drawn)
        return chosen[torch.randperm(len(chosen), generator=generator)]
