"""Whole runs: equal through the command line, YAML and Python, after a resume and on two processes; their files."""

from __future__ import annotations

import csv
import json
import re
import resource
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer, TrainingArguments, set_seed

from attendrop import ADDrop, RegularizedTrainer, __version__, load_classifier
from attendrop.errors import UserError
from attendrop.lab.cli.app import run
from attendrop.lab.cli.arguments import as_arguments as flags
from attendrop.lab.records import flat_scores
from attendrop.lab.runs import fine_tune
from attendrop.lab.runs.run import versions
from helpers.cli_tools import ENVIRONMENT, attendrop, save_encoder, sentences, write_csv
from helpers.data import largest_difference, same_bits

# One process runs all of these tests, so that their shared fixtures are created once.
pytestmark = pytest.mark.xdist_group("runs")

METHOD = "addrop:p=0.5,q=0.5,layers=all"
SHORT = {"num_train_epochs": 2, "per_device_train_batch_size": 8, "learning_rate": 1e-3, "seed": 5, "use_cpu": True}


def test_versions_are_known_in_a_source_tree_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def version_of(name: str) -> str:
        if name == "attendrop":
            raise metadata.PackageNotFoundError(name)
        return installed(name)

    installed = metadata.version
    monkeypatch.setattr(metadata, "version", version_of)
    assert versions()["attendrop"] == __version__


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and files."""
    folder = tmp_path_factory.mktemp("runs")
    rows = sentences(72, seed=1)
    save_encoder(folder / "model", [text for text, _ in rows])
    write_csv(folder / "train.csv", rows)
    write_csv(folder / "dev.csv", sentences(24, seed=2))
    write_csv(folder / "test.csv", [(text,) for text, _ in sentences(10, seed=3)], header=["text"])
    return folder


KEPT = {"keep_checkpoints": True}


def settings(workspace: Path, output: str, **more: Any) -> dict[str, Any]:
    files = {"train_file": str(workspace / "train.csv"), "validation_file": str(workspace / "dev.csv")}
    return {
        "model": str(workspace / "model"),
        **files,
        "method": [METHOD],
        **SHORT,
        "output_dir": str(workspace / output),
        **more,
    }


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.fixture(scope="module")
def finished(workspace: Path) -> Path:
    """A run through the command line."""
    done = attendrop("train", *flags(settings(workspace, "whole", test_file=str(workspace / "test.csv"), **KEPT)))
    assert done.code == 0, done.err
    assert "note: " in done.out
    assert re.search(r"epoch 2: dev loss \d.\d+, accuracy \d", done.out)
    assert "attendrop predict" in done.out
    return workspace / "whole"


def test_a_run_writes_all_files_that_a_user_needs(finished: Path) -> None:
    names = {path.name for path in finished.iterdir()}
    assert names >= {
        "model.safetensors", "config.json", "tokenizer.json", "README.md", "metrics.json", "record.json", "run.yaml",
        "curves.png", "regularizers.json", "predictions_test.csv",
    }  # fmt: skip
    model = load_classifier(finished)
    assert type(model).__name__ == "BertPooledForSequenceClassification"
    assert model.config.id2label == {0: "bad", 1: "good"}
    metrics = json.loads((finished / "metrics.json").read_text())
    record = json.loads((finished / "record.json").read_text())
    assert metrics == flat_scores(record["scores"])
    assert 0 <= metrics["validation/accuracy"] <= 1
    assert record["seed"] == 5
    assert record["versions"]["torch"] == metadata.version("torch")  # of a CUDA build, `torch.__version__` says more
    assert record["examples"]["train"] == 72
    assert record["regularizers"][0]["method"] == "addrop"
    card = (finished / "README.md").read_text()
    for words in (
        "addrop",
        "p=0.5",
        "seed: 5",
        "validation/accuracy",
        "load_classifier",
        "train.csv",
    ):
        assert words in card
    (result, *_) = ModelCard.load(finished / "README.md").data.eval_results
    assert (result.dataset_name, result.metric_type) == ("train.csv", "accuracy")
    assert result.metric_value == metrics["validation/accuracy"]
    assert (finished / "curves.png").read_bytes()[:4] == b"\x89PNG"
    assert len((finished / "predictions_test.csv").read_text().splitlines()) == 11


def test_the_kept_model_is_saved_and_its_score_reported(finished: Path) -> None:
    record = json.loads((finished / "record.json").read_text())
    scores = {entry["step"]: entry["eval_accuracy"] for entry in record["history"] if "eval_accuracy" in entry}
    assert record["scores"]["validation"]["accuracy"] == scores[record["kept"]["step"]]
    state = json.loads((finished / str(record["best_checkpoint"]) / "trainer_state.json").read_text())
    assert state["best_metric"] == max(scores.values())  # chosen by the task's metric, not by the loss


def test_command_line_yaml_and_python_give_the_same_bits(workspace: Path, finished: Path) -> None:
    file = workspace / "run.yaml"
    file.write_text(yaml.safe_dump({**settings(workspace, "ignored"), "learning_rate": "1e-3"}))
    # A flag overrides the file, and may have underscores.
    assert run(["train", "--config", str(file), "--output_dir", str(workspace / "yaml")]) == 0
    assert not (workspace / "ignored").exists()
    assert fine_tune(**settings(workspace, "python")).finished
    assert run(["train", "--config", str(finished / "run.yaml"), "--output-dir", str(workspace / "again")]) == 0
    for other in ("yaml", "python", "again"):
        assert same_bits(weights(finished), weights(workspace / other)), other


def test_a_run_equals_a_trainer_written_by_hand(workspace: Path) -> None:
    """A run hides nothing: the weights equal those of the Trainer that a user would write."""
    given = settings(
        workspace, "sampled", train_sampling_strategy="random", pooling="model", head_start="random", **KEPT
    )
    result = fine_tune(**given)
    tokenizer = AutoTokenizer.from_pretrained(workspace / "model")

    def read(rows: list[tuple[str, str]]) -> list[dict[str, Any]]:
        encoded = [dict(tokenizer(text)) for text, _ in rows]
        return [{**e, "labels": ["bad", "good"].index(label)} for e, (_, label) in zip(encoded, rows, strict=True)]

    set_seed(5)
    model = AutoModelForSequenceClassification.from_pretrained(workspace / "model", num_labels=2)
    args = TrainingArguments(
        str(workspace / "by_hand"), num_train_epochs=2, per_device_train_batch_size=8, learning_rate=1e-3, seed=5,
        weight_decay=0.01, warmup_steps=0.1, save_strategy="no", eval_strategy="epoch", report_to="none", use_cpu=True,
        per_device_eval_batch_size=32, disable_tqdm=True,
    )  # fmt: skip
    trainer = RegularizedTrainer(
        model=model, args=args, train_dataset=read(sentences(72, seed=1)),
        eval_dataset=read(sentences(24, seed=2)), processing_class=tokenizer,
        regularizers=[ADDrop(p=0.5, q=0.5, layers="all")],
    )  # fmt: skip
    trainer.train()
    last = load_file(
        max((workspace / "sampled").glob("checkpoint-*"), key=lambda p: p.stat().st_mtime) / "model.safetensors"
    )
    assert result.finished
    assert same_bits(last, {name: value for name, value in trainer.model.state_dict().items() if name in last})


def test_interrupted_and_resumed_equals_uninterrupted(workspace: Path) -> None:
    """Ctrl-C saves a checkpoint and prints the command that resumes the run. Early stopping restores its patience."""
    long = settings(workspace, "interrupted", num_train_epochs=6, patience=30, save_strategy="steps", save_steps=600,
                    eval_strategy="steps", eval_steps=6)  # fmt: skip
    child = subprocess.Popen(
        [sys.executable, "-m", "attendrop", "train", *flags(long)], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith("epoch"):
            child.send_signal(signal.SIGINT)
            break
    out = child.stdout.read()
    assert child.wait() == 130
    assert "stopping after this step" in out
    command = out.partition("continue with: ")[2].splitlines()[0].split()
    saved = [path.name for path in (workspace / "interrupted").glob("checkpoint-*")]
    assert len(saved) == 1
    assert 6 <= int(saved[0].removeprefix("checkpoint-")) < 54
    assert command[:2] == ["attendrop", "train"]
    assert run(command[1:]) == 0
    assert run(["train", *flags({**long, "output_dir": str(workspace / "uninterrupted")})]) == 0
    assert same_bits(weights(workspace / "interrupted"), weights(workspace / "uninterrupted"))
    histories = [
        json.loads((workspace / n / "record.json").read_text())["history"] for n in ("interrupted", "uninterrupted")
    ]
    assert _curve(histories[0]) == _curve(histories[1])


def _curve(history: list[dict[str, Any]]) -> list[Any]:
    return [(e["step"], e["eval_loss"]) for e in history if "eval_loss" in e]


def test_two_processes_equal_one_with_the_double_batch(workspace: Path) -> None:
    """Through --nproc, with length-grouped batches. With SGD, because Adam turns rounding noise into whole steps."""
    exact = {"optim": "sgd", "learning_rate": 0.05, "max_grad_norm": 0.0, "load_best_model_at_end": False}
    model = save_encoder(workspace / "dropless", [text for text, _ in sentences(72, seed=1)], dropout=0.0)
    common = settings(workspace, "one", **exact, model=str(model))
    one = fine_tune(**common)
    half = {**common, "output_dir": str(workspace / "two"), "per_device_train_batch_size": 4}
    two = attendrop("train", *flags(half), "--nproc", "2")
    assert two.code == 0, two.err + two.out
    assert two.out.count("everything is in") == 1
    assert json.loads((workspace / "two" / "record.json").read_text())["cost"]["processes"] == 2
    assert (
        one.scores["validation"]["accuracy"]
        == json.loads((workspace / "two" / "metrics.json").read_text())["validation/accuracy"]
    )
    fine_tune(**{**common, "output_dir": str(workspace / "plain"), "method": []})
    effect = largest_difference(weights(workspace / "plain"), weights(workspace / "one"))
    assert effect > 1e-3
    # A run by name is in float32. Rounding is far below the effect of the method; other batches or masks are not.
    assert largest_difference(weights(workspace / "one"), weights(workspace / "two")) < effect / 100


def test_a_folder_is_overwritten_on_request_only(workspace: Path, finished: Path) -> None:
    before = (finished / "model.safetensors").stat().st_mtime_ns
    with pytest.raises(UserError, match="is not empty"):
        fine_tune(**settings(workspace, "whole"))
    unrelated = workspace / "unrelated"
    unrelated.mkdir()
    (unrelated / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="no earlier run"):
        fine_tune(**settings(workspace, "unrelated", overwrite=True))
    assert (unrelated / "thesis.txt").read_text() == "mine"
    assert (finished / "model.safetensors").stat().st_mtime_ns == before


def test_a_full_disk_keeps_the_last_complete_checkpoint(workspace: Path) -> None:
    """The operating system refuses to write more than the model: the optimizer's state, twice as large, fails."""
    fine_tune(**settings(workspace, "full", num_train_epochs=1, method=[], **KEPT))
    size = (workspace / "full" / "model.safetensors").stat().st_size
    good = next((workspace / "full").glob("checkpoint-*"))
    longer = settings(workspace, "full", num_train_epochs=3, method=[], resume=True, resume_changed=True)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size * 3 // 2, limits[1]))
    try:
        with pytest.raises(UserError, match=f"the disk is full; {good.name} is complete"):
            fine_tune(**longer)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in (workspace / "full").glob("checkpoint-*")] == [good.name]
    assert not (workspace / "full" / "unfinished").exists()
    assert fine_tune(**longer).finished


