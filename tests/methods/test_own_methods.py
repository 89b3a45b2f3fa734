"""Methods of the user's own files and of installed packages, in all commands, in workers and in checkpoints."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import sys
from pathlib import Path

import pytest

from attendrop import load_regularizers, parse_method
from attendrop.errors import UserError
from attendrop.lab.cli.app import run
from attendrop.lab.runs import read_yaml
from attendrop.lab.studies.analysis import analyse
from attendrop.lab.studies.design import make_design, parse_contender
from attendrop.lab.studies.spec import RunSpec
from attendrop.lab.studies.worker import Worker
from attendrop.methods import _own, short_name, split_method
from helpers.cli_tools import save_encoder, sentences, write_csv

pytestmark = pytest.mark.xdist_group("own methods")

METHOD = '''"""Logit normalisation: the norm of the logits is kept small."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from attendrop import MicroBatch, Regularizer, hyper


@dataclass
class LogitNorm(Regularizer):
    """Adds the squared norm of the logits.

    Args:
        tau: factor of the norm
    """

    name: ClassVar[str] = "logit_norm"

    tau: float = hyper(0.01, low=0, search="log:0.001..1")

    def penalty(self, outputs: Any, batch: MicroBatch) -> Any:
        return self.tau * outputs.logits.pow(2).mean()
