"""Thirteen files in the shapes of public sets: from the file to predictions with what the sentences advise."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.cli_tools import save_encoder, sentences
from helpers.messy import SETS, Messy, Texts, walk

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("messy files")]

SETTINGS = ["--max-steps", "1", "--max-length", "32", "--no-baselines", "--head-start", "random", "--use-cpu"]
ROWS = 60
PREDICTED = {"CLINC150 (nested JSON)": ROWS - 20}  # of one part
FORM = {"clinc": ".jsonl", "nlu": ".jsonl", "emotions": ".tsv", "paws": ".tsv", "tickets": ".xlsx", "clear": ".xlsx"}
# What no sentence can know: which of two labels, or of two texts, is meant.
ASKED = {
    "support tickets (Excel)": 1,
    "SICK (TSV)": 1,
    "CLEAR (Excel, second sheet)": 1,
    "GermEval 2018 (no header)": 1,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder(tmp_path_factory.mktemp("model"), [text for text, _ in sentences(ROWS, seed=1)])


@pytest.mark.parametrize("messy", SETS, ids=lambda messy: messy.name.split()[0])
def test_every_messy_file_leads_to_predictions(messy: Messy, model: Path, tmp_path: Path) -> None:
    done = walk(messy, tmp_path, model, Texts(), ROWS, SETTINGS)
    assert done.predictions == PREDICTED.get(messy.name, ROWS), done
    assert done.asked <= ASKED.get(messy.name, 0), done
    assert done.form.endswith(FORM.get(messy.write.__name__, ".csv"))
