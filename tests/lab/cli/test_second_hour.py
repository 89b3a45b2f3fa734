"""What a newcomer meets in the second hour: repeated flags, several data sets, what comes next."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from attendrop.lab.cli.app import run
from attendrop.lab.cli.tune import compare_command
from attendrop.lab.records.tuning import ChosenSetting
from attendrop.lab.runs.duration import spoken
from attendrop.lab.studies.analysis import analyse
from attendrop.lab.studies.design import make_design
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
        (
            "check a.csv --label x --label y",
            "'x' and 'y'; give it once, with commas between several columns of 0",
        ),
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


# ---- what is said ----------------------------------------------------------------------------------------------------


def test_shares_of_several_labels_are_those_of_the_examples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [(f"the film number {i}", "long,loud,odd" if i < 5 else "long,loud") for i in range(20)]
    write_csv(tmp_path / "a.csv", rows)
    assert run(["check", str(tmp_path / "a.csv"), "--kind", "multilabel", "--label-separator", ","]) == 0
    shown = capsys.readouterr().out
    assert "5 (25%)" in shown
    assert shown.count("20 (100%)") == 2


# ---- the first second ------------------------------------------------------------------------------------------------

_HEAVY = """
import os, sys, traceback

class Heavy:
    def find_spec(self, name, path=None, target=None):
        is_looked_up = any("importlib.util" in of.filename for of in traceback.extract_stack())
        if name in {heavy} and not is_looked_up:
            print("imports", name, file=sys.stderr, flush=True)
            os._exit(9)

sys.meta_path.insert(0, Heavy())
from attendrop.lab.cli.app import run
print("exit code", run(sys.argv[1:]))
"""


def fresh_python(program: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in a process that has imported nothing."""
    environment = {**os.environ, **variables}
    return subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, env=environment)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("check a.csv", "reading the files"),
        ("predict run text", "loading the model"),
        ("evaluate run --file a.csv", "loading the model"),
    ],
)
def test_a_command_says_what_it_does_before_it_imports_libraries(
    words: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "a.csv", sentences(8, seed=1))
    heavy = ("torch", "transformers", "datasets", "pandas", "scipy", "sklearn")
    done = fresh_python(_HEAVY.format(heavy=heavy), *words.split(), FORCE_COLOR="1")
    before, imports, _ = done.stderr.partition("imports ")
    assert imports
    assert sentence in before


def test_a_wrong_flag_is_refused_without_torch() -> None:
    done = fresh_python(_HEAVY.format(heavy=("torch", "transformers")), "check", "--train-file", "a.csv")
    assert "no such option: --train-file" in done.stderr
    assert "exit code 2" in done.stdout


def test_check_imports_neither_torch_nor_transformers(place: Path) -> None:
    """Of a CSV file; with --model, lengths are measured with its tokenizer."""
    done = fresh_python(_HEAVY.format(heavy=("torch", "transformers")), "check", str(place / "train.csv"))
    assert "exit code 0" in done.stdout


# ---- what comes next -------------------------------------------------------------------------------------------------


def test_check_ends_with_the_command_that_trains(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--text", "review", "--label", "verdict"]
    assert run(["check", str(place / "films.csv"), *flags, "--model", str(place / "model")]) == 0
    (command,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("next: ")]
    words = shlex.split(command.removeprefix("next: attendrop "))
    assert words == ["train", "--model", str(place / "model"), "--train-file", str(place / "films.csv"), *flags]
    assert run(["check", str(place / "films.csv")]) == 0
    assert "next: attendrop train --model MODEL --train-file" in capsys.readouterr().out


def test_compare_shows_the_data_and_what_was_chosen(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [*sentences(40, seed=3), ("the same text", "good"), ("the same text", "bad")]
    write_csv(tmp_path / "a.csv", rows)
    words = ["compare", "--model", place / "model", "--train-file", tmp_path / "a.csv", "--method", "layerdrop"]
    words += ["--use-cpu", "--workers", "0", "--max-steps", "1", "--seeds", "1", "--head-start", "random"]
    assert run([*map(str, words), "--output-dir", str(tmp_path / "study")]) == 0
    before, _, after = capsys.readouterr().out.partition("layerdrop seed 0")
    shown = " ".join(before.split())
    assert "a.csv (classification) part examples train 38 validation 4" in shown
    assert "note: using column 'label' as the label" in shown
    assert "warning: 1 text of" in shown
    assert "(classification)" not in after


def test_chosen_settings_become_a_comparison() -> None:
    shared = {"model": "m", "train_file": "a.csv", "num_train_epochs": 3}
    chosen = {
        "plain": ChosenSetting(trial=1, settings={**shared, "learning_rate": 2e-5, "method": []}),
        "addrop": ChosenSetting(trial=2, settings={**shared, "learning_rate": 1e-4, "method": ["addrop:p=0.5,q=0.3"]}),
    }
    words = shlex.split(compare_command(chosen, shared))
    assert words[:2] == ["attendrop", "compare"]
    methods = [words[place + 1] for place, word in enumerate(words) if word == "--method"]
    assert methods == ["plain@learning_rate=2e-05", "addrop:p=0.5,q=0.3@learning_rate=0.0001"]
    assert words[words.index("--baseline") + 1] == methods[0]
    design = make_design(shared, methods, baseline=methods[0])
    assert design.methods == tuple(methods)


def test_duration_is_noted_before_the_first_step_and_changes_nothing(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = []
    for name in ("with", "without"):
        if name == "without":
            monkeypatch.setattr("attendrop.lab.runs.run.duration_of", lambda *of: None)
        words = ["train", "--model", place / "model", "--train-file", place / "train.csv", "--use-cpu", "--max-steps"]
        words += [4, "--logging-steps", 1, "--output-dir", tmp_path / name]
        assert run(list(map(str, words))) == 0
        before, _, _ = capsys.readouterr().out.partition("epoch 1")
        assert (f"training will take about {'1 second' if name == 'with' else 'x'}" in before) == (name == "with")
        history = json.loads((tmp_path / name / "record.json").read_text())["history"]
        losses.append([entry["loss"] for entry in history if "loss" in entry])
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "1 second"),
        (42, "40 seconds"),
        (100, "2 minutes"),
        (1000, "15 minutes"),
        (1e4, "3 hours"),
        (1e6, "10 days"),
    ],
)
def test_durations_have_words(seconds: float, words: str) -> None:
    assert spoken(seconds) == words