'''


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own methods")
    rows = sentences(40, seed=1)
    save_encoder(folder / "model", [text for text, _ in rows])
    write_csv(folder / "train.csv", rows)
    return folder


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin as a new process, which has read no file."""
    for name in ("_sources", "_modules", "_classes"):
        monkeypatch.setattr(_own, name, {})


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "my_method.py"
    path.write_text(METHOD)
    return path


def settings(place: Path, *words: object) -> list[str]:
    usual = ("--model", place / "model", "--train-file", place / "train.csv", "--use-cpu", "--head-start", "random")
    return [str(word) for word in (*usual, "--max-steps", 2, *words)]


def test_a_reference_is_read_as_file_class_and_fields() -> None:
    assert split_method("./my_method.py:LogitNorm:tau=0.04") == ("./my_method.py:LogitNorm", "tau=0.04")
    assert split_method("addrop:p=0.3,layers=0:4") == ("addrop", "p=0.3,layers=0:4")
    assert split_method("supertickets:tickets=a.py") == ("supertickets", "tickets=a.py")
    assert short_name("../x/my_method.py:LogitNorm:tau=1") == "LogitNorm"


def test_methods_of_files_and_of_the_catalogue_are_joined(file: Path) -> None:
    contender = parse_contender("addrop:p=1e-1+./my_method.py:LogitNorm:tau=0.04+/" + str(file)[1:] + ":LogitNorm")
    assert [split_method(method)[0] for method in contender.methods] == [
        "addrop", "./my_method.py:LogitNorm", f"{file}:LogitNorm"
    ]  # fmt: skip


def test_train_runs_the_method_records_its_checksum_and_resumes_only_with_it(
    place: Path, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["train", *settings(place, "--method", "./my_method.py:LogitNorm:tau=0.04", "--output-dir", out)]
    words += ["--eval-strategy", "steps", "--eval-steps", "1", "--keep-checkpoints"]
    assert run(words) == 0
    code = f"my_method.py:LogitNorm, sha256 {hashlib.sha256(METHOD.encode()).hexdigest()}"
    entry = {"method": "logit_norm", "code": code, "tau": 0.04}
    assert json.loads((out / "record.json").read_text())["regularizers"] == [entry]
    assert f"# method logit_norm: {code}" in (out / "run.yaml").read_text()
    assert read_yaml(out / "run.yaml")["method"] == [f"{file}:LogitNorm:tau=0.04"]  # can be repeated from any folder
    assert [dataclasses.asdict(method) for method in load_regularizers(out)] == [{"tau": 0.04}]

    for name in ("_sources", "_modules", "_classes"):
        getattr(_own, name).clear()
    with pytest.raises(ValueError, match="is not loaded; load the same file first"):
        load_regularizers(out)  # no file is run because a folder names it
    (out / "record.json").unlink()
    file.write_text(METHOD + "\n# changed\n")
    capsys.readouterr()
    assert run([*words, "--resume"]) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert "logit_norm.code is 'my_method.py:LogitNorm, sha256 " in shown
    assert f"was '{code}'" in shown


def test_a_study_gives_the_code_to_its_workers_and_continues_only_with_it(
    place: Path, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = tmp_path / "study"
    words = ["compare", *settings(place, "--output-dir", study, "--seeds", 1)]
    assert run([*words, "--workers", "0", "--method", "layerdrop"]) == 0
    words += ["--method", "layerdrop", "--method", "./my_method.py:LogitNorm:tau=0.5"]
    assert run([*words, "--workers", "0"]) == 0  # a method may be added
    mine = next(of for of in analyse(study).methods if "LogitNorm" in of.name)
    assert mine.regularizers[0]["code"].startswith("my_method.py:LogitNorm, sha256 ")
    assert [*json.loads((study / "study.json").read_text())["method_files"]] == ["my_method.py"]

    for name in ("_sources", "_modules", "_classes"):
        getattr(_own, name).clear()
    file.write_text("open('ran', 'w').close()\n")
    assert run(["report", str(study)]) == 0
    assert not os.path.exists("ran")  # no file is run because a study names it
    file.write_text(METHOD.replace("mean()", "sum()"))
    capsys.readouterr()
    assert run([*words, "--workers", "0"]) == 2
    assert "method_files.my_method.py is 'sha256 " in capsys.readouterr().err


def test_a_worker_needs_no_file(place: Path, file: Path) -> None:
    shared = {"model": str(place / "model"), "train_file": str(place / "train.csv"), "max_steps": 2}
    design = make_design({**shared, "head_start": "random"}, ["plain", "./my_method.py:LogitNorm"])
    first, second = design.runs(design.cells[0], 0)
    assert first.code == {}
    sent = json.loads(json.dumps(dataclasses.asdict(second)))
    assert second.id != dataclasses.replace(second, code={"./my_method.py": "other"}).id
    file.unlink()
    _own._sources.clear()
    record = Worker("cpu").run(RunSpec(**sent))
    assert record.status == "finished"
    assert record.regularizers[0]["tau"] == 0.01


def test_tune_searches_its_fields(file: Path) -> None:
    from attendrop.lab.studies.tune_design import make_tune_config

    method = "./my_method.py:LogitNorm"
    shared = {"model": "m", "train_file": "a.csv", "method": [method]}
    config = make_tune_config(shared, trials=2)
    assert set(config.spaces[method]) == {"learning_rate", "logit_norm.tau"}
    spec = config.trial_specs(method, {"logit_norm.tau": 0.25}, 0)[0]
    assert spec.settings["method"] == ["./my_method.py:LogitNorm:tau=0.25"]
    assert spec.code == {"./my_method.py": METHOD}
    config = make_tune_config(shared, ["logit_norm.tau=0.1,0.2"], trials=2)
    assert "logit_norm.tau=0.1,0.2" in config.configuration().spaces[-1]


def test_the_fields_of_a_file_are_listed(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["methods", "./my_method.py"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Adds the squared norm of the logits." in shown
    assert "factor of the norm" in shown


@pytest.mark.parametrize(
    ("content", "reference", "sentence"),
    [
        (None, "./nope.py:X", "method is of the file './nope.py', which does not exist; give a Python file"),
        (
            "x = 1\nimport nothing_like_this\n",
            "m.py:X",
            "the method file 'm.py', line 2: ModuleNotFoundError: No mod",
        ),
        ("x = 1\n\nx = = 2\n", "m.py:X", "the method file 'm.py', line 3: SyntaxError: invalid syntax."),
        ("raise SystemExit(3)\n", "m.py:X", "the method file 'm.py', line 1: SystemExit: 3."),
        ("def f():\n    1 / 0\n\nf()\n", "m.py:X", "'m.py', line 2: ZeroDivisionError: division by zero."),
        ("x = 1\n", "m.py:X", "'m.py' has no subclass of attendrop.Regularizer, which every method is."),
        (METHOD, "m.py:LogitNrm", "it must name a class of the file, such as m.py:LogitNorm."),
        (METHOD, "m.py", "it must name a class of the file, such as m.py:LogitNorm."),
        (METHOD, "m.py:LogitNorm:tua=1", "'m.py:LogitNorm' has no field 'tua'; its fields are tau."),
        (METHOD.replace("@dataclass\n", ""), "m.py:LogitNorm", "LogitNorm is no dataclass; write @dataclass above it."),
        (METHOD.replace('"logit_norm"', '""'), "m.py:LogitNorm", "the name of LogitNorm is ''; it must be lower-case"),
        (METHOD.replace('"logit_norm"', '"addrop"'), "m.py:LogitNorm", "its name is 'addrop', which is a method of"),
        (METHOD.replace("tau:", "code:"), "m.py:LogitNorm", "has a field 'code', which records use; rename it."),
    ],
)
def test_wrong_file_is_refused_in_one_line(
    content: str | None, reference: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path("m.py").write_text(content)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        parse_method(reference)
    assert run(["compare", "--model", "m", "--task", "glue/rte", "--method", reference]) == 2
    shown = capsys.readouterr().err
    assert sentence in " ".join(shown.split())
    assert "Traceback" not in shown


def test_an_error_inside_the_method_names_its_line(
    place: Path, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(METHOD.replace("outputs.logits", "outputs.nothing"))
    words = settings(place, "--method", "./my_method.py:LogitNorm", "--output-dir", tmp_path / "out")
    assert run(["train", *words]) == 2
    line = METHOD.splitlines().index(next(line for line in METHOD.splitlines() if "outputs.logits" in line)) + 1
    assert f"your method failed in './my_method.py', line {line}: AttributeError" in capsys.readouterr().err


def test_no_file_is_run_because_a_saved_configuration_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("evil.py").write_text("open('ran', 'w').close()\n" + METHOD)
    for entry in ({"method": "./evil.py:LogitNorm"}, {"method": "x", "code": "evil.py:LogitNorm, sha256 0"}):
        (tmp_path / "regularizers.json").write_text(json.dumps({"regularizers": [entry]}))
        with pytest.raises(ValueError, match="which is not loaded"):
            load_regularizers(tmp_path)
    assert not os.path.exists("ran")


def test_an_installed_package_adds_a_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "normed_logits.py").write_text(METHOD)
    (tmp_path / "broken_logits.py").write_text("1 / 0\n")
    info = tmp_path / "normed_logits-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: normed-logits\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(
        "[attendrop.methods]\nlogit_norm = normed_logits:LogitNorm\nbroken = broken_logits:X\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "normed_logits", raising=False)
    code = parse_method("logit_norm:tau=0.5").to_dict()["code"]
    assert code == f"normed-logits 1.2, sha256 {hashlib.sha256(METHOD.encode()).hexdigest()}"
    assert run(["methods"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "logit_norm Adds the squared norm of the logits." in shown
    assert "cannot be imported: ZeroDivisionError" in shown
    with pytest.raises(UserError, match="did you mean 'logit_norm'"):
        parse_method("logit-nrm")
