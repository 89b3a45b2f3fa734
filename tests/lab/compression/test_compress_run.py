"""`attendrop compress` on small runs: the folder that it writes, goes on after a kill, says what it can and cannot."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForTokenClassification, AutoTokenizer

from attendrop import load_classifier, prune
from attendrop.errors import UserError
from attendrop.lab.cli.app import run
from attendrop.lab.compression.run_folder import STAGES, compress_run
from attendrop.lab.runs import fine_tune
from attendrop.lab.runs.evaluate import evaluate_file
from attendrop.lab.runs.folder import read_record
from attendrop.lab.runs.predict import predict_texts
from attendrop.lab.statistics.paired_scores import difference_of_scores, difference_of_shares, examples_needed
from attendrop.prune.surgery import encoder_layers
from helpers.cli_tools import sentences, write_csv
from helpers.small_runs import save_sources, train_small

pytestmark = pytest.mark.xdist_group("compression")

QUICK: dict[str, Any] = {"target": 1.3, "learning_rate": 1e-3, "stage_epochs": 1, "final_epochs": 1, "batch_size": 8}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_sources(tmp_path_factory.mktemp("sources"))


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Latency as a number of layers, so that no clock decides how many stages there are."""

    def times(models: dict[str, Any], inputs: Any, rounds: int = 9) -> dict[str, float]:
        plans = {name: (len(encoder_layers(model)), prune.plan_of(model)) for name, model in models.items()}
        return {name: layers - 0.9 * plan.tail - 0.3 * len(plan.constant) for name, (layers, plan) in plans.items()}

    monkeypatch.setattr("attendrop.prune.compression.time_in_turns", times)


@pytest.fixture(scope="module")
def trained(sources: Path) -> Path:
    return train_small(sources, "single")


def test_compressed_run_is_read_by_everything(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = write_csv(tmp_path / "more.csv", [(text,) for text, _ in sentences(20, seed=9)], header=["text"])
    done = compress_run(trained, tmp_path / "fast", unlabelled=str(more), **QUICK)
    assert prune.plan_of(done.model).tail == 1
    texts = ["the film is fine", "the film is dull and cold and it was a story with actors"]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "fast")
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = done.model(**batch).logits
        for load in (load_classifier, prune.load):
            assert torch.equal(load(tmp_path / "fast")(**batch).logits, expected)
    labels = [done.model.config.id2label[int(row.argmax())] for row in expected]
    assert [label for _, label in predict_texts(tmp_path / "fast", texts)] == labels
    test = write_csv(tmp_path / "test.csv", sentences(20, seed=4))
    assert 0 <= evaluate_file(tmp_path / "fast", test).scores["test"]["accuracy"] <= 1
    record = read_record(tmp_path / "fast")
    assert record.compression is not None
    assert [stage.edit for stage in record.compression.stages] == ["exact tail", "tail from layer 1", "final"]
    assert record.compression.speedup > 1.3
    assert record.scores["validation"]["accuracy"] == pytest.approx(record.compression.after)
    assert not (tmp_path / "fast" / STAGES).exists()
    written = {path.name for path in (tmp_path / "fast").iterdir()}
    assert {"compression.png", "compression.csv", "errors.csv", "README.md", "run.yaml", "validation_outputs.npz",
            "tokenizer.json"} <= written  # fmt: skip
    card = (tmp_path / "fast" / "README.md").read_text()
    assert "## Compression" in card
    assert "load_classifier" in card
    assert done.compression.is_exact == ("The classes of transformers compute the same" in card)
    assert run(["predict", str(tmp_path / "fast"), texts[0], "--min-confidence", "0.5"]) == 0
    assert labels[0] in capsys.readouterr().out
    with pytest.raises(UserError, match="is compressed already"):
        compress_run(tmp_path / "fast", tmp_path / "faster", **QUICK)


@pytest.mark.parametrize("kind", ["pooled", "regression", "multilabel", "apart"])
def test_heads_that_read_one_row(sources: Path, kind: str, tmp_path: Path) -> None:
    done = compress_run(train_small(sources, kind), tmp_path / "fast", **QUICK)
    assert prune.plan_of(done.model).tail == 1
    assert not (tmp_path / "fast" / "modules.json").exists()  # sentence-transformers would load the stock encoder
    model = load_classifier(tmp_path / "fast")
    assert prune.plan_of(model).tail == 1


