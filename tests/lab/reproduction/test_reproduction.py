"""The tables and figures of the papers: the registry, verdicts, and whole entries on a tiny model."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attendrop.errors import UserError
from attendrop.lab.cli.reproduce import print_entries
from attendrop.lab.reproduction.entry import DRAWINGS, KEEP, MEASURES, PAPERS, Claim, Entry, Number, Row
from attendrop.lab.reproduction.figures import draw, max_abs_scaled
from attendrop.lab.reproduction.measuring import Measured
from attendrop.lab.reproduction.outcome import AGREE, CANNOT_TELL, DIFFER, Outcome, cells_of, verdicts_of
from attendrop.lab.reproduction.page import markdown_of
from attendrop.lab.reproduction.planning import Setup, planned_runs
from attendrop.lab.reproduction.registry import ENTRIES, find_entry
from attendrop.lab.reproduction.run import make_setup, reproduce
from attendrop.lab.runs import make_config
from attendrop.lab.studies.driver import Watcher
from attendrop.lab.studies.executors import make_executor
from helpers.cli_tools import save_encoder, save_translator, sentences

DATA = Path(os.environ.get("ATTENDROP_TEST_DATA", Path(__file__).parents[4] / "shared" / "data"))
MINILM = Path(os.environ.get("ATTENDROP_TEST_MINILM", Path(__file__).parents[5] / "weights" / "minilm"))

pytestmark = pytest.mark.xdist_group("reproduction")


# ---- the registry ------------------------------------------------------------------------------------------------


def test_every_table_and_figure_has_an_entry() -> None:
    names = [f"addrop/table-{n}" for n in range(1, 10)]
    names += [f"addrop/figure-{n}" for n in (2, *range(4, 11))]
    names += [f"attendout/table-{n}" for n in range(1, 5)]
    names += ["attendout/figure-3", "attendout/figure-4", "attendout/resource-usage"]
    names += ["attendout-v1/table-1", "attendout-v1/table-2"]
    assert list(ENTRIES) == names


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=lambda entry: entry.name)
@pytest.mark.parametrize("scale", ["paper", "small"])
def test_all_runs_of_an_entry_have_valid_settings(entry: Entry, scale: str) -> None:
    assert entry.paper in PAPERS
    assert entry.measure in MEASURES
    assert entry.drawing in DRAWINGS
    assert set(entry.protocols) <= set(KEEP)
    setup = Setup(entry, "model", "bert", 2, 32, None, scale, entry.tasks_of(scale), entry.protocols, 1, {})
    runs = planned_runs(setup)
    for run in list({(run.spec.method, run.task): run for run in runs}.values())[-20:]:  # of a grid not every point
        make_config(run.spec.settings)
    each = sum(
        len(setup.points) if "{point}" in row.method else setup.layers if "{layer}" in row.method else 1
        for row in entry.rows
    )
    assert len(runs) == each * len(setup.tasks) * len(setup.sizes) * len(setup.protocols)
    assert len({run.spec.id for run in runs}) == len(runs)
    for claim in entry.claims:
        assert {claim.row, claim.versus or claim.row} <= {row.label for row in entry.rows}


def test_settings_of_the_paper_are_those_of_its_table_11() -> None:
    entry = find_entry("ADDROP/Table 2")
    setup = Setup(entry, "m", "roberta", 12, 768, None, "paper", ("glue/rte",), ("paper",), 1, {"weight_decay": 0.5})
    run = next(run for run in planned_runs(setup) if run.row == "AD-DROP")
    assert run.spec.settings["method"] == ["addrop:p=0.7,q=0.1,layers=all,end_on=either"]
    assert run.spec.settings["learning_rate"] == 1e-5
    assert run.spec.settings["patience"] == 5
    assert run.spec.settings["weight_decay"] == 0.5  # the user's
    assert run.spec.keep == "dev"


def test_an_unknown_entry_is_answered_with_the_list() -> None:
    with pytest.raises(UserError, match=r"did you mean addrop/figure-6.*addrop/table-1, .*attendout-v1/table-2"):
        find_entry("addrop/figure-66")


# ---- what came out -----------------------------------------------------------------------------------------------


def measured(
    row: str, *values: float, column: str = "rte", x: float | None = None, step: float = 0.0
) -> list[Measured]:
    return [Measured(row, column, x, f"seed {n}", "paper", value, step) for n, value in enumerate(values)]


def test_differences_are_paired_by_unit() -> None:
    plain, other = measured("plain", 0.5, 0.7), measured("other", 0.6, 0.8)
    cell = cells_of([*plain, *reversed(other)], "plain")[1]
    assert cell.mean == pytest.approx(0.7)
    assert cell.difference == pytest.approx(0.1)
    assert cell.difference_interval == pytest.approx((0.1, 0.1), abs=1e-9)
    assert cell.interval is not None
    assert cell.interval[1] - cell.interval[0] == pytest.approx(2 * 12.7062047 * 0.1, rel=1e-6)  # t with one degree


def test_equal_differences_of_scores_that_move_in_steps_are_not_known_exactly() -> None:
    """An accuracy on 32 examples: that both seeds gain one of them says little."""
    cells = cells_of(
        [*measured("plain", 0.5, 0.5, step=1 / 32), *measured("ours", *[0.53125] * 2, step=1 / 32)], "plain"
    )
    assert cells[1].difference_interval is not None
    low, high = cells[1].difference_interval
    assert low < 0 < high
    assert cells_of(measured("plain", 1.0, 1.0), "plain")[0].interval is None


def entry_with(**fields: Any) -> Entry:
    rows = (Row("plain"), Row("ours", "addrop"))
    return Entry(paper="addrop", item="table-1", title="", rows=rows, tasks=("glue/rte",), **fields)


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ((0.61, 0.73, 0.65), AGREE),
        ((0.41, 0.53, 0.45), DIFFER),
        ((0.41, 0.72, 0.53), CANNOT_TELL),
        ((0.9,), CANNOT_TELL),
    ],
)
def test_claim_agrees_if_the_interval_of_the_difference_has_its_sign(values: tuple[float, ...], verdict: str) -> None:
    entry = entry_with(claims=(Claim("better", "abstract", "ours", "plain"),))
    base = (0.51, 0.62, 0.53)[: len(values)]
    cells = cells_of([*measured("plain", *base), *measured("ours", *values)], "plain")
    assert [v.verdict for v in verdicts_of(entry, cells, "", "paper")] == [verdict]


def test_claim_compares_the_rows_that_it_names() -> None:
    claim = Claim("attribution is better than chance", "section 4", "ours", "random")
    entry = replace(entry_with(claims=(claim,)), rows=(Row("plain"), Row("ours", "addrop"), Row("random", "addrop")))
    rows = {"plain": (0.3, 0.31, 0.29), "ours": (0.5, 0.52, 0.51), "random": (0.6, 0.63, 0.61)}
    cells = cells_of([one for row, values in rows.items() for one in measured(row, *values)], "plain")
    (verdict,) = verdicts_of(entry, cells, "", "paper")
    assert (verdict.verdict, verdict.ours[:7]) == (DIFFER, "-0.1033")
    assert [v.verdict for v in verdicts_of(entry, cells, "", "small")] == [CANNOT_TELL]


@pytest.mark.parametrize(("sign", "verdict"), [(-1, AGREE), (1, DIFFER)])
def test_claim_about_stability_compares_distances_from_the_median(sign: int, verdict: str) -> None:
    claim = Claim("steadier", "section 1", "ours", "plain", sign=sign, of_spread=True)
    wide, narrow = (0.2, 0.4, 0.5, 0.6, 0.8), (0.49, 0.5, 0.5, 0.5, 0.52)
    cells = cells_of([*measured("plain", *wide), *measured("ours", *narrow)], "plain")
    (one,) = verdicts_of(entry_with(claims=(claim,)), cells, "", "paper")
    literal = [abs(b - 0.5) - abs(a - 0.5) for a, b in zip(wide, narrow, strict=True)]
    assert one.ours.startswith(f"distance from the median {sum(literal) / 5:+.4f} [")
    assert one.verdict == (verdict if max(literal) < 0 else CANNOT_TELL)


@pytest.mark.parametrize(
    ("values", "verdict"),
    [((2.0, 2.01, 1.99), AGREE), ((3.0, 3.01, 2.99), DIFFER), ((2.0, 3.0, 2.4), CANNOT_TELL), ((2.0,), CANNOT_TELL)],
)
def test_claim_of_a_range_needs_the_whole_interval(values: tuple[float, ...], verdict: str) -> None:
    claim = Claim("about twice", "usage", "ours", within=(1.5, 2.5), column="time", at="first")
    cells = cells_of(
        [
            *measured("ours", *values, column="time, rte", x=1.0),
            *measured("ours", 9, 9, 9, column="time, rte", x=2.0),
            *measured("ours", 9, 9, 9, column="timeless", x=1.0),
        ],
        "plain",
    )
    assert [v.verdict for v in verdicts_of(entry_with(claims=(claim,)), cells, "", "paper")] == [verdict]


@pytest.mark.parametrize(
    ("model", "scale", "values", "verdict"),
    [
        ("roberta-base", "paper", (0.957, 0.958, 0.959), AGREE),
        ("roberta-base", "paper", (0.90, 0.91, 0.90), DIFFER),
        ("roberta-base", "paper", (0.90, 0.99, 0.95), CANNOT_TELL),
        ("roberta-base", "small", (0.90, 0.91, 0.90), CANNOT_TELL),
        ("", "paper", (0.90, 0.91, 0.90), CANNOT_TELL),  # another model need not have the paper's number
    ],
)
def test_number_is_compared_on_the_model_of_the_paper_only(
    model: str, scale: str, values: tuple[float, ...], verdict: str
) -> None:
    entry = entry_with(numbers=(Number("ours", "glue/rte", 0.958, "Table 1", "roberta-base"),))
    cells = cells_of(measured("ours", *values), "plain")
    assert [v.verdict for v in verdicts_of(entry, cells, model, scale)] == [verdict]


def test_colours_are_those_of_maxabsscaler() -> None:
    sklearn = pytest.importorskip("sklearn.preprocessing")
    values = [0.2, -0.5, 0.1, 0.0]
    expected = sklearn.MaxAbsScaler().fit_transform([[value] for value in values]).ravel()
    assert max_abs_scaled(values) == pytest.approx(expected)
    assert max_abs_scaled([0.0, 0.0]) == [0.0, 0.0]


# ---- pictures and the list -----------------------------------------------------------------------------------------


def outcome_of(name: str, measured: list[Measured]) -> Outcome:
    entry, cells = find_entry(name), cells_of(measured, "fine-tuning")
    return Outcome(
        entry=name, heading=entry.heading, title=entry.title, is_reading=entry.is_reading, setting="", model="tiny",
        papers_model="", scale="small", tasks=["glue/rte"], examples={}, seeds=1, cells=cells,
    )  # fmt: skip


@pytest.mark.parametrize("name", [name for name, entry in ENTRIES.items() if entry.drawing != "none"])
def test_title_is_inside_the_picture_and_axes_are_named(name: str) -> None:
    agg = pytest.importorskip("matplotlib.backends.backend_agg")
    entry = find_entry(name)
    rows = [one for row in entry.rows for x in (1.0, 2.0) for one in measured(row.label, 0.5, 0.75, column="rte", x=x)]
    figure = draw(outcome_of(name, rows), entry.drawing)
    agg.FigureCanvasAgg(figure).draw()
    title = figure._suptitle.get_window_extent()
    assert title.x0 >= 0
    assert title.x1 <= figure.bbox.width
    named = [axes.get_xlabel() for axes in figure.axes]
    assert entry.drawing == "boxes" or any(entry.axis in label for label in named if label)


def test_map_has_fine_tuning_first_and_a_panel_for_each_protocol() -> None:
    rows = [
        *measured("fine-tuning", 0.4), *measured("one layer", 0.8, x=0.0), *measured("one layer", 0.6, x=1.0),
        Measured("fine-tuning", "rte", None, "seed 0", "honest", 0.2),
        Measured("one layer", "rte", 0.0, "seed 0", "honest", 0.1),
    ]  # fmt: skip
    figure = draw(outcome_of("addrop/figure-6", rows), "map")
    paper, honest, _ = figure.axes
    assert [axes.get_title() for axes in (paper, honest)] == ["paper protocol", "honest protocol"]
    assert [label.get_text() for label in paper.get_xticklabels()] == ["none", "0", "1"]
    assert paper.images[0].get_array().tolist() == [pytest.approx([0.5, 1.0, 0.75])]
    assert [text.get_text() for text in honest.texts] == ["0.200", "0.100", ""]


def test_list_has_every_entry(capsys: pytest.CaptureFixture[str]) -> None:
    print_entries()
    shown = capsys.readouterr().out
    assert all(f"{name} " in shown for name in ENTRIES)


# ---- whole entries -----------------------------------------------------------------------------------------------


def write_task(folder: Path, columns: dict[str, list[Any]]) -> None:
    folder.mkdir(parents=True)
    for split in ("train", "validation"):
        pq.write_table(pa.table(columns), folder / f"{split}.parquet")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tiny data sets that have the columns of the real ones."""
    root = tmp_path_factory.mktemp("data")
    rows = sentences(120, seed=1)
    texts, labels = [text for text, _ in rows], [int(label == "good") for _, label in rows]
    pairs = {"sentence1": texts, "sentence2": texts[::-1], "label": labels}
    write_task(root / "glue" / "rte", pairs)
    write_task(root / "glue" / "mrpc", pairs)
    write_task(root / "glue" / "cola", {"sentence": texts, "label": labels})
    save_encoder(root / "model", texts)
    return root


