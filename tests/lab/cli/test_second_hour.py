"""What a newcomer meets in the second hour: repeated flags, several data sets, what comes next."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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
    ("words", "said"),
    [
        ("check a.csv", "reading the files"),
        ("predict run text", "loading the model"),
        ("evaluate run --file a.csv", "loading the model"),
    ],
)
def test_a_command_says_what_it_does_before_it_imports_libraries(
    words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "a.csv", sentences(8, seed=1))
    heavy = ("torch", "transformers", "datasets", "pandas", "scipy", "sklearn")
    done = fresh_python(_HEAVY.format(heavy=heavy), *words.split(), FORCE_COLOR="1")
    before, imports, _ = done.stderr.partition("imports ")
    assert imports
    assert said in before


def test_a_wrong_flag_is_refused_without_torch() -> None:
    done = fresh_python(_HEAVY.format(heavy=("torch", "transformers")), "check", "--train-file", "a.csv")
    assert "no such option: --train-file" in done.stderr
    assert "exit code 2" in done.stdout


def test_check_imports_neither_torch_nor_transformers(place: Path) -> None:
    """Of a CSV file; with --model, lengths are measured with its tokenizer."""
    done = fresh_python(_HEAVY.format(heavy=("torch", "transformers")), "check", str(place / "train.csv"))
    assert "exit code 0" in done.stdout
