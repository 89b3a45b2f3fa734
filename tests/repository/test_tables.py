"""The tables of the documentation agree with the results, and are made as documented."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import trainer_steps
from docs.tables import pages, timings
from docs.tables.examples import lines
from docs.tables.markdown import table
from docs.tables.results import last_rows


def test_tables_in_the_documentation_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert pages.main(["--check"]) == 0, capsys.readouterr().out


def test_table_of_examples_compares_runs_of_the_same_seed() -> None:
    setting = {"example": "a", "data": "mrpc", "train": "9", "test": "5", "epochs": "1", "score": "accuracy"}
    values = {
        ("0", "plain"): "0.5",
        ("0", "ema"): "0.75",
        ("1", "plain"): "0.7",
        ("1", "ema"): "0.65",
        ("2", "plain"): "0",
    }
    rows = [{**setting, "seed": s, "method": m, "value": v, "seconds": "2.2"} for (s, m), v in values.items()]
    ((script, data, method, _, plain, regularised, difference, seeds, seconds),) = lines(rows)
    assert (script, method, plain, regularised, seeds, seconds) == ("a.py", "`ema`", "0.6000", "0.7000", "2", "2 / 2")
    assert data == "mrpc: 9 examples, 1 epoch; at most 5 test examples"
    assert difference == "+0.1000 (-0.0500 to +0.2500)"


def test_step_tables_have_the_rows_of_their_part_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ["tiny,2,8,b,1", "tiny,2,8,dropped,2", "tiny,2,8,a,3", "tiny,4,8,a,4", "tiny,2,8,b,5"]
    (tmp_path / "a.csv").write_text("\n".join(["model,batch,length,provider,train ms", *rows]), encoding="utf-8")
    monkeypatch.setattr(timings, "RESULTS", tmp_path)
    monkeypatch.setitem(trainer_steps.PARTS, "sizes", ("a.csv", 2, [("tiny", "2x8", ["a", "b", "new"])]))
    assert [(row["provider"], row["train ms"]) for row in timings._steps("sizes")] == [("a", "3"), ("b", "5")]


def test_last_row_counts_when_a_setting_was_measured_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_text("provider,threads,ms\nx,2,1\ny,2,2\nx,16,3\nx,2,4\n", encoding="utf-8")
    assert [row["ms"] for row in last_rows(tmp_path / "a.csv", ("provider",), threads="2")] == ["4", "2"]
    monkeypatch.setitem(pages.TABLES, "one", lambda: table(["a"], [["1"]]))
    text = "before\n<!-- table: one -->\nold\n<!-- end of table -->\nafter\n"
    assert pages.renewed(text) == "before\n<!-- table: one -->\n| a |\n| --- |\n| 1 |\n<!-- end of table -->\nafter\n"
