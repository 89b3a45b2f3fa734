"""Length-grouped batches: every example once in each epoch, similar lengths together, another order in each epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from attendrop.lab.runs.sampler import POOL, LengthGroupedSampler
from attendrop.lab.runs.trainer import RunTrainer
from helpers.data import make_arguments, make_examples, pad
from helpers.zoo import make_model

COUNT, SIZE = 430, 4  # more than two pools, and a last batch that is not full
LENGTHS = torch.randint(3, 60, (COUNT,), generator=torch.Generator().manual_seed(0)).tolist()


def batches_of(sampler: LengthGroupedSampler, epoch: int = 0) -> list[list[int]]:
    sampler.set_epoch(epoch)
    order = list(sampler)
    assert sorted(order) == list(range(len(sampler)))
    return [order[i : i + SIZE] for i in range(0, len(order), SIZE)]


def test_every_epoch_has_another_order() -> None:
    sampler = LengthGroupedSampler(LENGTHS, SIZE, seed=5)
    first, second = batches_of(sampler, 0), batches_of(sampler, 1)
    assert first != second
    # not the same batches in another order either
    assert len({frozenset(batch) for batch in first} & {frozenset(batch) for batch in second}) < 5
    assert batches_of(sampler, 0) == first
    assert batches_of(LengthGroupedSampler(LENGTHS, SIZE, seed=5), 1) == second
    assert batches_of(LengthGroupedSampler(LENGTHS, SIZE, seed=99)) != first


def test_batches_have_similar_lengths_in_random_order() -> None:
    batches = batches_of(LengthGroupedSampler(LENGTHS, SIZE, seed=5))
    spread = [max(LENGTHS[i] for i in batch) - min(LENGTHS[i] for i in batch) for batch in batches]
    assert sum(spread) / len(spread) < 2  # of lengths from 3 to 59
    longest = [max(LENGTHS[i] for i in batch) for batch in batches[:POOL]]
    assert longest != sorted(longest)
    assert longest != sorted(longest, reverse=True)
    assert [len(batch) for batch in batches] == [SIZE] * (COUNT // SIZE) + [COUNT % SIZE]


class Seen(TrainerCallback):
    """The sentence lengths of each batch that the model got."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.batches: list[list[list[int]]] = []
        model.register_forward_pre_hook(self.look, with_kwargs=True)

    def on_epoch_begin(self, *args: Any, **kwargs: Any) -> None:
        self.batches.append([])

    def look(self, module: Any, args: Any, kwargs: Any) -> None:
        if self.batches:
            self.batches[-1].append(kwargs["input_ids"].flatten().tolist())


@pytest.mark.parametrize("accumulated", [1, 2])
def test_trainer_takes_another_order_in_each_epoch(tmp_path: Path, accumulated: int) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [{name: x.tolist() for name, x in row.items()} for row in make_examples("bert", 32)]
    data = datasets.Dataset.from_list([{**row, "length": len(row["input_ids"])} for row in rows]).with_format("torch")
    model = make_model("bert")
    seen = Seen(model)
    args = make_arguments(
        tmp_path, num_train_epochs=2, per_device_train_batch_size=4, gradient_accumulation_steps=accumulated,
        train_sampling_strategy="group_by_length",
    )  # fmt: skip
    trainer = RunTrainer(model=model, args=args, train_dataset=data, data_collator=pad, callbacks=[seen])
    assert trainer._get_train_sampler().batch_size == 4 * accumulated
    trainer.train()
    first, second = seen.batches
    assert len(first) == len(second) == 8
    assert sorted(first) != sorted(second)
