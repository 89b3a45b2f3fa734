"""Results that can be judged and predictions that can be used: the files of a run, `evaluate` and `predict`."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score, confusion_matrix, f1_score, matthews_corrcoef

from attendrop.lab.cli.app import run
from attendrop.lab.evaluation.scores import choose_temperature, evaluate
from attendrop.lab.records import FolderRecord, SplitEvaluation
from attendrop.lab.report.evaluation import plot_confusion, score_rows
from attendrop.lab.runs import fine_tune
from attendrop.lab.runs.best import kept_epoch
from attendrop.lab.runs.inference import Rows
from attendrop.lab.runs.trainer import RunTrainer
from attendrop.lab.tasks import METRICS, Metric, Task, kind_of, load_tokenizer
from attendrop.lab.tasks.files import Problem, Table
from attendrop.lab.tasks.kinds import Answers
from benchmarks import prediction
from helpers.cli_tools import save_encoder, save_translator, sentences, write_csv

pytestmark = pytest.mark.xdist_group("judged")

CLASSES = Task("t", "classification", ("text",), "label", ("a", "b", "c"), ("accuracy", "macro_f1", "mcc"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on reviews, of whose validation labels some are wrong."""
    folder = tmp_path_factory.mktemp("judged")
    rows = sentences(200, seed=1)
    model = save_encoder(folder / "model", [text for text, _ in rows])
    noisy = [(text, "good" if i % 7 == 0 else label) for i, (text, label) in enumerate(sentences(80, seed=2))]
    write_csv(folder / "train.csv", rows)
    write_csv(folder / "dev.csv", noisy)
    write_csv(folder / "test.csv", sentences(60, seed=3))
    fine_tune(
        model=str(model), train_file=str(folder / "train.csv"), validation_file=str(folder / "dev.csv"),
        test_file=str(folder / "test.csv"), num_train_epochs=6, learning_rate=1e-3, per_device_train_batch_size=8,
        use_cpu=True, method=["addrop"], output_dir=str(folder / "run"),
    )  # fmt: skip
    return folder


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_run_judges_its_model(place: Path) -> None:
    folder = place / "run"
    judged = json.loads((folder / "evaluation.json").read_text())
    rows = read(folder / "errors.csv")
    gold, predicted = [row["label"] for row in rows], [row["prediction"] for row in rows]
    losses = [float(row["loss"]) for row in rows]
    assert losses == sorted(losses, reverse=True)
    parts = {name: SplitEvaluation.from_json(part) for name, part in judged.items()}
    assert parts == FolderRecord.from_json(json.loads((folder / "record.json").read_text())).evaluation
    with pytest.raises(ValueError, match="its schema is 9, and this version of attendrop reads schemas up to 2"):
        SplitEvaluation.from_json({**judged["test"], "schema": 9})
    score = judged["validation"]["scores"]["accuracy"]
    assert score["value"] == accuracy_score(gold, predicted)
    assert score["low"] < score["value"] < score["high"]
    assert score["baseline"] == max(gold.count(label) for label in ("good", "bad")) / len(gold)
    table = pandas.read_csv(folder / "confusion.csv", index_col=0)
    assert table.to_numpy().tolist() == confusion_matrix(gold, predicted, labels=["bad", "good"]).tolist()
    assert {row["label"]: int(row["examples"]) for row in read(folder / "classes.csv")} == {
        label: gold.count(label) for label in ("bad", "good")
    }
    assert judged["test"]["scores"]["accuracy"]["value"] == accuracy_score(
        *[[row[name] for row in read(folder / "predictions_test.csv")] for name in ("label", "prediction")]
    )
    for picture in ("confusion.png", "reliability.png", "confusion_test.png", "reliability_test.png"):
        assert (folder / picture).read_bytes().startswith(b"\x89PNG")
    card = (folder / "README.md").read_text()
    for words in ("| validation/accuracy |", "95 % interval", "test/accuracy", "confusion.png", "was kept"):
        assert words in card


