"""A regression of numbers from 0 to 100 is learned; those of STS-B start as they always did."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset

from attendrop.lab.runs import Listener, fine_tune
from attendrop.lab.runs.numbers import start_at_labels
from attendrop.lab.studies.spec import RunSpec
from attendrop.lab.studies.worker import Worker
from attendrop.lab.tasks import Data, Task, load_model
from helpers.cli_tools import save_encoder, write_csv

WORDS = ("awful", "poor", "fair", "fine", "great")
TASK = Task("mine", "regression", ("text",), "label", (), ("pearson",))


def rows_of(count: int, seed: int) -> list[tuple[str, str]]:
    """Texts of five words with the mean of their values, from 0 to 100."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        words = draw.choices(WORDS, weights=[draw.random() for _ in WORDS], k=5)
        rows.append((" ".join(words), f"{np.mean([25 * WORDS.index(word) for word in words]):.1f}"))
    return rows


def data_of(values: list[float], kind: str = "regression") -> Data:
    task = Task("mine", kind, ("text",), "label", () if kind == "regression" else ("a", "b"), ("pearson",))
    return Data(task, Dataset.from_dict({"text": ["x"] * len(values), "label": values}), None)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("numbers")
    rows = rows_of(160, 1)
    save_encoder(folder / "model", [text for text, _ in rows])
    write_csv(folder / "train.csv", rows)
    write_csv(folder / "dev.csv", rows_of(60, 2))
    return folder


class Notes(Listener):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


def test_new_head_begins_at_the_labels(place: Path) -> None:
    torch.manual_seed(0)
    model = load_model(str(place / "model"), TASK, pooling="model")
    before = model.classifier.weight.detach().clone()
    sentence = start_at_labels(model, data_of([40.0, 60.0, 80.0]))
    assert sentence == "the head begins at the mean of the training labels, 60, with their deviation, 16.33"
    assert torch.allclose(model.classifier.weight, before * np.std([40, 60, 80]))
    assert model.classifier.bias.item() == 60


def test_pooled_head_learns_standard_numbers(place: Path) -> None:
    model = load_model(str(place / "model"), TASK, pooling="mean")
    assert "deviation 1" in str(start_at_labels(model, data_of([40.0, 60.0, 80.0])))
    assert model.output_shift.item() == 60
    assert model.output_scale.item() == pytest.approx(np.std([40, 60, 80]))


@pytest.mark.parametrize("values", [[0.0, 2.5, 5.0], [-1.0, 0.0, 1.0], [0.0, 0.0]])
def test_small_labels_start_as_they_always_did(place: Path, values: list[float]) -> None:
    model = load_model(str(place / "model"), TASK, pooling="model")
    before = [parameter.detach().clone() for parameter in model.parameters()]
    assert start_at_labels(model, data_of(values)) is None
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_constant_labels_and_a_head_without_bias(place: Path) -> None:
    model = load_model(str(place / "model"), TASK, pooling="model")
    before = model.classifier.weight.detach().clone()
    start_at_labels(model, data_of([50.0, 50.0]))
    assert torch.equal(model.classifier.weight, before)
    assert model.classifier.bias.item() == 50
    model = load_model(str(place / "model"), TASK, pooling="model")
    model.classifier.bias = None
    before = model.classifier.weight.detach().clone()
    start_at_labels(model, data_of([30.0, 50.0]))
    assert torch.allclose(model.classifier.weight, before * np.hypot(40, 10))


def test_numbers_from_0_to_100_are_learned_and_a_trained_head_stays(place: Path, tmp_path: Path) -> None:
    notes = Notes()
    given: dict[str, Any] = {
        "model": str(place / "model"), "train_file": str(place / "train.csv"), "kind": "regression",
        "validation_file": str(place / "dev.csv"), "use_cpu": True, "seed": 1, "learning_rate": 2e-3,
        "pooling": "model", "head_start": "random",
    }  # fmt: skip
    result = fine_tune(notes, **given, output_dir=str(tmp_path / "out"))
    deviation = np.std([float(value) for _, value in rows_of(60, 2)])
    assert result.scores["validation"]["rmse"] < 0.8 * deviation
    assert any(text.startswith("the head begins at the mean of the training labels") for text in notes.texts)
    record = Worker(device="cpu").run(RunSpec(given, "plain", "train.csv", seed=1))
    assert record.scores["validation"]["rmse"] < 0.8 * deviation
    again = Notes()
    fine_tune(again, **{**given, "model": str(tmp_path / "out")}, max_steps=1, output_dir=str(tmp_path / "again"))
    assert not any(text.startswith("the head begins") for text in again.texts)
