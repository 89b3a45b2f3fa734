"""What the terminal shows: short and long help, completion, and results in a notebook."""

from __future__ import annotations

import inspect
import io
import os
import re
import subprocess
import sys
import typing
from pathlib import Path

import pytest
from rich.console import Console
from transformers import TrainerState, TrainingArguments

from attendrop import fine_tune
from attendrop.lab.cli.app import run
from attendrop.lab.cli.completion import stored_flags
from attendrop.lab.cli.console import progress_bar
from attendrop.lab.cli.terminal import ProgressBar
from attendrop.lab.records import FolderRecord, IntervalScore, SplitEvaluation
from attendrop.lab.runs import Result
from attendrop.lab.runs.settings import all_settings
from attendrop.lab.tasks.modalities import file_kinds


def flags_of(text: str) -> set[str]:
    """The flags that a help text lists, each at the beginning of its line."""
    return set(re.findall(r"^│ (?:\*  |   )?(--[a-z0-9-]+)", text, re.MULTILINE)) - {"--help", "--help-all"}


@pytest.mark.parametrize("command", ["train", "compare", "tune"])
def test_help_shows_the_flags_that_matter_and_help_all_shows_every_flag(
    command: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert run([command, "--help"]) == 0
    text = capfd.readouterr().out
    assert len(flags_of(text)) == 25
    assert {"--model", "--train-file", "--method", "--learning-rate", "--lora"} <= flags_of(text)
    assert "--help-all" in text
    assert run([command, "--help-all"]) == 0
    everything = flags_of(capfd.readouterr().out)
    assert len(everything) > 130
    assert flags_of(text) < everything
    assert {"--lora-targets", "--keep-checkpoints", "--adam-beta1"} <= everything
    assert run([command, "--learnin-rate", "1"]) == 2
    assert f"`attendrop {command} --help-all`" in capfd.readouterr().err


@pytest.mark.parametrize("command", ["check", "train", "predict", "evaluate", "compare", "tune"])
def test_help_cuts_no_flag_in_a_terminal_of_80_columns(
    command: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run([command, "--help"]) == 0
    assert "…" not in capfd.readouterr().out


@pytest.mark.parametrize("terminal", ["xterm", "dumb", None])
def test_a_bar_is_drawn_only_where_a_line_can_be_drawn_again(terminal: str | None) -> None:
    """In a dumb terminal, in a file and in a pipe there are lines and no escape codes."""
    text = io.StringIO()
    screen = Console(file=text, width=100, force_terminal=terminal is not None, _environ={"TERM": terminal or ""})
    with progress_bar("predicting", screen=screen) as update:
        update(1, 999)
        assert not text.getvalue()  # few examples need no bar
        for done in (1000, 2000, 3000):
            update(done, 3000)
    training, state = ProgressBar(screen), TrainerState(max_steps=2, global_step=1, epoch=1.0)
    training.on_train_begin(None, state, None)
    training.on_log(None, state, None, {"loss": 0.5})
    training.on_step_end(None, state, None)
    training.on_evaluate(TrainingArguments(), state, None, {"eval_loss": 0.25})
    training.on_train_end(None, state, None)
    shown = text.getvalue()
    if terminal == "xterm":
        assert re.search("predicting .*━.* 3000/3000 .*training .*━.* 1/2 ", shown, re.DOTALL)
        assert "epoch 1: dev loss 0.2500" in re.sub(r"\x1b\[[0-9;]*m", "", shown)
    else:
        assert shown == "epoch 1: dev loss 0.2500\n"


def completions(words: str) -> tuple[list[str], list[str]]:
    """What the shell gets for the last word, and the large libraries that were imported for it."""
    code = (
        "import sys; sys.argv[0] = 'attendrop'\n"
        "from attendrop.lab.cli import main\n"
        "try:\n    main([])\nfinally:\n"
        "    print(sorted({'torch', 'transformers', 'numpy'} & sys.modules.keys()), file=sys.stderr)"
    )
    shell = {"_ATTENDROP_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **shell}, capture_output=True, text=True)
    return done.stdout.split(), done.stderr.split("\n")


def test_the_shell_completes_commands_flags_and_methods_without_large_libraries() -> None:
    for words, expected in (
        ("attendrop tr", ["train"]),
        ("attendrop train --lora-", ["--lora-r", "--lora-alpha", "--lora-dropout", "--lora-targets"]),
        ("attendrop train --lora --method addr", ["addrop"]),
        ("attendrop compare --until", ["--until-decided", "--no-until-decided"]),
    ):
        suggested, imported = completions(words)
        assert set(suggested) <= set(expected), words
        assert expected[0] in suggested, words
        assert "[]" in imported


def test_the_stored_flags_are_those_of_the_commands() -> None:
    """If this fails: python -m attendrop.lab.cli.completion."""
    import attendrop.lab.cli.completion as completion

    assert completion._STORED.read_text(encoding="utf-8") == stored_flags()


def test_fine_tune_has_the_parameters_of_the_flags() -> None:
    parameters = inspect.signature(fine_tune).parameters
    named = [name for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY]
    assert len(named) > 20
    assert set(named) <= all_settings().keys()
    for name in named:
        assert f"        {name}: " in str(fine_tune.__doc__), name
    hints = typing.get_type_hints(fine_tune)
    assert set(typing.get_args(typing.get_args(hints["kind"])[0])) == set(file_kinds())


def test_a_result_is_short_in_a_shell_and_a_table_in_a_notebook(tmp_path: Path) -> None:
    result = Result(tmp_path / "a<b", {"validation": {"accuracy": 0.93751, "loss": 0.2}}, object(), True)
    assert repr(result) == f"Result({str(tmp_path / 'a<b')!r}: validation/accuracy 0.9375, validation/loss 0.2000)"
    with pytest.warns(FutureWarning, match="use Result.scores instead"):
        assert result.metrics == {"validation/accuracy": 0.93751, "validation/loss": 0.2}
    html = result._repr_html_()
    assert "<td>0.9375</td>" in html
    assert "<img" not in html
    assert "a&lt;b" in html
    assert "stopped" in repr(Result(tmp_path, {}, None, False))
    score = IntervalScore(0.93751, 0.9, 0.97, baseline=0.8)
    result.record = FolderRecord(
        task="t", seed=0, settings={}, task_definition={}, max_length=8,
        notes=["treating the task as classification", "warning: 2 rows of a<b repeat"],
        evaluation={"validation": SplitEvaluation(32, {"accuracy": score}, warnings=["one answer"])},
    )  # fmt: skip
    html = result._repr_html_()
    assert "<td>0.9375</td><td>0.900 to 0.970</td><td>0.8000</td>" in html
    assert "<li>2 rows of a&lt;b repeat</li><li>one answer</li>" in html
