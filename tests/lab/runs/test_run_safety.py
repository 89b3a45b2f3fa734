"""What a run does to the folder, the weights and the secrets of its user when something goes wrong."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from datasets import Dataset
from huggingface_hub import ModelCard
from rich.console import Console
from safetensors.torch import load_file
from transformers import TrainerCallback, TrainingArguments

import attendrop.lab.cli.train
from attendrop import ADDrop, DivergedError, RegularizedTrainer, UserError, fine_tune
from attendrop.lab.cli import console
from attendrop.lab.cli.app import run
from attendrop.lab.cli.arguments import as_arguments
from attendrop.lab.cli.data_tables import balance_table, data_table
from attendrop.lab.runs import Listener
from attendrop.lab.runs.folder import is_written_by_a_run
from attendrop.lab.runs.predict import predict_texts
from attendrop.lab.runs.trainer import RunTrainer
from attendrop.lab.tasks import Description, Task, write_predictions
from helpers import zoo
from helpers.cli_tools import ENVIRONMENT, save_encoder, sentences, write_csv
from helpers.data import same_bits

# One process runs all of these tests, so that their model is created once.
pytestmark = pytest.mark.xdist_group("run_safety")

FIRST_IS_BEST = {"metric_for_best_model": "loss", "greater_is_better": True}  # of epochs in which the loss falls
SECRET = "hf_thisMustNeverBeWritten"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("safety")
    rows = sentences(32, seed=1)
    save_encoder(folder / "model", [text for text, _ in rows])
    write_csv(folder / "train.csv", rows)
    return folder


def settings(place: Path, output: Path, **more: Any) -> dict[str, Any]:
    return {
        "model": str(place / "model"), "train_file": str(place / "train.csv"), "validation_share": 0.25,
        "num_train_epochs": 3, "per_device_train_batch_size": 8, "learning_rate": 1e-3, "use_cpu": True,
        "output_dir": str(output), **more,
    }  # fmt: skip


class Act(Listener):
    """Does something when a step has ended, as somebody else on the machine would."""

    def __init__(self, step: int, action: Callable[[Any], None]) -> None:
        self.step, self.action = step, action
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def callbacks(self) -> Sequence[TrainerCallback]:
        listener = self

        class Callback(TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
                if state.global_step == listener.step:
                    listener.action(model)

        return [Callback()]


# ---- folders ---------------------------------------------------------------------------------------------------


def test_only_what_a_run_wrote_is_overwritten(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    write_csv(tmp_path / "test.csv", [("a film",)], header=["text"])
    more = {"test_file": str(tmp_path / "test.csv"), "method": ["attendout:T=1,reward_on=cached"]}
    fine_tune(**settings(place, out, **more, num_train_epochs=2, keep_checkpoints=True))
    assert run(["dropped", str(out)]) == 0
    described = capsys.readouterr().out
    assert "AttendOut's generator" in described
    assert "distance: 0" in described
    assert run(["dropped", str(out)]) == 2  # the figure exists
    assert run(["dropped", str(out), "--overwrite", "--method", "rdrop"]) == 2
    assert "method is 'rdrop'; it must be addrop" in " ".join(capsys.readouterr().err.split())
    assert run(["dropped", str(out), "--overwrite", "--method", "addrop:p=0.5,layers=all"]) == 0
    assert "AD-DROP, p = 0.5, q = 0.3" in capsys.readouterr().out
    names = {path.name for path in out.iterdir()} - {"dropped.png", "dropped.csv"}
    assert {"attendout_run.json", "predictions_test.csv", "checkpoint-6", "training_args.bin"} <= names
    assert (out / "attendout.png").read_bytes()[:4] == b"\x89PNG"
    assert all(map(is_written_by_a_run, names)), names  # the list is complete

    foreign = {"notes/a.txt", "checkpoint-6-copy/b.txt", "my.model", "results.csv", "model2.safetensors"}
    for name in foreign:
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_text("mine")
    elsewhere.mkdir()
    (elsewhere / "c.txt").write_text("mine")
    (out / "link").symlink_to(elsewhere)
    (out / "checkpoint-99").symlink_to(elsewhere)
    listener = Act(0, lambda model: None)
    fine_tune(listener, **settings(place, out, num_train_epochs=1, overwrite=True))
    assert all((out / name).read_text() == "mine" for name in foreign)
    assert (elsewhere / "c.txt").read_text() == "mine"
    assert (out / "link").is_symlink()
    gone = ("checkpoint-99", "checkpoint-6", "attendout_run.json", "attendout.png", "predictions_test.csv")
    assert not any(os.path.lexists(out / name) for name in gone)
    assert any("results.csv" in note and "stay there" in note for note in listener.notes)


def test_a_run_that_is_refused_overwrites_nothing(place: Path, tmp_path: Path) -> None:
    fine_tune(**settings(place, tmp_path / "out", num_train_epochs=1))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    with pytest.raises(UserError, match="training has 1 epoch"):  # found when training begins
        fine_tune(**settings(place, tmp_path / "out", overwrite=True, method=["addrop"], max_steps=1))
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before
    with pytest.raises(UserError, match="training has 1 epoch"):
        fine_tune(**settings(place, tmp_path / "new/runs/out", method=["addrop"], max_steps=1))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("step", [4, 9])  # in the middle, and after the last checkpoint
def test_a_folder_that_is_deleted_during_the_run_is_noticed(step: int, place: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    more = {"save_strategy": "steps", "save_steps": 4, "eval_strategy": "no"}
    with pytest.raises(UserError, match="run.yaml was deleted during the run"):
        fine_tune(Act(step, lambda model: shutil.rmtree(out)), **settings(place, out, **more))
    assert not (out / "record.json").exists()
    assert not (out / "model.safetensors").exists()


def test_a_best_checkpoint_that_is_deleted_is_not_replaced_by_another_model(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    more = {**FIRST_IS_BEST, "save_strategy": "epoch"}

    def delete(model: Any) -> None:
        shutil.rmtree(out / "checkpoint-3")

    with pytest.raises(UserError, match="best checkpoint .*checkpoint-3' cannot be loaded at the end: it is missing"):
        fine_tune(Act(8, delete), **settings(place, out, **more))
    assert not (out / "record.json").exists()
    assert not (out / "model.safetensors").exists()


def test_skipped_checkpoints_change_no_run(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def trained(name: str, *listeners: Any, **more: Any) -> tuple[Any, list[int]]:
        saved: list[int] = []

        def save(trainer: Any, *args: Any, **kwargs: Any) -> None:
            saved.append(trainer.state.global_step)
            usual(trainer, *args, **kwargs)

        with monkeypatch.context() as patch:
            usual = RunTrainer._save_checkpoint
            patch.setattr(RunTrainer, "_save_checkpoint", save)
            result = fine_tune(*listeners, **settings(place, tmp_path / name, **{**FIRST_IS_BEST, **more}))
        return result, saved

    usual, saved = trained("each", save_strategy="epoch")
    assert saved == [3, 6, 9]
    skipping, saved = trained("skipping")
    assert saved == [9]
    stopped, saved = trained("stopped", Act(8, lambda model: os.kill(os.getpid(), signal.SIGINT)))
    assert (stopped.finished, saved) == (False, [8])
    weights = load_file(tmp_path / "stopped/checkpoint-8/best.safetensors")
    resumed, saved = trained("stopped", resume=True)
    assert saved == [9]
    for result in (skipping, resumed):
        assert result.record.kept == usual.record.kept
        assert result.record.kept.step == 3
        assert same_bits(*(load_file(one.folder / "model.safetensors") for one in (result, usual)))
    assert same_bits(weights, load_file(usual.folder / "model.safetensors"))
    with monkeypatch.context() as patch:
        patch.setattr(RunTrainer, "_copied_weights", lambda trainer: pytest.fail("the last weights are kept"))
        assert trained("last", keep_epoch="last")[1] == [9]
    monkeypatch.setattr("attendrop.lab.runs.trainer.SAVE_SECONDS", -1.0)
    assert trained("old")[1] == [3, 6, 9]


# ---- runs that diverge -----------------------------------------------------------------------------------------


def test_a_run_that_diverges_ends_with_code_3_and_one_sentence(
    place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    diverging = settings(place, tmp_path / "out", learning_rate=1e30, max_grad_norm=0, warmup_steps=0)
    assert run(["train", *as_arguments(diverging)]) == 3
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error")]
    assert "training has diverged: weights of the model are not finite" in line
    assert "the likely cause is a learning rate of 1e+30 that is too high; try a lower one" in line
    assert not list((tmp_path / "out").rglob("*.safetensors"))
    assert not (tmp_path / "out/record.json").exists()


def test_the_last_good_checkpoint_is_kept(place: Path, tmp_path: Path) -> None:
    def spoil(model: Any) -> None:
        with torch.no_grad():
            next(model.parameters())[0, 0] = float("nan")

    with pytest.raises(DivergedError, match="after step 6.*out/checkpoint-3 is the last checkpoint"):
        fine_tune(Act(5, spoil), **settings(place, tmp_path / "out", save_total_limit=1))
    good = load_file(tmp_path / "out/checkpoint-3/model.safetensors")
    assert all(weights.isfinite().all() for weights in good.values())
    assert not (tmp_path / "out/model.safetensors").exists()


@pytest.mark.parametrize("regularizers", [[], [ADDrop(cross_tuning=False)]], ids=["plain", "addrop"])
def test_trainer_stops_at_the_log_line_after_five_bad_steps(tmp_path: Path, regularizers: list[Any]) -> None:
    def train(bad_steps: int, **more: Any) -> int:
        batch = zoo.make_batch("bert", size=4)
        data = [{name: values[i] for name, values in batch.items()} for i in range(4)] * 20
        args = TrainingArguments(
            tmp_path / "out", use_cpu=True, report_to=[], disable_tqdm=True, max_steps=12, logging_steps=6,
            save_strategy="no", per_device_train_batch_size=4,
        )  # fmt: skip

        class NanLosses(RegularizedTrainer):
            def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
                loss = super().compute_loss(*args, **kwargs)
                is_bad = 6 - bad_steps <= self.state.global_step < 6
                # The gradient stays finite, as behind a loss scaler that leaves the step out.
                return loss + float("nan") if is_bad and not isinstance(loss, tuple) else loss

        trainer = NanLosses(
            model=zoo.make_model("bert"), args=args, train_dataset=data, regularizers=regularizers, **more
        )
        trainer.train()
        return int(trainer.state.global_step)

    asked = {} if regularizers else {"check_finite": True}  # by default a plain Trainer goes on, as the stock one does
    assert train(bad_steps=4, **asked) == 12
    with pytest.raises(DivergedError, match="the loss was not finite in 5 steps in a row, found after step 6"):
        train(bad_steps=5, **asked)
    assert train(bad_steps=5, check_finite=False) == 12


# ---- secrets ---------------------------------------------------------------------------------------------------


def contains_secret(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


def test_a_token_is_never_written(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    seen: list[str | None] = []
    listener = Act(1, lambda model: seen.append(os.environ.get("HF_TOKEN")))
    result = fine_tune(listener, **settings(place, tmp_path / "out", num_train_epochs=1, hub_token=SECRET))
    assert seen == [SECRET]  # where the Hub's library looks for it
    assert "HF_TOKEN" not in os.environ
    assert (tmp_path / "out/training_args.bin").is_file()
    assert contains_secret(tmp_path / "out") == []
    assert SECRET not in json.dumps(result.record.to_json())


def test_a_trainer_saves_its_arguments_without_the_token(tmp_path: Path) -> None:
    args = TrainingArguments(tmp_path / "out", use_cpu=True, report_to=[], hub_token=SECRET)
    trainer = RegularizedTrainer(model=zoo.make_model("bert"), args=args)
    trainer.save_model()
    assert torch.load(tmp_path / "out/training_args.bin", weights_only=False).hub_token is None
    assert contains_secret(tmp_path / "out") == []
    assert trainer.args.hub_token == SECRET


def test_a_token_reaches_other_processes_by_the_environment_only(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[list[str], str | None]] = []
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(
        attendrop.lab.cli.train,
        "launch",
        lambda words, processes: started.append((words, os.environ.get("HF_TOKEN"))) or 0,
    )
    assert run(["train", *as_arguments(settings(place, tmp_path / "out")), "--hub-token", SECRET, "--nproc", "2"]) == 0
    ((words, token),) = started
    assert "--learning-rate" in words
    assert SECRET not in " ".join(words)
    assert token == SECRET


# ---- what is shown and written ---------------------------------------------------------------------------------


def test_predictions_are_no_formulas(tmp_path: Path) -> None:
    texts = ["=1+1", "+49 30", "-2", "@SUM(A1)", "\t=1", " =1", "- no", "fine", "3 - 2"]
    task = Task("t", "regression", ("text",), None)
    write_predictions(tmp_path / "p.csv", Dataset.from_dict({"text": texts}), [-0.5] * len(texts), task)
    with (tmp_path / "p.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))[1:]
    assert [text for text, _ in rows] == [
        "'=1+1", "'+49 30", "-2", "'@SUM(A1)", "'\t=1", "' =1", "'- no", "fine", "3 - 2",
    ]  # fmt: skip
    assert {prediction for _, prediction in rows} == {"-0.5"}


def test_names_of_files_and_labels_are_not_read_as_markup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    name = "[red]a[/red]\n\x1b[31m.csv"
    description = Description(name, "classification", {"train": 2}, (name, "b"), {"train": {name: 1, "b": 1}})
    output = io.StringIO()
    screen = Console(file=output, width=200, force_terminal=False)
    screen.print(data_table(description))
    screen.print(balance_table(description))
    assert output.getvalue().count(r"[red]a[/red]\n\x1b[31m.csv") == 2
    assert "\x1b" not in output.getvalue()
    monkeypatch.chdir(tmp_path)
    assert run(["predict", name, "a text"]) == 2
    assert console.shown(name) != name
    error = capfd.readouterr().err
    assert len(error.splitlines()) == 1
    assert "[red]a[/red]" in error


def test_names_with_markup_survive_a_whole_run(place: Path, tmp_path: Path) -> None:
    model, train = tmp_path / "a: b\n---\n<i>", tmp_path / "<img src=x onerror=alert(1)> | $x$ [b](c).csv"
    shutil.copytree(place / "model", model)
    write_csv(train, [(text, f"<b>{label}</b> | *") for text, label in sentences(16, seed=1)])
    more = {"model": str(model), "train_file": str(train), "test_file": str(train), "num_train_epochs": 1}
    fine_tune(**settings(place, tmp_path / "out", **more))
    card = ModelCard.load(tmp_path / "out/README.md")
    assert card.data.library_name == "sentence-transformers"
    outside_of_code = re.sub(r"`[^`]*`", "", card.text)
    assert not re.search(r"(?<!\\)[<|]\s*(img|i>|\$)", outside_of_code)
    assert yaml.safe_load((tmp_path / "out/run.yaml").read_text())["model"] == str(model)
    answers = [answer for _, answer in predict_texts(tmp_path / "out", ["a clever film"])]
    assert answers[0] in ("<b>good</b> | *", "<b>bad</b> | *")


# ---- Ctrl-C ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc to see what a process has loaded")
def test_ctrl_c_while_the_libraries_are_imported() -> None:
    """The signal comes as soon as the process has loaded the first library of torch."""
    words = [sys.executable, "-m", "attendrop", "train", "--help"]
    process = subprocess.Popen(words, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 60
    while "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text() and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error == "stopped\n"