def run_small(name: str, data: Path, folder: Path, watcher: Watcher | None = None, **settings: Any) -> Outcome:
    setup = make_setup(
        find_entry(name), str(data / "model"), data=str(data), scale="small", settings={"use_cpu": True, **settings}
    )
    return reproduce(setup, folder, make_executor("local", 0, device="cpu"), watcher=watcher)


class Ended(Watcher):
    """Counts the runs that are trained."""

    def __init__(self) -> None:
        self.count = 0

    def ended(self, record: Any, status: Any) -> None:
        self.count += 1


def test_table_is_written_with_both_protocols_and_resumes(data: Path, tmp_path: Path) -> None:
    watcher = Ended()
    first = run_small("addrop/table-5", data, tmp_path / "t", watcher)
    assert first.runs == watcher.count == 2 * 3 * 2  # rows, seeds, protocols
    assert first.protocols == ["paper", "honest"]
    assert all(len(cell.values) == 3 for cell in first.cells)
    page = (tmp_path / "t" / "outcome.md").read_text(encoding="utf-8")
    for text in (
        "not transcribed",
        "cannot tell",
        "Small scale",
        "is our reading",
        "32 train",
        "not a model of the paper",
    ):
        assert text in page
    again = run_small("addrop/table-5", data, tmp_path / "t", watcher)
    assert watcher.count == 12  # nothing was trained again
    assert again.cells == first.cells
    assert Outcome.read(tmp_path / "t" / "outcome.json", "").cells == first.cells
    validation = data / "glue" / "rte" / "validation.parquet"
    before = validation.read_bytes()
    pq.write_table(pq.read_table(validation).slice(0, 100), validation)
    try:
        with pytest.raises(UserError, match="the file '.*rte/validation.parquet' changed after runs of the study"):
            run_small("addrop/table-5", data, tmp_path / "t", watcher)
    finally:
        validation.write_bytes(before)


