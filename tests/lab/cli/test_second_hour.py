"""What a newcomer meets in the second hour: repeated flags, several data sets, what comes next."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attendrop.lab.cli.app import run
from attendrop.lab.studies.analysis import analyse
from helpers.cli_tools import save_encoder, sentences, write_csv

pytestmark = pytest.mark.xdist_group("second hour")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("second hour")
    rows = sentences(40, seed=1)
    save_encoder(folder / "model", [text for text, _ in rows])
    write_csv(folder / "train.csv", rows)
    write_csv(folder / "films.csv", sentences(40, seed=2), header=("review", "verdict"))
    return folder


def failed(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """Runs a command that must be refused, and returns its one sentence."""
    assert run([str(word) for word in words]) == 2
    shown = capsys.readouterr().err
    assert "Traceback" not in shown
    return " ".join(shown.split())


# ---- repeated flags --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "train --model m --train-file a.csv --train-file=b.csv",
            "--train-file is given 2 times, 'a.csv' and 'b.csv'; give it once, or compare on several data sets",
        ),
        ("train --model m --seed 1 --seed 2 --seed 3", "--seed is given 3 times, '1', '2' and '3'; give it once"),
        ("train --model m --bf16 --no-bf16", "--bf16 is given 2 times, '--bf16' and '--no-bf16'; give it once."),
        ("tune --method addrop --train-file a.csv --train-file b.csv", "--train-file is given 2 times"),
        ("check a.csv --text x --text y", "--text is given 2 times, 'x' and 'y'; give it once."),
        ("predict folder --file a --file b", "--file is given 2 times"),
        ("compare --method plain --learning-rate 1 --learning_rate 2", "--learning-rate is given 2 times, '1' and '2'"),
    ],
)
def test_a_repeated_flag_is_refused_with_its_values(
    words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sentence in failed(capsys, *words.split())


def test_a_repeated_secret_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    shown = failed(capsys, *["train", "--model", "m", "--hub-token", "hidden1", "--hub-token", "hidden2"])
    assert "--hub-token is given 2 times; give it once." in shown
    assert "hidden" not in shown


# ---- several data sets -----------------------------------------------------------------------------------------------


def test_several_files_are_several_data_sets_of_a_comparison(place: Path, tmp_path: Path) -> None:
    study = tmp_path / "study"
    words = [
        "compare",
        "--model",
        place / "model",
        "--method",
        "layerdrop",
        "--use-cpu",
        "--workers",
        "0",
        "--max-steps",
        "1",
    ]
    words += ["--head-start", "random", "--output-dir", study]
    named = ["--data", f"first={place / 'train.csv'}"]
    assert run([str(word) for word in [*words, *named, "--seeds", "1"]]) == 0
    named += ["--data", f"films={place / 'films.csv'}@text=review,label=verdict"]
    assert run([str(word) for word in [*words, *named, "--seeds", "2"]]) == 0  # both may grow
    assert {(of.task, of.seed, of.method) for of in analyse(study).runs} == {
        (task, seed, method) for task in ("first", "films") for seed in (0, 1) for method in ("plain", "layerdrop")
    }
    content = json.loads((study / "study.json").read_text())
    assert content["data"]["films"] == {
        "train_file": str(place / "films.csv"), "text": "review", "label": "verdict"
    }  # fmt: skip
    assert " --data films=" in content["command"].replace("'", "")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--data", "a.csv"], "data is 'a.csv'; a data set is written NAME=FILE, with settings of its own after an @"),
        (["--train-file", "x/a.csv", "--train-file", "y/a.csv"], "two data sets are called 'a.csv', 'x/a.csv' and"),
        (["--data", "a=a.csv", "--task", "a"], "the data set 'a' is given several times"),
        (["--data", "a=a.csv@seed=3"], "data 'a=a.csv@seed=3' has 'seed=3' after the @, which the study decides"),
        (["--data", "a=a.csv@tekst=b"], "there is no setting 'tekst'; did you mean 'text'?"),
        (
            ["--train-file", "a.csv", "--train-file", "b.csv", "--validation-file", "dev.csv"],
            "as in --data a.csv=a.csv@validation_file=dev.csv.",
        ),
    ],
)
def test_wrong_data_sets_are_refused(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert sentence in failed(capsys, "compare", "--model", "m", "--method", "addrop", *words)