def test_probabilities_and_losses_of_files_are_scaled_and_scores_say_which_are(place: Path) -> None:
    folder = place / "run"
    for row in read(folder / "errors.csv"):
        right = float(row[f"probability_{row['label']}"])
        assert float(row["loss"]) == pytest.approx(-np.log(right), abs=0.01 + 1e-4 / max(right, 1e-4))
    record = FolderRecord.from_json(json.loads((folder / "record.json").read_text()))
    shown = {name: float(value) for name, value, *_ in score_rows(record.scores, record.evaluation)}
    measured = record.evaluation["validation"].calibration
    assert measured is not None
    assert measured.temperature != 1
    for prefix, part in (("", measured.raw), ("scaled_", measured.scaled)):
        assert shown[f"validation/{prefix}brier"] == pytest.approx(part.brier, abs=1e-4)
        assert shown[f"validation/{prefix}ece"] == pytest.approx(part.ece, abs=1e-4)
    errors = [float(row["loss"]) for row in read(folder / "errors.csv")]
    assert shown["validation/scaled_loss"] == pytest.approx(np.mean(errors), abs=1e-3)
    assert shown["validation/loss"] == pytest.approx(measured.raw.loss, abs=1e-3)
    assert "those that begin with scaled are after temperature" in (folder / "README.md").read_text()


def test_another_file_is_judged_later_as_in_the_run(place: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "again"
    assert run(["evaluate", str(place / "run"), "--file", str(place / "dev.csv"), "--output", str(out)]) == 0
    assert "most frequent answer" in capsys.readouterr().out
    before = json.loads((place / "run" / "evaluation.json").read_text())["validation"]
    after = json.loads((out / "evaluation.json").read_text())["dev"]
    assert after["scores"] == before["scores"]
    assert after["confusion"] == before["confusion"]
    assert after["calibration"]["temperature"] == before["calibration"]["temperature"] != 1
    assert after["calibration"]["scaled"]["brier"] == pytest.approx(before["calibration"]["scaled"]["brier"], abs=1e-4)


def test_predictions_keep_all_columns_in_every_format(
    place: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    rows = [(i, text, "=1", "old") for i, (text, _) in enumerate(sentences(40, seed=4))]
    file = write_csv(tmp_path / "new.csv", rows, header=["id", "text", "note", "prediction"])
    names = ["id", "text", "note", "prediction", "prediction_2", "probability_bad", "probability_good"]
    for form in ("csv", "jsonl", "parquet"):
        assert run(["predict", str(place / "run"), "--file", str(file), "--format", form, "--batch-size", "7"]) == 0
    tables = [
        pandas.read_csv(tmp_path / "new_predictions.csv", dtype={"id": str}),
        pandas.read_json(tmp_path / "new_predictions.jsonl", lines=True, dtype={"id": str}),
        pandas.read_parquet(tmp_path / "new_predictions.parquet"),
    ]
    for table in tables:
        assert list(table) == names
        assert table["text"].tolist() == [row[1] for row in rows]
        assert table["prediction_2"].tolist() == tables[0]["prediction_2"].tolist()
        np.testing.assert_allclose(table["probability_bad"] + table["probability_good"], 1, atol=1e-3)
    assert set(tables[0]["prediction_2"]) == {"good", "bad"}
    assert tables[2]["note"].tolist() == ["=1"] * 40
    capsys.readouterr()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes()), encoding="utf-8"))
    assert run(["predict", str(place / "run"), "--file", "-"]) == 0
    assert capsys.readouterr().out == (tmp_path / "new_predictions.csv").read_text()
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(row[1] for row in rows)))
    assert run(["predict", str(place / "run"), "-", "--format", "jsonl"]) == 0
    lines = [json.loads(line)["prediction"] for line in capsys.readouterr().out.splitlines()]
    assert lines == tables[0]["prediction_2"].tolist()