def test_predict_reads_texts_and_files(workspace: Path, finished: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["predict", str(finished), "the film is clever", "a dull story"]) == 0
    assert [line.split()[0] in ("good", "bad") for line in capfd.readouterr().out.splitlines()] == [True, True]
    answers = str(workspace / "answers.csv")
    command = ["predict", str(finished), "--file", str(workspace / "dev.csv"), "--output", answers]
    assert run(command) == 0
    metrics = json.loads((finished / "metrics.json").read_text())
    assert f"accuracy {metrics['validation/accuracy']:.4f}" in capfd.readouterr().out
    assert run(command) == 2  # the file exists
    assert run(["predict", str(workspace / "model"), "a text"]) == 2  # not a finished run


def test_predictions_are_in_the_order_of_the_file(workspace: Path) -> None:
    """The Trainer groups the examples of an evaluation by length, and returns predictions in that order."""
    texts = [" ".join([text] * (1 + i % 4)) for i, (text, _) in enumerate(sentences(40, seed=3))]
    write_csv(workspace / "lengths.csv", [(text,) for text in texts], header=["text"])
    result = fine_tune(
        **settings(workspace, "order", method=[], test_file=str(workspace / "lengths.csv"), num_train_epochs=1)
    )
    tokenizer, model = AutoTokenizer.from_pretrained(workspace / "order"), result.model.eval()
    with torch.no_grad():
        logits = [model(**tokenizer(text, return_tensors="pt")).logits[0] for text in texts]
    expected = [float(row.softmax(-1)[model.config.label2id["good"]]) for row in logits]
    with (workspace / "order" / "predictions_test.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    by_length = sorted(expected, key=lambda p: len(texts[expected.index(p)]), reverse=True)
    assert by_length != pytest.approx(expected, abs=2e-4), "the order does not show in these probabilities"
    assert [float(row["probability_good"]) for row in rows] == pytest.approx(expected, abs=2e-4)
