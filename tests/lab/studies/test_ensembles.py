"""Ensembles of the seeds of a method: stored predictions, scores against slow versions, the interval of the gain."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attendrop.lab import tasks
from attendrop.lab.evaluation.outputs import Outputs, as_text, outputs_of, read_outputs, write_outputs
from attendrop.lab.records import StudyRecord
from attendrop.lab.statistics.ensembles import jackknife_values, judge_gain
from attendrop.lab.statistics.verdict import Question
from attendrop.lab.studies.analysis.ensembles import ensembles_of, evidence, other_outcomes, score_of
from attendrop.lab.studies.analysis.groups import Group
from attendrop.lab.tasks import METRICS, Task
from helpers.cli_tools import save_encoder, sentences, write_csv
from scripts.simulate_ensembles import CASES, SEEDS, simulate

TAGS = ("O", "B-PER", "I-PER")


def task_of(kind: str, labels: tuple[str, ...] = (), metrics: tuple[str, ...] = ()) -> Task:
    return Task("t", kind, ("text",), "label", labels, metrics=metrics)


def prediction(logits: Any, gold: Any) -> Any:
    return SimpleNamespace(predictions=np.asarray(logits), label_ids=np.asarray(gold))


def prepared(*to_task: int) -> Any:
    return SimpleNamespace(to_task=np.array(to_task) if to_task else None)


# ---- scores ----------------------------------------------------------------------------------------------------------


def test_an_ensemble_of_classifiers_averages_probabilities() -> None:
    draws = np.random.default_rng(0)
    gold, logits = draws.integers(0, 3, 40), draws.normal(0, 3, (4, 40, 3))
    task = task_of("classification", ("a", "b", "c"), ("accuracy",))
    members = [outputs_of(task, prepared(2, 0, 1), prediction(of, gold)) for of in logits]
    mean_evidence = sum(evidence(member) for member in members) / 4
    correct, losses = 0, []
    for example in range(40):
        probabilities = [np.exp(of[example]) / np.exp(of[example]).sum() for of in logits]
        mean = [sum(of[label] for of in probabilities) / 4 for label in range(3)]
        correct += int(np.argmax(mean)) == gold[example]
        losses.append(-np.log(mean[gold[example]]))
    assert score_of(mean_evidence, members[0], "accuracy") == correct / 40
    outcomes = other_outcomes(mean_evidence, members[0])
    assert outcomes["loss"] == pytest.approx(np.mean(losses), rel=2e-3)  # stored in half precision
    assert set(outcomes) == {"loss", "ece", "brier"}


def test_a_model_with_other_labels_is_scored_by_those_of_the_task() -> None:
    """A model of three classes on a task with two labels, as MNLI on HANS: the last two classes are one label."""
    task = task_of("classification", ("yes", "no"), ("accuracy",))
    logits = [[[3, 1, 0], [0, 1, 3]], [[2, 0, 3], [0, 3, 1]]]
    members = [outputs_of(task, prepared(0, 1, 1), prediction(np.array(of, float), [0, 1])) for of in logits]
    mean_evidence = sum(evidence(member) for member in members) / 2
    assert score_of(mean_evidence, members[0], "accuracy") == 1.0


def test_an_ensemble_of_taggers_votes_and_the_first_seed_breaks_ties() -> None:
    task = task_of("token_classification", TAGS, ("entity_f1",))
    gold = np.array([[-100, 1, 2, 0], [-100, 0, 1, -100]])
    predicted = [[[1, 2, 0], [0, 1]], [[1, 0, 0], [0, 0]], [[0, 2, 0], [1, 1]]]  # the words that are scored
    members = []
    for words in predicted:
        logits = np.full((2, 4, 3), -100.0)
        for row, classes in enumerate(words):
            for place, label in enumerate(classes):
                logits[row, place + 1] = np.eye(3)[label]
        members.append(outputs_of(task, prepared(0, 1, 2), prediction(logits, gold)))
    votes = sum(evidence(member, place) for place, member in enumerate(members))
    assert votes.argmax(-1).tolist() == [1, 2, 0, 0, 1]
    assert score_of(votes, members[0], "entity_f1") == 1.0
    assert other_outcomes(votes, members[0]) == {}
    pair = evidence(members[1], 0) + evidence(members[2], 1)  # they disagree on four of five words
    assert pair.argmax(-1).tolist() == members[1].values.tolist()


@pytest.mark.parametrize("kind", ["regression", "multilabel", "mlm"])
def test_other_kinds_average_numbers_and_probabilities(kind: str) -> None:
    draws = np.random.default_rng(1)
    if kind == "regression":
        gold, values = draws.normal(size=30), draws.normal(size=(3, 30, 1))
        metric, expected = "pearson", METRICS["pearson"](values.mean(0)[:, 0], gold)
        loss = float(np.mean((values.mean(0)[:, 0] - gold) ** 2))
    elif kind == "multilabel":
        gold, values = draws.integers(0, 2, (30, 4)), draws.normal(size=(3, 30, 4))
        probabilities = (1 / (1 + np.exp(-values))).mean(0)
        metric, expected = "micro_f1", METRICS["micro_f1"]((probabilities > 0.5).astype(int), gold)
        loss = float(-np.log(np.where(gold == 1, probabilities, 1 - probabilities)).mean())
    else:
        gold = np.where(draws.random((10, 6)) < 0.5, -100, 7)
        values = -draws.random((3, 10, 6)) * 5
        means = np.exp(values).mean(0)[gold != -100]
        metric, expected, loss = "perplexity", float(np.exp(-np.log(means).mean())), float(-np.log(means).mean())
    names = ("a", "b", "c", "d") if kind == "multilabel" else ()
    members = [outputs_of(task_of(kind, names), prepared(), prediction(of, gold)) for of in values]
    mean_evidence = sum(evidence(member) for member in members) / 3
    assert score_of(mean_evidence, members[0], metric) == pytest.approx(expected, rel=1e-5)
    assert other_outcomes(mean_evidence, members[0])["loss"] == pytest.approx(loss, rel=2e-3)


def test_predictions_are_read_as_they_were_written_and_a_broken_file_counts_as_none(tmp_path: Path) -> None:
    draws = np.random.default_rng(2)
    task = task_of("classification", ("a", "b"), ("accuracy",))
    logits = draws.normal(0, 1, (500, 2))
    logits[0] = [0.5, 0.5 + 1e-6]  # half precision alone would make them equal
    parts = {
        part: outputs_of(task, prepared(0, 1), prediction(logits, draws.integers(0, 2, 500)))
        for part in ("validation", "glue/rte")
    }
    text = as_text(parts)
    assert text is not None
    checksum = write_outputs(tmp_path, "abc", text)
    stored = read_outputs(tmp_path, "abc", checksum)
    assert list(stored) == list(parts)
    for part, of in stored.items():
        assert of.values.argmax(-1).tolist() == logits.argmax(-1).tolist()
        assert all(np.array_equal(getattr(of, name), getattr(parts[part], name)) for name in vars(of))
    file = tmp_path / "predictions" / "abc.npz"
    assert file.stat().st_size < 2 * 500 * 2 * 4  # less than both parts in single precision
    file.write_bytes(file.read_bytes()[:300])
    assert read_outputs(tmp_path, "abc") == {} == read_outputs(tmp_path, "missing")
    write_outputs(tmp_path, "abc", str(as_text({"validation": parts["validation"]})))
    assert read_outputs(tmp_path, "abc", checksum) == {} != read_outputs(tmp_path, "abc")  # those of another run
    assert outputs_of(task_of("translation"), prepared(), prediction([[1]], [[1]])) is None


# ---- the gain --------------------------------------------------------------------------------------------------------


def test_jackknife_has_the_mean_and_the_standard_error_of_its_definition() -> None:
    draws = np.random.default_rng(3)
    members, without, whole = draws.normal(0.8, 0.02, 6), draws.normal(0.84, 0.01, 6), 0.85
    values = jackknife_values(whole, without, members)
    gains = [without[i] - np.delete(members, i).mean() for i in range(6)]
    error = np.sqrt(5 / 6 * sum((gain - np.mean(gains)) ** 2 for gain in gains))
    assert values.mean() == pytest.approx(whole - members.mean())
    assert values.std(ddof=1) / np.sqrt(6) == pytest.approx(error)
    judged = judge_gain(whole, without.tolist(), members.tolist(), Question(0.01))
    assert judged.interval is not None
    assert judged.interval[0] < judged.gain < judged.interval[1]
    assert judge_gain(whole, without.tolist()[:4], members.tolist()[:4], Question(0.01)).verdict == "too few seeds"


def test_interval_of_the_gain_covers_what_other_seeds_would_give() -> None:
    """The whole table is made by tests/scripts/simulate_ensembles.py; a margin is four standard errors."""
    for case in ("accuracy, 300 examples", "correlation, 300 examples"):
        for seeds in SEEDS:
            row = simulate(case, seeds, studies=150)
            assert row.covered >= 0.94 - 4 * row.error
    assert set(CASES) > {"accuracy, 300 examples", "correlation, 300 examples"}


def test_ensembles_of_a_group_and_the_sentence_where_predictions_are_missing() -> None:
    draws = np.random.default_rng(4)
    gold, shared = draws.integers(0, 2, 200), draws.normal(0, 1, (200, 2))
    shared[np.arange(200), gold] += 1
    task = task_of("classification", ("a", "b"), ("accuracy",))
    stored: dict[str, dict[str, Outputs]] = {}
    runs: dict[str, dict[int, StudyRecord]] = {"plain": {}, "old": {}}
    for seed in range(6):
        logits = shared + draws.normal(0, 1.5, (200, 2))
        outputs = outputs_of(task, prepared(0, 1), prediction(logits, gold))
        assert outputs is not None
        stored[f"plain{seed}"] = {"validation": outputs}
        accuracy = float((logits.argmax(-1) == gold).mean())
        for method in runs:
            runs[method][seed] = StudyRecord(
                id=f"{method}{seed}", status="finished" if seed else "failed", method=method, task="t", seed=seed,
                settings={}, metric="accuracy", scores={"validation": {"accuracy": accuracy}},
            )  # fmt: skip
    rows, notes = ensembles_of(Group("t", "all", runs), lambda record: stored.get(record.id, {}), 0.01, 0.95)
    assert len(rows) == 1
    row = rows[0]
    assert (row.method, row.part, row.seeds) == ("plain", "validation", 5)
    assert row.outcomes["score"] - row.mean == pytest.approx(row.gain)  # type: ignore[operator]
    assert row.gain is not None
    assert row.gain > 0.03
    assert row.sentence.startswith("Ensemble of the 5 seeds of plain: accuracy 0.")
    assert row.sentence.endswith("It costs 5 × at inference.")
    assert notes[0].startswith(
        "there is no ensemble of the seeds of old on t: predictions of these runs are not stored"
    )


# ---- a real run ------------------------------------------------------------------------------------------------------


def test_stored_predictions_of_a_run_give_its_scores(tmp_path: Path) -> None:
    from attendrop.lab.studies.spec import RunSpec
    from attendrop.lab.studies.worker import Worker

    rows = sentences(40, seed=1)
    save_encoder(tmp_path / "model", [text for text, _ in rows])
    tagged = [(text, " ".join(["B-PER", *("O" for _ in text.split()[1:])])) for text, _ in rows]
    files = {
        "classification": write_csv(tmp_path / "classes.csv", rows),
        "token_classification": write_csv(tmp_path / "tags.csv", tagged),
    }
    worker = Worker("cpu")
    for kind, file in files.items():
        settings = {
            "model": str(tmp_path / "model"), "train_file": str(file), "validation_share": 0.3, "kind": kind,
            "num_train_epochs": 1, "learning_rate": 1e-3, "seed": 0, "method": [],
        }  # fmt: skip
        record = worker.run(RunSpec(settings, "plain", file.name, 0))
        write_outputs(tmp_path, record.id, record.outputs)
        outputs = read_outputs(tmp_path, record.id)["validation"]
        scores = record.scores["validation"]
        for metric in tasks.METRICS:
            if metric in scores:
                assert score_of(evidence(outputs), outputs, metric) == scores[metric]
        if kind == "classification":
            others = other_outcomes(evidence(outputs), outputs)
            assert others == {name: pytest.approx(scores[name], rel=2e-3, abs=2e-3) for name in others}