def test_tags_have_constant_attention_alone(sources: Path, tmp_path: Path) -> None:
    trained = train_small(sources, "tokens")
    with pytest.raises(UserError, match="there is only constant attention; --best-effort writes what is reached"):
        compress_run(trained, tmp_path / "fast", **{**QUICK, "target": 3.0})
    done = compress_run(trained, tmp_path / "fast", **{**QUICK, "target": 1.1})
    assert done.compression.plan == "constant attention in layer 1"
    card = (tmp_path / "fast" / "README.md").read_text()
    assert "prune.load" in card
    assert "The classes of transformers compute the same" in card
    stock = AutoModelForTokenClassification.from_pretrained(tmp_path / "fast")
    batch = AutoTokenizer.from_pretrained(tmp_path / "fast")(["the film is fine"], return_tensors="pt")
    with torch.no_grad():
        assert (stock(**batch).logits - done.model(**batch).logits).abs().max() < 1e-5
    assert list(predict_texts(tmp_path / "fast", ["the film is fine"]))


def test_tolerance(trained: Path, tmp_path: Path) -> None:
    done = compress_run(trained, tmp_path / "fast", **{**QUICK, "target": None, "tolerance": 0.99})
    assert prune.plan_of(done.model).tail == 1
    assert done.compression.stages[-2].constant == [0]


def test_target_beyond_all_ways_is_written_only_if_asked(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="target is 50×, and the fastest that tail can be on this machine is 1.82×"):
        compress_run(trained, tmp_path / "fast", **{**QUICK, "target": 50.0, "ways": ("tail",)})
    assert not (tmp_path / "fast" / "record.json").exists()
    done = compress_run(
        trained, tmp_path / "fast", overwrite=True, best_effort=True, **{**QUICK, "target": 50.0, "ways": ("tail",)}
    )
    assert done.compression.speedup == pytest.approx(2 / 1.1)


def test_killed_command_goes_on_and_other_settings_are_refused(trained: Path, tmp_path: Path) -> None:
    from attendrop.lab.compression.listener import Listener

    class Killer(Listener):
        def progress(self, what: str, done: int, total: int) -> None:
            if what == "final training":
                raise KeyboardInterrupt

    whole = compress_run(trained, tmp_path / "whole", **QUICK).model.state_dict()
    with pytest.raises(KeyboardInterrupt):
        compress_run(trained, tmp_path / "fast", listener=Killer(), **QUICK)
    with pytest.raises(UserError, match="an unfinished compression with other settings"):
        compress_run(trained, tmp_path / "fast", **{**QUICK, "target": 1.2})
    resumed = compress_run(trained, tmp_path / "fast", **QUICK).model.state_dict()
    assert all(torch.equal(x, resumed[name]) for name, x in whole.items())
    with pytest.raises(UserError, match="not empty"):
        compress_run(trained, tmp_path / "fast", **QUICK)


def test_seeds_of_a_study_are_the_teacher(sources: Path, trained: Path, tmp_path: Path) -> None:
    words = {
        "model": sources / "model", "train-file": sources / "single.csv", "method": "label_smoothing",
        "seeds": 2, "workers": 0, "max-steps": 3, "max-length": 16, "pooling": "model",
        "output-dir": tmp_path / "study",
    }  # fmt: skip
    flags = [word for name, value in words.items() for word in (f"--{name}", str(value))]
    assert run(["compare", *flags, "--keep-models", "--use-cpu"]) == 0
    teacher = {"teacher": str(tmp_path / "study"), "teacher_method": "plain"}
    done = compress_run(trained, tmp_path / "fast", **teacher, **QUICK)
    assert done.compression.settings["teacher"] == str(tmp_path / "study")
    model = shutil.copytree(sources / "model", tmp_path / "other")
    other = train_small(sources, "single", model=str(model), output_dir=str(tmp_path / "run"))
    with pytest.raises(UserError, match="must read the same tokens"):
        compress_run(other, tmp_path / "fast2", **teacher, **QUICK)


