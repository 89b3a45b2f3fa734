"""Figures of finished runs: `attendrop curves` and `attendrop robustness`."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from attendrop.errors import UserError
from attendrop.lab.cli.app import run
from attendrop.lab.report.learning_curves import plot_histories, smoothed
from attendrop.lab.robustness.run_folder import robustness_of_run
from attendrop.lab.runs import fine_tune
from attendrop.lab.runs.curves import plot_runs
from helpers.cli_tools import save_encoder, sentences, write_csv

pytest.importorskip("matplotlib")
pytestmark = pytest.mark.xdist_group("run_figures")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a plain run, one with AD-DROP and one with AttendOut."""
    folder = tmp_path_factory.mktemp("figures")
    rows = sentences(48, seed=1)
    model = save_encoder(folder / "model", [text for text, _ in rows])
    train, dev = write_csv(folder / "train.csv", rows), write_csv(folder / "dev.csv", sentences(24, seed=2))
    for name, method in (("plain", []), ("addrop", ["addrop"]), ("game", ["attendout:T=2,reward_on=held_out"])):
        fine_tune(
            model=str(model), train_file=str(train), validation_file=str(dev), method=method, num_train_epochs=2,
            per_device_train_batch_size=8, learning_rate=1e-3, logging_steps=1, use_cpu=True,
            output_dir=str(folder / name),
        )  # fmt: skip
    return folder


def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, tuple[list[float], list[float]]]]:
    """What the next figure shows: title of a panel -> label of a line -> its points."""
    from matplotlib.figure import Figure

    panels: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
    save = Figure.savefig

    def watch(self: Any, *args: Any, **kwargs: Any) -> None:
        for axes in self.axes:
            lines = {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()}
            panels[axes.get_title()] = lines
        save(self, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", watch)
    return panels


def test_curves_of_several_runs(runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    panels = drawn(monkeypatch)
    output = runs / "curves.png"
    assert run(["curves", *(str(runs / name) for name in ("plain", "addrop", "game")), "--output", str(output)]) == 0
    assert output.read_bytes().startswith(b"\x89PNG")
    assert list(panels) == ["Training loss", "Development loss", "Development score"]
    assert list(panels["Development score"]) == ["plain", "addrop", "attendout", "attendout defender"]
    for name in ("plain", "addrop"):
        history = json.loads((runs / name / "record.json").read_text(encoding="utf-8"))["history"]
        accuracies = [entry["eval_accuracy"] for entry in history if "eval_accuracy" in entry]
        assert panels["Development score"][name] == ([1.0, 2.0], accuracies[:2])
    assert len(panels["Development loss"]) == 3
    assert run(["curves", str(runs / "plain"), "--output", str(output)]) == 2
    assert "which exists; choose another with --output or use --overwrite." in capsys.readouterr().err


def test_training_loss_is_smoothed_by_a_centred_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert smoothed([1, 2, 6, 3], 3) == [1.5, 3, 11 / 3, 4.5]
    assert smoothed([1, 2, 6, 3], 1) == [1, 2, 6, 3]
    assert smoothed([], 5) == []
    panels = drawn(monkeypatch)
    history = [{"loss": float(i % 7), "epoch": i / 10} for i in range(60)]
    plot_histories({"a": history}, tmp_path / "a.png", "accuracy")
    raw, smooth = panels["Training loss"].values()
    assert raw == ([entry["epoch"] for entry in history], [entry["loss"] for entry in history])
    assert smooth[1] == smoothed(raw[1], 6)
    plot_histories({"a": history}, tmp_path / "a.png", "accuracy", smoothing=1)
    assert len(panels["Training loss"]) == 1


def test_runs_with_the_same_method_are_named_by_their_folders(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = runs / "other"
    other.mkdir()
    (other / "record.json").write_bytes((runs / "plain" / "record.json").read_bytes())
    panels = drawn(monkeypatch)
    plot_runs([runs / "plain", other, runs / "addrop"], runs / "names.png", metric="loss")
    assert list(panels["Development score"]) == ["plain (plain)", "plain (other)", "addrop"]


def test_what_cannot_be_drawn_is_refused(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no record.json; it must be the folder of a finished"):
        plot_runs([tmp_path], tmp_path / "a.png")
    with pytest.raises(UserError, match=r"metric is 'f1', which '.*plain' has not; it has accuracy, .*loss"):
        plot_runs([runs / "plain"], tmp_path / "a.png", "f1")
    record = json.loads((runs / "plain" / "record.json").read_text(encoding="utf-8"))
    record["metric"] = "mcc"
    (tmp_path / "record.json").write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(UserError, match=r"the runs have different scores \(accuracy, mcc\); choose one with --metric"):
        plot_runs([runs / "plain", tmp_path], tmp_path / "a.png")
    assert run(["curves", str(runs / "plain"), "--output", str(tmp_path / "a.txt")]) == 2
    assert run(["robustness", str(tmp_path / "missing")]) == 2


def test_robustness_of_a_run(runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    panels = drawn(monkeypatch)
    folder = runs / "plain"
    assert run(["robustness", str(folder), "--rates", "0,0.5,1", "--batch-size", "7"]) == 0
    assert "nothing dropped: " in capsys.readouterr().out
    assert list(panels) == ["layer 0", "layer 1", "all of them together"]
    assert list(panels["layer 1"]) == ["nothing dropped", "highest attribution", "lowest attribution", "random"]
    with (folder / "robustness.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    assert {float(row["score"]) for row in rows if row["rate"] == "0.0"} == {metrics["validation/accuracy"]}
    assert len(rows) == 3 * 3 * 3
    # the validation file of the run is what it measures by default
    by_file = robustness_of_run(folder, runs / "dev.csv", rates=[0.5, 1], batch_size=7)
    assert [point.loss for point in by_file.points] == [float(row["loss"]) for row in rows]
    first = robustness_of_run(folder, rates=[0.5], layers=[1], attribution="aa", max_samples=5)
    assert (first.examples, first.layers, first.attribution) == (5, ["layer_1"], "aa")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rates", "0.5,x"], "rates is '0.5,x'; it must be numbers with commas between them."),
        (["--rates", "2"], "rates is 2.0; it must be a number from 0 to 1."),
        (["--layers", "9"], "layers is [9], but there is no layer 9; this model has layers 0 to 1."),
        (["--layers", "last"], "layers is 'last'; it must be 'first', 'all'"),
        (["--attribution", "xx"], "attribution is 'xx'; it must be one of 'ga', 'iga', 'aa'."),
        (["--label", "xx"], "label is 'xx'; it must be one of 'pseudo', 'gold'."),
        (["--batch-size", "0"], "batch_size is 0; it must be at least 1."),
    ],
)
def test_wrong_options_are_refused_in_one_sentence(runs: Path, options: list[str], message: str, capsys: Any) -> None:
    assert run(["robustness", str(runs / "addrop"), *options, "--max-samples", "4"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert not (runs / "addrop" / "robustness.png").exists()


def test_a_file_without_labels_is_refused(runs: Path, tmp_path: Path) -> None:
    file = write_csv(tmp_path / "texts.csv", [(text,) for text, _ in sentences(4, seed=3)], header=["text"])
    with pytest.raises(UserError, match="has no labels, and without them there is no score"):
        robustness_of_run(runs / "plain", file)
