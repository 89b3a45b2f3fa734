"""The study of the default recipe beside linear models: its scores, its draws, its table, and a tiny run."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from helpers.cli_tools import save_encoder, sentences
from studies import few_shot, simple_baselines
from studies.harder_files import flesch
from studies.simple_baselines import BY_NAME, DataSet, ablations, drawn, markdown, read, score, summaries


def test_scores_are_those_of_their_definitions() -> None:
    labels = DataSet("labels", "", "", metric="micro_f1")
    # a and b right, c wrong, d missed
    assert score(labels, ["a;b", "c", ""], ["a;b", "", "d"]) == pytest.approx(2 * 2 / (3 + 3))
    tags = DataSet("tags", "", "", metric="token_accuracy")
    assert score(tags, [[1, 2, 3], [1]], [[1, 2, 0], [1]]) == 0.75
    numbers = DataSet("numbers", "", "", metric="r2")
    assert score(numbers, [1.0, 2.0, 6.0], [1.0, 2.0, 3.0]) == pytest.approx(1 - 9 / 2)
    unequal = DataSet("unequal", "", "", metric="macro_f1")
    assert score(unequal, [0, 0, 0, 0], [0, 0, 0, 1]) == pytest.approx((6 / 7 + 0) / 2)


def test_reading_ease_is_the_formula() -> None:
    assert flesch("The cat sat. The dog ran.") == pytest.approx(min(100.0, 206.835 - 1.015 * 3 - 84.6))
    assert flesch("Internationalisation") == 0.0


def test_few_shots_are_drawn_of_classes_that_have_enough(tmp_path: Path) -> None:
    table = pandas.DataFrame({"text": [f"text {i}" for i in range(13)], "label": ["a"] * 6 + ["b"] * 5 + ["c"] * 2})
    table.to_parquet(tmp_path / "train.parquet")
    table.to_parquet(tmp_path / "test.parquet")
    data_set = DataSet("few", "train.parquet", "test.parquet", shots=4)
    train, test = drawn(data_set, tmp_path, 100, 0, 100)
    assert train["label"].value_counts().to_dict() == {"a": 4, "b": 4}
    assert set(test["label"]) == {"a", "b"}
    assert not train.equals(drawn(data_set, tmp_path, 100, 1, 100)[0])


def row(**values: Any) -> dict[str, Any]:
    usual = {"model": "m", "recipe": "default", "data set": "d", "examples": 100, "size": 100, "metric": "accuracy"}
    return {**usual, "tested": 300, "seed": 0, "tool": 80.0, "words": 70.0, "frozen": 79.0, "noise": 2.0, **values}


def test_a_cell_loses_below_the_interval_of_the_better_linear_model() -> None:
    cells = summaries([row(), row(**{"data set": "e", "frozen": 81.0}), row(**{"data set": "f", "words": 83.0})])
    assert [(cell["best"], cell["difference"], cell["loses"]) for cell in cells] == [
        ("frozen", 1.0, False), ("frozen", -1.0, False), ("words", -3.0, True),
    ]  # fmt: skip
    spread = summaries([row(seed=seed, tool=79.0 - value) for seed, value in enumerate((0, 6, 0))])[0]
    assert spread["half"] == pytest.approx(4.303 * math.sqrt(12) / math.sqrt(3), rel=1e-3)
    text = markdown([row(size=0), row(tested=200, tool=0.0), row(), row(**{"data set": "f", "words": 83.0})])
    assert "In 2 of 3 cells" in text
    assert "| m | d | accuracy | **80.0** / 79.0 | **80.0** / 79.0 |" in text
    assert "| m | f | accuracy |  | 80.0 / 83.0, loses by 3.0 ± 2.0 |" in text


def test_parts_of_the_recipe_are_compared_on_the_same_draws() -> None:
    rows = [row(), row(seed=1, tool=70.0), row(recipe="first token", tool=71.0), row(recipe="first token", seed=2)]
    assert "| first token | 1 | +9.0 | +9.0 (d 100) | +9.0 (d 100) |" in ablations(rows)
    rows += [row(examples=300), row(examples=300, recipe="first token", tool=79.0)]
    assert "| first token | 2 | +5.0 ± 50.8 | +1.0 (d 300) | +9.0 (d 100) |" in ablations(rows)
    assert ablations([row()]) == ""


def test_scores_of_few_shots_are_not_taken_for_the_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pandas.DataFrame({"text": [f"text {i}" for i in range(20)], "label": [0, 1] * 10})
    for part in ("train", "test"):
        table.to_parquet(tmp_path / f"{part}.parquet")
    monkeypatch.setitem(BY_NAME, "subj", DataSet("subj", "train.parquet", "test.parquet"))
    monkeypatch.setattr(few_shot, "of_tool", lambda data_set, train, test, *_: test["label"].tolist())
    monkeypatch.setattr(few_shot, "of_setfit", lambda train, test, *_: [0] * len(test))
    options = argparse.Namespace(model="m", data=tmp_path, tested=20, device="cpu")
    made = few_shot.row_of("subj", 4, 0, options)
    assert (made["tool"], made["SetFit"], made["examples"]) == (100.0, 50.0, 8)
    assert "| m | subj | 4 | 1 | 50.0 | 100.0 | +50.0 ±" in few_shot.markdown([made])


@pytest.mark.filterwarnings("ignore")
def test_a_tiny_run_writes_one_row_and_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts, labels = map(list, zip(*sentences(40, 0), strict=True))
    for part in ("train", "test"):
        pandas.DataFrame({"text": texts, "label": labels}).to_parquet(tmp_path / f"{part}.parquet")
    monkeypatch.setitem(BY_NAME, "subj", DataSet("subj", "train.parquet", "test.parquet"))
    arguments = [
        "--model", str(save_encoder(tmp_path / "model", texts)), "--data", str(tmp_path), "--sets", "subj",
        "--sizes", "30", "--seeds", "1", "--set", "num_train_epochs=1", "--recipe", "one epoch",
        "--output", str(tmp_path / "rows.csv"),
    ]  # fmt: skip
    for _ in range(2):
        assert simple_baselines.main(arguments) == 0
    default = [argument for argument in arguments if argument not in ("--recipe", "one epoch")]
    assert simple_baselines.main(default) == 0
    other, only = read(tmp_path / "rows.csv")
    assert (other["recipe"], other["words"], other["frozen"]) == ("one epoch", "", "")
    assert other["tool"] == only["tool"]
    assert (only["data set"], only["examples"], only["recipe"]) == ("subj", "30", "default")
    assert all(0 <= float(only[name]) <= 100 for name in ("tool", "words", "frozen"))
    assert np.isfinite(float(only["noise"]))
    assert capsys.readouterr().out.count("subj 30 0") == 2