def test_tags_are_aligned_with_their_words(place: Path, tmp_path: Path) -> None:
    texts = [text.split() for text, _ in sentences(42, seed=5)]
    examples: list[Any] = [
        {"words": words, "tags": ["X" if word in ("a", "the") else "O" for word in words], "n": 1} for words in texts
    ]
    examples[0]["words"][0] = "two words"
    for name, part in (("train", examples[12:]), ("dev", examples[:12])):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, part)))
    fine_tune(
        model=str(place / "model"), train_file=str(tmp_path / "train.jsonl"), text="words", label="tags",
        validation_file=str(tmp_path / "dev.jsonl"), max_steps=3, use_cpu=True, output_dir=str(tmp_path / "run"),
    )  # fmt: skip
    for form in ("csv", "jsonl"):
        assert run(["predict", str(tmp_path / "run"), "--file", str(tmp_path / "dev.jsonl"), "--format", form]) == 0
    lists = [json.loads(line) for line in (tmp_path / "dev_predictions.jsonl").read_text().splitlines()]
    flat = read(tmp_path / "dev_predictions.csv")
    assert [row["words"] for row in flat] == [word for example in examples[:12] for word in example["words"]]
    assert [row["tags"] for row in flat] == [tag for example in examples[:12] for tag in example["tags"]]
    assert [row["prediction"] for row in flat] == [tag for row in lists for tag in row["prediction"]]
    assert {row["sentence_number"] for row in flat} == {str(i) for i in range(1, 13)}
    for row in lists:
        assert len(row["probability"]) == len(row["words"])
        for each in zip(row["probability"], row["probability_O"], row["probability_X"], strict=True):
            assert each[0] == max(each[1:])
            assert sum(each[1:]) == pytest.approx(1, abs=2e-4)


def answers_of(logits: Any, gold: Any, task: Task = CLASSES) -> Answers:
    return kind_of(task).answers(task, np.asarray(logits, float), np.asarray(gold))


def test_fast_scores_equal_those_of_the_standard_library() -> None:
    draw = np.random.default_rng(0)
    gold, predicted = draw.integers(0, 3, 50), draw.integers(0, 3, 50)
    answers = answers_of(np.eye(3)[predicted], gold)
    for name, expected in (
        ("mcc", matthews_corrcoef(gold, predicted)),
        ("macro_f1", f1_score(gold, predicted, average="macro")),
        ("f1", f1_score(gold, predicted, labels=[1], average="macro")),
    ):
        function, columns = METRICS[name].statistic(predicted, gold)
        assert function(*columns) == pytest.approx(expected)
    several = Task("t", "multilabel", ("text",), "label", ("a", "b", "c"), ("micro_f1", "macro_f1", "exact_match"))
    many = answers_of(draw.normal(size=(50, 3)), draw.integers(0, 2, (50, 3)), several)
    tags = Task(
        "t",
        "token_classification",
        ("w",),
        "t",
        ("O", "B-X", "I-X"),
        ("entity_f1", "entity_precision", "entity_recall"),
    )
    lengths = np.array([20, 0, 30])
    words = kind_of(tags).answers(tags, np.eye(3)[predicted], gold, lengths, draw.random(50) > 0.1)
    written = Task("t", "translation", ("s", "t"), None, (), ("bleu",))
    texts = kind_of(written).answers(written, ["a b c d e", "b a"], ["a b c d f", "a b"])
    for case in (answers, many, words, texts):
        for name in case.task.metrics:
            pair = case.for_metrics(case.predicted)
            function, columns = METRICS[name].statistic(*pair)
            assert function(*columns) == pytest.approx(METRICS[name](*pair)), name


def test_a_new_metric_has_an_interval_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def balanced_accuracy(predictions: Any, references: Any) -> float:
        return float(balanced_accuracy_score(references, predictions))

    draw = np.random.default_rng(0)
    gold = np.array([0] * 60 + [1] * 25 + [2] * 15)
    predicted = np.where(draw.random(100) < 0.7, gold, draw.integers(0, 3, 100))
    monkeypatch.setitem(METRICS, "balanced_accuracy", Metric("balanced_accuracy", balanced_accuracy, ("classes",)))
    task = Task("t", "classification", ("text",), "label", ("a", "b", "c"), ("balanced_accuracy", "macro_f1"))
    scores = evaluate(answers_of(np.eye(3)[predicted], gold, task), "validation").scores
    generator = np.random.default_rng(0)
    samples = [generator.integers(0, 100, 100) for _ in range(1000)]
    sampled = [balanced_accuracy(predicted[rows], gold[rows]) for rows in samples]
    slow = np.quantile(sampled, [0.025, 0.975]) + balanced_accuracy(predicted, gold) - np.mean(sampled)
    assert [getattr(scores["balanced_accuracy"], name) for name in ("low", "high")] == pytest.approx(list(slow))
    assert scores["balanced_accuracy"].low != scores["macro_f1"].low


