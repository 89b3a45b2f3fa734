"""The study of compressed models on a tiny encoder: preparation, lines, going on, the ensemble, and its tables."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from docs.tables import compression as tables
from helpers.cli_tools import save_encoder, sentences
from studies import compression as study

pytestmark = pytest.mark.xdist_group("study_worker")


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The flags of a study of two small tasks, one of which is judged by Matthews' correlation."""
    rows = sentences(60, seed=3)
    save_encoder(tmp_path / "model", [text for text, _ in rows])
    frame = pd.DataFrame({"text": [text for text, _ in rows], "label": [label for _, label in rows]})
    frame[:40].to_parquet(tmp_path / "train.parquet")
    frame[40:].to_parquet(tmp_path / "test.parquet")
    monkeypatch.setattr(study, "TASKS", dict.fromkeys(("cola", "trec"), ("train", "test", ("text",))))
    monkeypatch.setattr(study, "ENSEMBLE", study.Way("tail", "top", (1,)))
    model = ["--model", str(tmp_path / "model"), "--tasks", "cola", "trec"]
    study.main(["prepare", "--data", str(tmp_path), "--output", str(tmp_path / "prepared"), *model])
    return [
        *("--data", str(tmp_path / "prepared"), "--output", str(tmp_path / "results.csv"), *model, "--counts", "1"),
        *("--name", "tiny", "--seeds", "2", "--ways", "tail/top", "constant/gate", "--max-steps", "2"),
    ]  # fmt: skip


def test_study_goes_on_where_it_was_stopped(
    prepared: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "results.csv"
    append = study.append

    def killed(*arguments: object) -> None:
        append(*arguments)  # type: ignore[arg-type]
        if len(study.read(file)) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(study, "append", killed)
        with pytest.raises(KeyboardInterrupt):
            study.main(["run", *prepared])
    first = file.read_text()
    with file.open("a") as unfinished:
        unfinished.write("tiny,trec,0,ta")  # a line that was cut
    study.main(["run", *prepared])
    assert file.read_text().startswith(first)
    rows = study.read(file)
    assert len(rows) == len(study.keys_in(rows)) == 2 * 2 * (2 + 1)  # tasks, seeds, ways and the ensemble
    for row in rows:
        counts = np.array(row["table"].split(), int)
        assert counts.sum() == int(row["examples"]) == 20
        assert len(counts) == (8 if row["task"] == "cola" else 4)
        assert study.scores_of(counts) == pytest.approx((float(row["full"]), float(row["score"])), abs=1e-6)
    study.main(["run", *prepared])
    assert "12 lines are there, 0 are left" in capsys.readouterr().out
    assert file.read_text().count("\n") == 13
    shown = tables.scores(file, tmp_path / "none.csv")
    assert "tiny: tail 1 by top, taught by the ensemble" in shown
    assert "| no worse than 1 point |" in shown


def test_a_failure_is_a_line_that_is_repeated(prepared: list[str], tmp_path: Path) -> None:
    file, flags = tmp_path / "results.csv", [*prepared, "--seeds", "1", "--tasks", "trec", "--ways", "tail/top"]
    study.main(["run", *flags, "--counts", "9"])
    with file.open() as lines:
        assert ["edits were possible" in row["error"] for row in csv.DictReader(lines)] == [True, True]
    assert not study.read(file)
    study.main(["run", *flags, "--minutes", "-1"])
    assert file.read_text().count("\n") == 1  # the failed lines are gone, and no time was left


def test_scores_of_tables() -> None:
    assert study.scores_of(np.array([7, 2, 1, 0])) == (0.9, 0.8)
    gold, old, new = np.random.default_rng(0).integers(0, 2, (3, 50))
    counts = np.bincount(4 * gold + 2 * old + new, minlength=8)
    expected = [np.corrcoef(gold, answer)[0, 1] for answer in (old, new)]
    assert study.scores_of(counts) == pytest.approx(expected)


def test_scores_table_marks_losses_beyond_a_point(tmp_path: Path) -> None:
    usual = {"model": "m", "way": "constant", "by": "greedy", "k": 6, "teacher": "itself", "status": "finished"}
    lines = [
        {**usual, "task": task, "seed": seed, "examples": 1000, "full": 0.8, "score": 0.8 + gain + 0.001 * seed}
        for task, gain in (("trec", 0.01), ("rte", -0.02))
        for seed in range(3)
    ]
    study.write(tmp_path / "rows.csv", lines)
    *_, row = tables.scores(tmp_path / "rows.csv", tmp_path / "none.csv").splitlines()
    mean, reach = 1.1, 4.302653 * 0.1 / np.sqrt(3)
    assert f"| {mean:+.1f} ± {reach:.1f} | -1.9 ± {reach:.1f} | 1 of 2 |" in row
