"""The study of the papers' tables and figures: its plan, sittings that go on elsewhere, and the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attendrop.lab.reproduction.entry import KEEP
from attendrop.lab.reproduction.registry import ENTRIES
from attendrop.lab.runs import make_config
from helpers.cli_tools import save_encoder, sentences
from studies.reproduction import page, plan, run
from studies.reproduction.plan import CPU, GPU, PARTS, Part, sittings

pytestmark = pytest.mark.xdist_group("study_worker")
# What the issue of the papers asks to be measured, at least.
ASKED = (
    *(f"addrop/table-{n}" for n in (2, 3, 5, 7, 8)), *(f"addrop/figure-{n}" for n in (2, 4, 6, 7)),
    *(f"attendout/table-{n}" for n in (1, 3, 4)), "attendout/figure-3", "attendout-v1/table-1",
)  # fmt: skip
SMALL = {"max_train_samples": 16, "max_eval_samples": 16, "num_train_epochs": 2, "max_length": 16}


@pytest.mark.parametrize("part", [*PARTS[GPU], *PARTS[CPU]], ids=lambda part: part.name)
def test_parts_are_runs_with_valid_settings(part: Part) -> None:
    entry = ENTRIES[part.entry]
    assert set(part.tasks) <= set(entry.tasks)
    assert {spec.protocol for spec in part.runs()} <= set(KEEP)
    make_config(part.runs()[-1].spec.settings)
    assert part.minutes > 0


def test_plan_has_every_entry_that_is_asked_for_and_each_part_fits_a_sitting() -> None:
    assert {part.entry for part in PARTS[GPU] if part.model == "minilm"} >= set(ASKED)
    planned = sittings(28)
    assert [part for parts in planned for part in parts] == list(PARTS[GPU])
    assert all(len(parts) == 1 or sum(part.minutes for part in parts) <= 28 for parts in planned)
    names = [part.name for of in PARTS.values() for part in of]
    assert len(set(names)) == len(names)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two tiny parts, a tiny model and tiny data."""
    rows = sentences(60, seed=1)
    texts, labels = [text for text, _ in rows], [int(label == "good") for _, label in rows]
    columns: dict[str, Any] = {"sentence1": texts, "sentence2": texts[::-1], "label": labels}
    folder = tmp_path / "data" / "glue" / "rte"
    folder.mkdir(parents=True)
    for split in ("train", "validation"):
        pq.write_table(pa.table(columns), folder / f"{split}.parquet")
    save_encoder(tmp_path / "model", texts)
    parts = (
        Part("addrop/table-5", "minilm", ("glue/rte",), "honest", seeds=2, settings=SMALL, device=CPU),
        Part(
            "attendout-v1/table-1", "minilm", ("glue/rte",), seeds=1, settings={**SMALL, "logging_steps": 1}, device=CPU
        ),
    )
    monkeypatch.setitem(PARTS, CPU, parts)
    return tmp_path


def sitting(place: Path, work: str, minutes: float) -> int:
    words = ["cpu", "--data", f"{place}/data", "--minilm", f"{place}/model", "--workers", "0"]
    words += ["--minutes", str(minutes), "--records", f"{place}/records.tar.gz", "--work", f"{place}/{work}"]
    return run.main(words)


def test_a_sitting_that_is_stopped_goes_on_and_its_outcomes_are_on_the_page(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = run.Clock(0.0)
    with pytest.raises(KeyboardInterrupt):
        clock.ended(None, None)  # type: ignore[arg-type]
    assert sitting(place, "work", 0.0005) == 0  # one run ends, and the minutes are over
    ids = {path.name for path in place.glob("work/studies/*/runs/*.json")}
    assert len(ids) == 1
    stamp = next(place.glob("work/studies/*/runs/*.json")).read_text(encoding="utf-8")
    assert "continued next time" in capsys.readouterr().out
    (place / "work").rename(place / "elsewhere")  # another machine, where the work has the same place
    assert sitting(place, "work", 9) == 0
    runs = {path.name: path for path in place.glob("work/studies/addrop-table-5-minilm-cpu/runs/*.json")}
    assert len(runs) == 4
    assert runs[ids.pop()].read_text(encoding="utf-8") == stamp  # it was not trained again
    results, images = place / "results", place / "images"
    names = page.store(place / "records.tar.gz", results, images)
    assert names == ["addrop-table-5-minilm-cpu", "attendout-v1-table-1-minilm-cpu"]
    assert not any(str(place) in path.read_text(encoding="utf-8") for path in results.iterdir())
    text = page.entries(results)
    assert text.count("\n### ") == len(ENTRIES)
    assert text.count("Not measured yet") == len(ENTRIES) - 2
    assert "attendrop reproduce addrop/table-5 --model MINILM --data DATA --seeds 2 --task glue/rte" in text
    (line,) = [line for line in page.state(results).splitlines() if "`addrop/table-5`" in line]
    assert line.endswith("1 cannot tell (subset, CPU) | not measured yet |")


def test_a_part_without_its_data_is_one_sentence_and_the_others_are_run(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = Part("addrop/table-5", "minilm", ("glue/cola",), settings=SMALL, device=CPU)
    monkeypatch.setitem(PARTS, CPU, (missing,))
    assert sitting(place, "work", 9) == 1
    assert "has no folder glue/cola or cola for glue/cola; it needs" in capsys.readouterr().out


def test_records_of_models_that_were_kept_elsewhere_are_run_again(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "models").mkdir()
    for name in ("measured", "unmeasured"):
        (tmp_path / "runs" / f"{name}.json").write_text("{}", encoding="utf-8")
    (tmp_path / "models" / "measured-pruning.json").write_text("[]", encoding="utf-8")
    run.remove_unmeasured(tmp_path)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["measured.json"]


def test_the_better_device_is_shown_where_both_have_an_outcome(tmp_path: Path) -> None:
    assert page.measured(ENTRIES["addrop/table-5"], "minilm", tmp_path) is None
    parts = [part for part in (*PARTS[GPU], *PARTS[CPU]) if (part.entry, part.model) == ("addrop/table-5", "minilm")]
    assert [part.device for part in parts] == [GPU, CPU]
    assert plan.MODELS["minilm"][3] == "all-MiniLM-L6-v2"