def test_gate_of_the_run_chooses_and_best_effort_goes_on_where_it_was_refused(sources: Path, tmp_path: Path) -> None:
    folder = train_small(sources, "single", method=["attendout:mode=prune"], output_dir=str(tmp_path / "run"))
    own = {**QUICK, "target": None, "count": 2, "layers": "gate", "final_epochs": 0}
    with pytest.raises(UserError, match="count is 2, and 0 edits were possible; write it with --best-effort"):
        compress_run(folder, tmp_path / "fast", **own, gate_threshold=1.0)
    done = compress_run(folder, tmp_path / "fast", **own, gate_threshold=1.0, best_effort=True)
    assert [stage.edit for stage in done.compression.stages] == ["exact tail", "final"]
    both = compress_run(folder, tmp_path / "both", **own)
    assert both.compression.stages[-1].constant == [0, 1]
    assert len(both.compression.stages) == 4


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "give one of --target"),
        (["--target", "2x", "--tolerance", "0.01"], "give one of --target"),
        (["--target", "fast"], "target is 'fast'; it must be a speed-up such as 2x"),
        (["--target", "0.5"], "target is 0.5"),
        (["--tolerance", "1.5"], "tolerance is 1.5"),
        (["--count", "0"], "count is 0; it must be a whole number"),
        (["--count", "2", "--gate-threshold", "0.5"], "gate_threshold is for --layers gate, and layers is 'top'"),
        (["--target", "1.3", "--ways", "luck"], "ways is 'luck'; it must be"),
        (["--target", "1.3", "--layers", "luck"], "by is 'luck'; it must be"),
        (["--target", "1.3", "--layers", "gate"], "generator"),
        (["--target", "1.3", "--unlabelled", "missing.csv"], "missing.csv"),
        (["--target", "1.3", "--teacher", "missing"], "missing"),
    ],
)
def test_wrong_words_are_one_sentence(
    trained: Path, tmp_path: Path, words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compress", str(trained), "--output-dir", str(tmp_path / "fast"), *words]) == 2
    shown = capsys.readouterr().err
    assert sentence in shown
    assert "Traceback" not in shown
    assert "internal error" not in shown


def test_command_prints_stages_and_the_verdict(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "--target",
        "1.3x",
        "--learning-rate",
        "1e-3",
        "--final-epochs",
        "0",
        "--output-dir",
        str(tmp_path / "fast"),
    ]
    assert run(["compress", str(trained), *words]) == 0
    shown = capsys.readouterr().out
    assert "warning: 6 validation examples cannot show" in shown
    assert "tail from layer 1: 1.82×" in shown
    assert "cannot tell whether it is no worse than 0.01" in shown


def test_run_that_is_no_run_is_refused(sources: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no record.json"):
        compress_run(sources / "model", tmp_path / "fast", **QUICK)
    masked = fine_tune(
        model=str(sources / "model"), train_file=str(sources / "single.csv"), kind="mlm",
        output_dir=str(tmp_path / "mlm"), max_steps=1, use_cpu=True, max_length=16,
    )  # fmt: skip
    with pytest.raises(UserError, match="only encoders with a head"):
        compress_run(masked.folder, tmp_path / "fast", **QUICK)


# ------------------------------------------------------------------------------------------------ verdicts


def test_difference_of_accuracies_is_that_of_agresti_and_min() -> None:
    first, second = np.zeros(100, bool), np.zeros(100, bool)
    first[:80] = second[:75] = True
    second[85:87] = True
    got = difference_of_shares(first, second)  # 5 right only before, 2 only after
    b, c, n = 5.5, 2.5, 102
    error = 1.959964 * np.sqrt(b + c - (b - c) ** 2 / n) / n
    assert got.value == pytest.approx(0.03)
    assert (got.low, got.high) == pytest.approx(((b - c) / n - error, (b - c) / n + error), abs=1e-6)


def test_models_that_agree_on_few_examples_are_not_proved_equal() -> None:
    right = np.ones(50, bool)
    assert difference_of_shares(right, right).verdict(0.01) == "cannot tell"
    assert examples_needed(0.01) == 194
    right = np.ones(194, bool)
    assert difference_of_shares(right, right).verdict(0.01) == "no worse"
    assert difference_of_shares(right[1:], right[1:]).verdict(0.01) == "cannot tell"
    assert difference_of_shares(~right, right).verdict(0.01) == "worse"


def test_difference_of_other_scores_is_a_paired_bootstrap() -> None:
    draw = np.random.default_rng(0)
    gold = draw.normal(size=400)
    near, far = gold + 0.5 * draw.normal(size=400), gold + 0.6 * draw.normal(size=400)

    def rmse(predicted: np.ndarray, truth: np.ndarray) -> float:
        return float(np.sqrt(np.mean((predicted - truth) ** 2)))

    got = difference_of_scores(rmse, [far, gold], [near, gold], greater_is_better=False)
    assert got.value == pytest.approx(rmse(near, gold) - rmse(far, gold))
    assert got.low < got.value < got.high < 0
    assert got.verdict(0.01) == "worse"
    same = difference_of_scores(rmse, [near, gold], [near, gold], greater_is_better=False)
    assert (same.low, same.high) == (-same.high, same.high)
    assert same.high == pytest.approx(1.959964 / 402, abs=1e-6)


def test_seal_covers_the_compressed_model(trained: Path, tmp_path: Path) -> None:
    compress_run(trained, tmp_path / "fast", **QUICK)
    config = tmp_path / "fast" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"attendrop_tail": None}))
    with pytest.raises(UserError, match="not as it was written"):
        load_classifier(tmp_path / "fast")