def test_figure_2_has_the_losses_of_four_strategies(data: Path, tmp_path: Path) -> None:
    outcome = run_small("addrop/figure-2", data, tmp_path / "f")
    lines = {(cell.row, cell.column) for cell in outcome.cells}
    rows = ("none", "random", "low attribution", "high attribution")
    assert lines == {
        (row, column) for row in rows for column in ("training loss", "development loss", "development score")
    }
    assert {cell.x for cell in outcome.cells} == {1.0, 2.0, 3.0}
    assert (tmp_path / "f" / "outcome.png").stat().st_size > 1000
    assert outcome.verdicts[0].text.endswith("(training loss at 1, last)")


@pytest.mark.slow
def test_grid_has_every_point_with_and_without_cross_tuning(data: Path, tmp_path: Path) -> None:
    outcome = run_small("addrop/figure-4", data, tmp_path / "f")
    assert [(cell.row, len(cell.values)) for cell in outcome.cells] == [
        ("without cross-tuning", 4),
        ("with cross-tuning", 4),
    ]
    assert (tmp_path / "f" / "outcome.png").is_file()


@pytest.mark.slow
def test_one_layer_at_a_time_is_a_map_of_tasks_and_layers(data: Path, tmp_path: Path) -> None:
    outcome = run_small("addrop/figure-6", data, tmp_path / "f")
    assert {(cell.row, cell.column, cell.x) for cell in outcome.cells} == {
        *(("fine-tuning", task, None) for task in ("mrpc", "rte")),
        *(("one layer", task, float(layer)) for task in ("mrpc", "rte") for layer in range(2)),
    }
    assert all(cell.difference is not None for cell in outcome.cells if cell.x is not None)


