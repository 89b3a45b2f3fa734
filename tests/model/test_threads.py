"""Several threads that ask for attributions of one model take turns, and get what each of them would get alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch

from attendrop import IntegrationRule, attribute
from attendrop.model.seams import Seams
from helpers import zoo


def test_threads_that_share_a_model_get_the_maps_that_each_gets_alone() -> None:
    model = zoo.make_model("bert", dropout=False).eval()
    batch = zoo.make_batch("bert")
    rows = [{name: value[row : row + 1] for name, value in batch.items()} for row in range(len(batch["input_ids"]))]
    asked = [(row, method) for row in rows for method in ("ga", "aa", "iga")] * 3

    def maps(question: tuple[dict[str, torch.Tensor], str]) -> dict[int, torch.Tensor]:
        return attribute(model, question[0], method=question[1], rule=IntegrationRule("gauss", 2))

    alone = [maps(question) for question in asked]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(maps, asked))
    for expected, actual in zip(alone, together, strict=True):
        assert expected.keys() == actual.keys()
        assert all(torch.equal(actual[layer], values) for layer, values in expected.items())
    assert Seams.of(model) is None
