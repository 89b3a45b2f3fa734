"""The start from the frozen solution, and the simple baselines beside a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from attendrop import load_classifier
from attendrop.errors import UserError
from attendrop.lab.runs import fine_tune
from helpers.cli_tools import save_encoder, sentences, write_csv


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("frozen")
    save_encoder(folder / "model", [text for text, _ in sentences(60, seed=1)])
    write_csv(folder / "train.csv", sentences(60, seed=1))
    write_csv(folder / "dev.csv", sentences(40, seed=2))
    write_csv(folder / "numbers.csv", [(text, len(text)) for text, _ in sentences(60, seed=1)])
    return folder


def run(folder: Path, name: str, **more: Any) -> Any:
    usual = {
        "model": str(folder / "model"), "train_file": str(folder / "train.csv"), "output_dir": str(folder / name),
        "validation_file": str(folder / "dev.csv"), "num_train_epochs": 1, "learning_rate": 1e-9, "use_cpu": True,
    }  # fmt: skip
    return fine_tune(**{**usual, **more})


@torch.no_grad()
def features_of(folder: Path, rows: list[tuple[str, str]]) -> tuple[Any, np.ndarray]:
    model = load_classifier(folder).eval()
    batch = AutoTokenizer.from_pretrained(folder)([text for text, _ in rows], padding=True, return_tensors="pt")
    hidden = model.base_model(**batch).last_hidden_state
    return model, model.features(hidden, batch["attention_mask"]).double().numpy()


def test_the_head_starts_with_the_predictions_of_the_frozen_solution(folder: Path) -> None:
    result = run(folder, "start")
    model, features = features_of(folder / "start", sentences(60, seed=1))
    from attendrop.lab.statistics.linear import fit_logistic

    gold = np.arange(60) % 2
    expected = fit_logistic(features, gold, 2)(features)
    logits = features @ model.pooled_head.weight.double().detach().numpy().T + model.pooled_head.bias.tolist()
    assert (logits.argmax(-1) == expected.argmax(-1)).mean() > 0.97
    centred = logits - logits.mean(-1, keepdims=True)
    assert np.sqrt(np.square(centred).mean()) <= 0.51
    assert any("starts from a logistic regression" in note for note in result.record.notes)


def test_the_seed_of_the_head_does_not_matter_and_a_random_start_does(folder: Path) -> None:
    def weight(name: str, **more: Any) -> torch.Tensor:
        tensor: torch.Tensor = run(folder, name, **more).model.pooled_head.weight.detach()
        return tensor

    assert torch.allclose(weight("one", seed=1), weight("two", seed=2), atol=1e-5)
    random = weight("three", head_start="random", seed=1)
    assert not torch.allclose(random, weight("four", head_start="random", seed=2), atol=1e-3)


def test_words_that_win_are_named_first(folder: Path) -> None:
    write_csv(folder / "more.csv", sentences(300, seed=3))
    write_csv(folder / "test.csv", sentences(200, seed=4))
    files = {"train_file": str(folder / "more.csv"), "validation_file": str(folder / "test.csv")}
    result = run(folder, "words", head_start="random", **files)
    baselines = result.record.baselines
    assert set(baselines.scores) == {"fine-tuned", "words", "frozen"}
    assert baselines.best == "words"
    assert baselines.is_clear
    assert result.sentence.startswith("TF-IDF with logistic regression reaches a validation accuracy of")
    assert "it is better" in result.sentence
    assert result.sentence in (folder / "words" / "README.md").read_text()
    assert result.sentence in repr(result)
    assert "TF-IDF" in result._repr_html_()
    assert not run(folder, "without", no_baselines=True).record.baselines.scores


def test_the_frozen_head_is_kept_where_it_is_better(folder: Path) -> None:
    result = run(folder, "kept", head_start="random", keep_best_of=True, learning_rate=1e-12)
    baselines = result.record.baselines
    if baselines.scores["frozen"] > baselines.scores["fine-tuned"]:
        assert baselines.kept == "frozen"
        assert result.scores["validation"]["accuracy"] == pytest.approx(baselines.scores["frozen"])
    else:
        assert "kept" not in baselines


def test_a_ridge_regression_starts_a_head_for_numbers(folder: Path) -> None:
    result = run(folder, "numbers", train_file=str(folder / "numbers.csv"), validation_file=None, kind="regression")
    assert any("ridge regression" in note for note in result.record.notes)
    assert {"words", "frozen"} <= set(result.record.baselines.scores)
    assert result.scores["validation"]["rmse"] < 40


def test_settings_that_contradict_each_other_are_refused(folder: Path) -> None:
    with pytest.raises(UserError, match="keep_best_of"):
        run(folder, "refused", keep_best_of=True, no_baselines=True)
    with pytest.raises(UserError, match="head_start is 'zero'"):
        run(folder, "refused", head_start="zero")
