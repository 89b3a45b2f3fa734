"""The table of outcomes: from one entry to the terminal, the Markdown, the CSV and the page."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attendrop.lab.cli.compare import print_verdicts
from attendrop.lab.records import StudyConfiguration, StudyRecord
from attendrop.lab.report.page import checked_analysis, comparisons_csv, render_markdown, render_page
from attendrop.lab.studies.analysis import analyse_records
from attendrop.lab.tasks.metrics import metric_label
from attendrop.lab.tasks.outcomes import (
    OUTCOMES,
    Outcome,
    all_deltas,
    compared_outcomes,
    curve_titles,
    delta_options,
    measured_outcomes,
    shown_outcomes,
)


def entropy(probabilities: Any, gold: Any) -> float:
    return float(-(probabilities * np.log(probabilities)).sum(-1).mean())


def record_of(method: str, seed: int, **scores: float) -> StudyRecord:
    content = {
        "id": f"{method}-{seed}", "status": "finished", "method": method, "task": "t", "size": "all", "seed": seed,
        "metric": "accuracy", "greater_is_better": True, "examples": {"train": 100, "validation": 50},
        "scores": {"validation": {"accuracy": 0.7 + 0.001 * seed, **scores}}, "cost": {"seconds": 2.0 + 0.01 * seed},
        "labels": ["a", "b"], "settings": {}, "schema": 2,
    }  # fmt: skip
    return StudyRecord.from_json(content)


def test_a_new_outcome_is_one_entry(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(OUTCOMES, "entropy", Outcome("entropy", "mean entropy", delta=0.02, measure=entropy))
    assert measured_outcomes(np.full((3, 2), 0.5), np.zeros(3, int))["entropy"] == pytest.approx(np.log(2))
    values = {"plain": 0.5, "rdrop": 0.4}
    records = [record_of(m, seed, entropy=v + 0.001 * seed) for m, v in values.items() for seed in range(6)]
    analysis = analyse_records(records, StudyConfiguration(methods=["plain", "rdrop"]))
    comparison = next(cell for cell in analysis.cells if cell.method == "rdrop").outcomes["entropy"].comparison
    assert comparison is not None
    assert comparison.verdict == "helps"
    print_verdicts(analysis)
    assert "entropy" in capsys.readouterr().out
    assert "| rdrop | mean entropy | 0.403 | ▲ helps | −0.100 |" in render_markdown(analysis)
    assert ",entropy," in comparisons_csv(checked_analysis(analysis))
    page = render_page(analysis)
    assert '<th scope="col">mean entropy</th>' in page
    assert '"entropy":{"label":"mean entropy","phrase":"mean entropy","is_score":false,"is_relative":false}' in page


def test_outcomes_say_how_they_are_read_and_in_what_words() -> None:
    record = record_of("plain", 3, loss=0.6)
    values = [OUTCOMES[name].read(record, "validation") for name in ("score", "loss", "ece")]
    assert values == [0.703, 0.6, None]
    cost = OUTCOMES["cost"]
    assert (cost.read(record, "validation"), cost.read(record, "test")) == (2.03, None)
    assert OUTCOMES["score"].title("macro_f1") == "macro f1"
    assert OUTCOMES["score"].verbs == {"helps": "improve", "hurts": "worsen"}
    assert OUTCOMES["loss"].verbs == {"helps": "lower", "hurts": "raise"}
    assert Outcome("x", "x", 0.1, greater_is_better=True).verbs == {"helps": "raise", "hurts": "lower"}
    assert [of.name for of in compared_outcomes()] == ["score", "loss", "ece", "brier", "scaled_loss", "cost"]
    assert all_deltas({"score": 0.5}) == {
        "score": 0.5, "loss": 0.02, "ece": 0.01, "brier": 0.01, "scaled_loss": 0.02, "scaled_ece": 0.01, "cost": 0.05
    }  # fmt: skip


def test_outcomes_with_one_option_share_its_default() -> None:
    assert delta_options() == {"delta": 0.01, "delta_loss": 0.02, "delta_calibration": 0.01}
    for outcome in OUTCOMES.values():
        assert delta_options().get(outcome.delta_option, outcome.delta) == outcome.delta


def test_a_single_evaluation_shows_the_loss_and_no_error_below_0() -> None:
    probabilities, gold = np.tile([0.8, 0.2], (10, 1)), np.array([0] * 8 + [1] * 2)  # calibrated exactly
    assert measured_outcomes(probabilities, gold)["ece"] < 0
    shown = shown_outcomes(probabilities, gold)
    assert shown["ece"] == 0.0
    assert shown["loss"] == pytest.approx(-0.8 * np.log(0.8) - 0.2 * np.log(0.2))
    assert "loss" not in measured_outcomes(probabilities, gold)  # the Trainer computes it


def test_curves_are_ordered_and_named_by_their_outcomes() -> None:
    titles = curve_titles(["train_loss", "macro_f1", "loss", "mcc"], "mcc")
    assert list(titles.items()) == [
        ("mcc", metric_label("mcc")), ("loss", "development loss"), ("train_loss", "training loss"),
        ("macro_f1", "macro f1"),
    ]  # fmt: skip


def test_an_outcome_that_is_the_metric_is_compared_once() -> None:
    records = [replace(record_of(m, seed, loss=0.5), metric="loss") for m in ("plain", "rdrop") for seed in range(2)]
    analysis = analyse_records(records, StudyConfiguration(methods=["plain", "rdrop"]))
    assert list(analysis.cells[0].outcomes) == ["score", "cost"]