def test_robustness_is_measured_once_on_models_that_are_kept(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = run_small("addrop/figure-7", data, tmp_path / "f")
    rows = {f"{row}, {order}" for row in ("fine-tuning", "AD-DROP") for order in ("high", "low", "random")}
    assert {cell.row for cell in outcome.cells} == rows
    assert {cell.column for cell in outcome.cells} == {"layer 0", "layer 1", "together"}
    whole = {cell.row: cell.mean for cell in outcome.cells if cell.x == 0 and cell.column == "together"}
    assert whole["AD-DROP, high"] == whole["AD-DROP, random"]  # nothing is dropped
    monkeypatch.setattr("attendrop.lab.reproduction.kept._loaded", lambda *_: pytest.fail("measured again"))
    assert run_small("addrop/figure-7", data, tmp_path / "f").cells == outcome.cells


def test_pruning_removes_the_layers_whose_probability_rose(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attendrop.lab.reproduction.measuring.last_gates", lambda record: {0: 0.5, 1: 0.6})
    outcome = run_small("attendout-v1/table-1", data, tmp_path / "t")
    share = outcome.find("self-pruning", "share pruned", "last")
    assert share is not None
    assert share.mean == 0.5
    speed = outcome.find("self-pruning", "speed-up", "last")
    assert speed is not None
    assert speed.mean > 0


def test_gates_are_the_logged_probabilities_of_each_layer(data: Path, tmp_path: Path) -> None:
    outcome = run_small("attendout/figure-3", data, tmp_path / "f")
    assert {cell.column for cell in outcome.cells} == {"layer 0", "layer 1"}
    first = next(cell for cell in outcome.cells if cell.column == "layer 0")
    assert 0.4 < first.mean < 0.7
    assert not outcome.verdicts  # what the paper says is about QNLI, and the start is a setting


@pytest.mark.slow
def test_cost_is_a_multiple_of_the_first_row(data: Path, tmp_path: Path) -> None:
    outcome = run_small("addrop/table-7", data, tmp_path / "t")
    assert {cell.mean for cell in outcome.cells if cell.row == "fine-tuning"} == {1.0}
    assert {cell.row for cell in outcome.cells} == {row.label for row in ENTRIES["addrop/table-7"].rows}
    assert "×" in markdown_of(outcome)


@pytest.mark.slow
def test_translation_is_scored_with_both_protocols(data: Path, tmp_path: Path) -> None:
    rows = [text for text, _ in sentences(60, seed=2)]
    write_task(tmp_path / "data" / "multi30k", {"en": rows, "de": rows[::-1]})
    save_translator(tmp_path / "model", rows)
    settings = {"use_cpu": True, "max_train_samples": 16, "max_eval_samples": 8}
    entry = find_entry("addrop/table-4")
    setup = make_setup(entry, str(tmp_path / "model"), data=str(tmp_path / "data"), scale="small", settings=settings)
    outcome = reproduce(setup, tmp_path / "study", make_executor("local", 0, device="cpu"))
    assert not outcome.failed
    assert {(cell.row, cell.protocol) for cell in outcome.cells} == {
        (row, protocol) for row in ("fine-tuning", "AD-DROP") for protocol in ("paper", "honest")
    }


# ---- what is not there -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("addrop/table-6", {}, r"addrop/table-6 cannot be run: .* has no folder glue/mnli or mnli for glue/mnli; it "
         r"needs the training and validation data of glue/mnli, glue/qqp, and the validation data of hans, paws-x/en"),
        ("addrop/table-4", {"data": None}, r"addrop/table-4 cannot be run with .*: its family 'bert' does not "
         r"translate; it needs an encoder-decoder such as Helsinki-NLP/opus-mt-en-ro"),
        ("addrop/table-5", {"task": ["glue/sst2"]}, r"task is 'glue/sst2', which addrop/table-5 does not have"),
        ("addrop/table-5", {"scale": "tiny"}, r"scale is 'tiny'"),
        ("addrop/table-5", {"protocol": "last"}, r"protocol is 'last'"),
        ("addrop/table-5", {"seeds": 0}, r"seeds is 0"),
        ("addrop/table-5", {"data": "nowhere"}, r"data is 'nowhere', which is not a folder; it needs the training and"),
    ],
)  # fmt: skip
def test_what_is_missing_is_one_sentence(name: str, options: dict[str, Any], message: str, data: Path) -> None:
    with pytest.raises(UserError, match=message):
        make_setup(find_entry(name), str(data / "model"), **{"data": str(data), **options})


# ---- every entry, with the model of the demo -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(not (DATA.is_dir() and MINILM.is_dir()), reason="needs the real data and MiniLM")
@pytest.mark.parametrize("name", [name for name, entry in ENTRIES.items() if entry.family == "encoder"])
def test_small_scale_of_every_entry_runs_with_the_model_of_the_demo(name: str, tmp_path: Path) -> None:
    setup = make_setup(find_entry(name), str(MINILM), data=str(DATA), scale="small", settings={"use_cpu": True})
    outcome = reproduce(setup, tmp_path / "study", make_executor("local", None, device="cpu"))
    assert not outcome.failed
    assert outcome.cells
    assert outcome.minutes < 5
