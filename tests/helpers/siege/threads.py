"""One model in several threads at once."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification

from attendrop.model.attribution import attribute

from .cases import Case, Siege

_OTHER_MAPS = 3  # an exit code


def threads(siege: Siege) -> Iterator[Case]:
    """`attribute` on one model from several threads: the maps of one thread, or an error."""

    def check(code: int, text: str) -> str | None:
        return "other maps" if code == _OTHER_MAPS else None

    while True:
        seed, number = siege.draw.randrange(1000), siege.draw.choice((2, 4, 8))
        yield Case(
            f"{number} threads, seed {seed}", act=lambda seed=seed, number=number: _attribute(siege, seed, number)
        )


def _attribute(siege: Siege, seed: int, number: int) -> int:
    model = AutoModelForSequenceClassification.from_pretrained(siege.model).eval()
    torch.manual_seed(seed)
    batches = [{"input_ids": torch.randint(5, 100, (3, 4 + at))} for at in range(number)]
    method = ("ga", "aa", "iga")[seed % 3]
    expected = [attribute(model, batch, method) for batch in batches]
    results: list[Any] = [None] * number

    def work(at: int) -> None:
        try:
            results[at] = attribute(model, batches[at], method)
        except (RuntimeError, ValueError) as error:  # a refusal is right, too
            results[at] = error

    workers = [Thread(target=work, args=(at,)) for at in range(number)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for one, other in zip(expected, results, strict=True):
        if isinstance(other, dict) and not _same(one, other):
            return _OTHER_MAPS
    return 0


def _same(one: dict[int, torch.Tensor], other: dict[int, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[layer], other[layer]) for layer in one)