def test_a_model_that_gives_one_answer_is_warned_of() -> None:
    judged = evaluate(answers_of(np.tile([2.0, 1, 0], (10, 1)), [0] * 8 + [1, 2]), "validation")
    (warning,) = judged.warnings
    assert "answers 'a' for every item of validation, which is right for 80.0%" in warning
    assert judged.scores["accuracy"].baseline == 0.8
    assert evaluate(answers_of(np.eye(3), [0, 1, 2]), "validation").warnings == []
    worse = evaluate(answers_of(np.eye(3)[[0, 0, 1, 2]], [0, 0, 0, 1]), "dev").warnings
    assert worse == ["accuracy on dev is 0.5000, no better than 0.7500, which always answering 'a' reaches"]


def test_a_translation_is_judged_text_by_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The model writes until its positions end, which are fewer than the usual length of own files."""
    rows = [(text, text[::-1]) for text, _ in sentences(12, seed=1)]
    model = save_translator(tmp_path / "model", [text for row in rows for text in row])
    file = write_csv(tmp_path / "texts.csv", rows, ("source", "target"))
    words = ["train", "--model", model, "--train-file", file, "--validation-file", file, "--kind", "translation"]
    words += [
        "--text",
        "source",
        "--label",
        "target",
        "--max-steps",
        "1",
        "--use-cpu",
        "--output-dir",
        tmp_path / "run",
    ]
    assert run(list(map(str, words))) == 2  # the same rows cannot train and judge
    write_csv(tmp_path / "dev.csv", [(f"{source} it", target) for source, target in rows], ("source", "target"))
    words[6] = tmp_path / "dev.csv"
    assert run(list(map(str, words))) == 0
    errors = read(tmp_path / "run/errors.csv")
    assert [set(row) for row in errors] == [{"line", "source", "target", "prediction", "loss"}] * len(rows)
    assert (losses := [float(row["loss"]) for row in errors]) == sorted(losses, reverse=True)
    sentence = "the model writes the same text for every example of validation"
    assert (sentence in capsys.readouterr().out) == (len({row["prediction"] for row in errors}) == 1)
    assert "`errors.csv`" in (tmp_path / "run/README.md").read_text(encoding="utf-8")
    assert run(["predict", str(tmp_path / "run"), "--file", str(file), "--output", str(tmp_path / "out.csv")]) == 0
    assert len(read(tmp_path / "out.csv")) == len(rows)


def test_a_temperature_is_fitted_only_where_it_can_be() -> None:
    gold = np.arange(90) % 3
    predicted = np.where(np.arange(90) < 18, (gold + 1) % 3, gold)
    temperature, _ = choose_temperature(answers_of(20 * np.eye(3)[predicted], gold))
    # four of five are right: e^(20 / T) = 2 · 4 without the prior, which pulls T a little towards 1
    assert 0.85 * 20 / np.log(8) < temperature < 20 / np.log(8)
    assert choose_temperature(answers_of(20 * np.eye(3)[gold], gold))[0] == 1
    assert choose_temperature(answers_of(20 * np.eye(3)[predicted[:40]], gold[:40]))[0] == 1


def test_numbers_are_rounded_to_a_hundredth_of_the_error() -> None:
    number = Task("t", "regression", ("text",), "label", (), ("pearson",))
    gold = np.array([10.0, 20, 30, 40])
    for error, expected in ((0.5, 3), (5, 2), (300, 1)):  # the last: the spread of the predictions, 11, is smaller
        assert answers_of(gold + error, gold, number).decimals() == expected


def test_of_equal_scores_the_smallest_loss_is_kept() -> None:
    from types import SimpleNamespace

    from transformers import TrainerState

    trainer = object.__new__(RunTrainer)
    trainer.args = SimpleNamespace(
        metric_for_best_model="accuracy", greater_is_better=True, save_strategy="epoch", load_best_model_at_end=True
    )
    trainer.state = TrainerState(max_steps=6, best_model_checkpoint="checkpoint-3")
    for epoch, (accuracy, loss) in enumerate([(0.8, 0.5), (0.9, 0.4), (0.9, 0.3), (0.9, 0.6)], 1):
        trainer.state.global_step, trainer.state.epoch = epoch, float(epoch)
        metrics = {"eval_accuracy": accuracy, "eval_loss": loss}
        trainer.state.log_history.append({**metrics, "epoch": float(epoch), "step": epoch})
        trainer._determine_best_metric(metrics, None)
    kept = kept_epoch(trainer, patience=2)
    assert (kept.epoch, kept.step) == (3.0, 3)
    assert kept.sentences == [
        "epoch 3 of 4 was kept: of the epochs 2, 3, 4 with the best validation accuracy, 0.9000, it has the smallest "
        "loss, 0.3000",
        "training stopped early after epoch 4: 2 evaluations in a row had no better accuracy (--patience 2)",
    ]


@pytest.mark.parametrize("side", ["right", "left"])
def test_batches_are_padded_as_the_tokenizer_pads(place: Path, side: str) -> None:
    from datasets import Dataset

    tokenizer = load_tokenizer(str(place / "model"))
    tokenizer.padding_side = side
    encoded = [tokenizer(text) for text, _ in sentences(9, seed=6)]
    split = Dataset.from_list([dict(row) for row in encoded])
    rows = Rows.of_split(split, tokenizer)
    chosen = np.array([4, 0, 7])
    expected = tokenizer.pad([encoded[i] for i in chosen], return_tensors="pt")
    batch = rows.batch(chosen, rows.length(chosen))
    assert batch.keys() == expected.keys()
    assert all(torch.equal(batch[name], expected[name]) for name in batch)
    lengths = [len(encoded[i]["input_ids"]) for i in rows.order]
    assert lengths == sorted(lengths, reverse=True)


def test_predictions_are_those_of_a_bare_loop(place: Path, tmp_path: Path) -> None:
    prediction.main(
        ["--folder", str(place / "run"), "--rows", "50", "--rounds", "1", "--output", str(tmp_path / "rows.csv")]
    )
    (row,) = read(tmp_path / "rows.csv")
    assert float(row["same predictions"]) == 1
    assert float(row["ratio"]) > 0


def test_errors_and_predictions_can_be_traced_to_the_rows_of_the_file(tmp_path: Path) -> None:
    """The line of each example and the other columns of the file are kept, through splits and dropped rows."""
    rows = [(f"T-{number}", text, label) for number, (text, label) in enumerate(sentences(40, seed=3))]
    save_encoder(tmp_path / "model", [text for _, text, _ in rows])
    header = ("Ticket #", "text", "label")
    write_csv(tmp_path / "train.csv", [*rows[:5], ("T-x", "", "good"), *rows[5:]], header)
    write_csv(tmp_path / "test.csv", [row[:2] for row in rows[:8]], header[:2])
    words = ["train", "--model", tmp_path / "model", "--train-file", tmp_path / "train.csv", "--use-cpu"]
    words += ["--test-file", tmp_path / "test.csv", "--max-steps", 1, "--head-start", "random", "--no-baselines"]
    words += ["--drop-bad-rows", "--validation-share", 0.5, "--output-dir", tmp_path / "run"]
    assert run(list(map(str, words))) == 0
    lines = (tmp_path / "train.csv").read_text(encoding="utf-8").splitlines()
    errors = read(tmp_path / "run/errors.csv")
    assert list(errors[0])[:4] == ["line", *header]
    for row in errors:
        assert lines[int(row["line"]) - 1] == f"{row['Ticket #']},{row['text']},{row['label']}"
    predicted = read(tmp_path / "run/predictions_test.csv")
    assert [row["Ticket #"] for row in predicted] == [row[0] for row in rows[:8]]
    assert list(predicted[0])[:3] == ["Ticket #", "text", "prediction"]


def test_the_rows_of_a_table_keep_their_numbers_when_others_are_left_out() -> None:
    table = Table(Path("a.parquet"), {"text": ["a", "b", "c"]}).without({0: Problem("bad", "is bad", "fix it")})
    assert [table.place(row) for row in range(2)] == ["row 2", "row 3"]
    assert [table.without({0: Problem("bad", "is bad", "fix it")}).place(0)] == ["row 3"]


def test_long_names_of_classes_stay_different_in_the_confusion_matrix_and_its_title_fits() -> None:
    names = [f"user_H1WQIL0U4e__{name}" for name in ("GetWeatherForecastCondition", "GetWeatherTemperature")]
    figure = plot_confusion([[13, 3], [0, 15]], names)
    figure.canvas.draw()
    axes = figure.axes[0]
    shown = [label.get_text() for label in axes.get_yticklabels()]
    assert len(set(shown)) == 2
    width = figure.bbox.width
    box = axes.title.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= width
    assert axes.get_window_extent().width > width / 4
