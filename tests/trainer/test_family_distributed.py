"""Every method on two processes: replicas stay equal, and match one process that takes the batches of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.data import largest_difference, same_bits
from helpers.forks import run_ranks
from helpers.settings import SETTINGS, bert_for
from scripts.train_family import NEEDS_DROPOUT, train

# One process runs all of these tests, so that their shared fixtures are created once.
pytestmark = pytest.mark.xdist_group("family")

SCRIPT = str(Path(__file__).parents[1] / "scripts" / "train_family.py")

# What these compute of a batch is not a mean over its examples, so that two halves are not the whole.
NOT_A_MEAN = {
    "sam": "each process ascends on its own examples",
    "asam": "each process ascends on its own examples",
    "functional_sam": "each process ascends on its own examples",
    "hidden_mixup": "the partner of an example is in its own batch",
    "supcon": "the other examples of a class are those of its own batch",
    "scal": "the negatives of an example are the others of its own batch",
}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("family")
    for done in run_ranks(2, SCRIPT, folder):
        assert done.code == 0, done.err[-4000:]
    return [torch.load(folder / f"rank{rank}.pt") for rank in (0, 1)]


@pytest.mark.parametrize("method", SETTINGS)
def test_replicas_stay_equal_and_match_one_process(method: str, ranks: list[dict[str, Any]]) -> None:
    first, second = (rank[method] for rank in ranks)
    assert same_bits(first, second)
    # otherwise the equality would say nothing
    assert largest_difference(first, ranks[0][f"plain {bert_for(method)}"]) > 1e-4
    if method in NEEDS_DROPOUT:
        return
    difference = largest_difference(first, train(method, 1, bert_for(method)))
    if method in NOT_A_MEAN:
        assert difference > 1e-6
    else:
        assert difference < 1e-9
