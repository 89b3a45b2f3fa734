"""What `benchmarks/fusions.py` tries computes the same as the model that it changes."""

from __future__ import annotations

import copy
import csv
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import fusions
from benchmarks.shapes import RandomTexts, make_model
from helpers.precision import assert_same_numbers


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("model", ["tiny", "tiny bert"])
@pytest.mark.parametrize(
    "change",
    [fusions.fuse_norms, partial(fusions.fuse_norms, with_bias=False), fusions.fuse_gelu, fusions.fuse_both],
    ids=["norms and biases", "norms", "GELU", "both"],
)
def test_regions_compute_what_the_model_does(change: Callable[..., None], model: str) -> None:
    plain = make_model(model, 8, "cpu").double().train()
    texts = RandomTexts(3, 8, model)
    batch = {name: torch.tensor([text[name] for text in texts]) for name in texts[0]}
    changed, calls = copy.deepcopy(plain), []

    def noted(region: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments: (calls.append(region), region(*arguments))[1]

    change(changed, compiler=noted)
    expected = fusions.gradients(plain, batch, torch.float64)
    for actual, wanted in zip(fusions.gradients(changed, batch, torch.float64), expected, strict=True):
        assert_same_numbers(actual, wanted)
    called = [region.__name__ for region in calls]
    layers = plain.config.num_hidden_layers
    assert called.count("norm_region") == (0 if change is fusions.fuse_gelu else 2 * layers)
    assert called.count("gelu_region") == (layers if change in (fusions.fuse_gelu, fusions.fuse_both) else 0)


@pytest.mark.slow
def test_fusions_benchmark_writes_complete_rows(tmp_path: Path) -> None:
    common = ["--model", "tiny", "--device", "cpu", "--sizes", "2x8", "--calls", "5", "--rounds", "1"]
    fusions.main([*common, "--parts", "kernels", "--output", str(tmp_path / "kernels.csv")])
    fusions.main([*common, "--parts", "steps", "--only", "GELU compiled", "--output", str(tmp_path / "steps.csv")])
    with (tmp_path / "kernels.csv").open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    assert [row["what"].rpartition(", ")[2] for row in rows[-2:]] == ["apart", "in the optimizer"]
    assert all(float(row["microseconds"]) > 0 for row in rows)
    with (tmp_path / "steps.csv").open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    assert [row["what"] for row in rows] == ["plain captured", "GELU compiled"]
    assert float(rows[1]["error"]) < 2
