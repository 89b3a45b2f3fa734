"""The report of a study: its files, and its page in a real browser."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import shutil
import xml.etree.ElementTree as xml
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import attendrop
from attendrop import UserError
from attendrop.lab.cli.app import run
from attendrop.lab.records import StudyConfiguration
from attendrop.lab.report.analysis import Analysis, Method
from attendrop.lab.report.page import (
    card_section,
    checked_analysis,
    comparisons_csv,
    headline,
    render_markdown,
    render_page,
    runs_csv,
    write_report,
)
from attendrop.lab.report.page.words import other_outcomes
from attendrop.lab.studies.analysis import analyse
from attendrop.lab.studies.configuration import write_configuration
from attendrop.lab.studies.design import RunSpec, parse_contender
from attendrop.lab.studies.records import read_records, write_record
from attendrop.lab.studies.worker import Worker
from helpers.analyses import METHODS, TOKENS, make_analysis
from helpers.cli_tools import save_encoder, sentences, write_csv

# one process runs them all, so that the browser is started once
pytestmark = pytest.mark.xdist_group("page")

PAPER = "paper protocol: selected on the development set"
HOSTILE = "</script><script>window.hacked = true</script><img src=x onerror='window.hacked = true'>"
FILES = ["comparisons.csv", "report.csv", "report.html", "report.md"]
FIGURES = ["seeds", "cost", "curves", "sizes", "heatmap", "tuning", "learned", "rates", "explorer", "agreement"]


def small_analysis() -> Analysis:
    """Three seeds of two methods on one task, without anything that is optional."""
    analysis = make_analysis(seeds=3, tasks=("glue/rte",), sizes=("all",), methods=tuple(METHODS)[:2], explorer=False)
    for cell in analysis.cells:
        cell.curves = None
    return replace(analysis, agreement=[], disagreements=[], failures=[], notes=[], method_metrics={})


def explorer_of(analysis: Analysis) -> dict[str, Any]:
    assert analysis.explorer is not None
    return analysis.explorer


# ---- the files --------------------------------------------------------------------------------------------------


def test_page_of_200_runs_is_below_3_mb_and_names_no_other_place() -> None:
    analysis = make_analysis(seeds=13, layers=12, heads=12, examples=1)
    explorer_of(analysis)["examples"] *= 8
    page = render_page(analysis)
    assert len(analysis.runs) > 200
    assert 500_000 < len(page.encode()) < 3_000_000
    own = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", own)
    assert "@import" not in page
    assert "url(" not in own


def test_maps_that_do_not_fit_are_left_out_and_counted() -> None:
    analysis = make_analysis(layers=12, heads=12, examples=1)
    explorer_of(analysis)["examples"] *= 20
    page = render_page(analysis)
    data = json.loads(re.search(r'id="analysis">(.*?)</script>', page)[1])  # type: ignore[index]
    assert 1 < len(data["explorer"]["examples"]) == 20 - data["explorer"]["left_out"] < 20
    assert len(page.encode()) < 3_000_000


def test_libraries_are_the_ones_that_their_table_lists() -> None:
    folder = Path(attendrop.__file__).parent / "lab/report/page/vendor"
    table = re.findall(r"^\| `([\w.]+)` .* `(\w{64})` \|$", (folder / "README.md").read_text("utf-8"), re.MULTILINE)
    assert dict(table) == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.js")}
    assert {path.name for path in folder.glob("*.LICENSE")} == {"d3.LICENSE", "plot.LICENSE"}


def test_verdicts_are_on_the_page_without_scripts() -> None:
    page = re.sub(r"<script.*?</script>", "", render_page(make_analysis()), flags=re.DOTALL)
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))
    assert "AD-DROP helps (+0.018); AttendOut hurts (−0.020); R-Drop is undecided." in text
    assert "▲ helps +0.018 [+0.009, +0.027] Holm p 0.012" in text
    assert "costs more +31 % [+30 %, +32 %]" in text
    assert "1 failed run" in text
    assert "training diverged at step 120" in text


def test_each_outcome_has_its_own_difference_that_is_too_small() -> None:
    text = render_page(make_analysis())
    assert "Too small to matter are differences up to ±0.010 in accuracy (the shaded band), " in text
    assert "; ±0.020 in loss; " in text


@pytest.mark.parametrize("render", [render_page, render_markdown, card_section])
def test_too_few_seeds_give_no_verdict_and_the_reason(render: Any) -> None:
    text = render(small_analysis())
    assert "No verdict: 3 seeds are too few to estimate run-to-run noise." in text
    assert "too few seeds" in text
    if render is not card_section:
        assert "with fewer than 5 the test cannot tell a difference from chance" in text
    assert "helps" not in re.sub(r"<(style|script).*?</\1>", "", text, flags=re.DOTALL)


@pytest.mark.parametrize("render", [render_page, render_markdown, card_section])
def test_protocol_of_papers_is_named(render: Any) -> None:
    plain = re.sub(r"<script>.*?</script>", "", render(make_analysis()), flags=re.DOTALL)
    assert PAPER not in plain
    assert PAPER in re.sub(r"<script>.*?</script>", "", render(make_analysis(protocol="paper")), flags=re.DOTALL)


def test_ensembles_have_a_row_below_their_method_and_a_sentence() -> None:
    analysis = small_analysis()
    page, text = render_page(analysis), render_markdown(analysis)
    assert page.count('<tr class="ensemble">') == len(analysis.ensembles) > 0
    assert page.index("ensemble of") > page.index('<tr class="baseline">')
    assert f"{analysis.ensembles[0].seeds} × at inference" in page
    assert text.count("Ensemble of the") == len(analysis.ensembles)
    assert '<tr class="ensemble">' not in render_page(replace(analysis, ensembles=[]))


def test_tables_hold_every_run_and_every_comparison() -> None:
    analysis = make_analysis()
    runs = list(csv.DictReader(io.StringIO(runs_csv(analysis))))
    assert len({row["id"] for row in runs}) == len(analysis.runs) == 160
    assert [row["error"] for row in runs if row["status"] == "failed"] == ["training diverged at step 120"]
    comparisons = list(csv.DictReader(io.StringIO(comparisons_csv(analysis))))
    assert len(comparisons) == 2 * 2 * 3 * 5
    (row,) = (
        r for r in comparisons
        if (r["method"], r["task"], r["size"], r["outcome"]) == ("attendout", "glue/rte", "all", "score")
    )  # fmt: skip
    assert (row["verdict"], float(row["difference"]), float(row["p_adjusted"])) == ("hurts", -0.02, 0.012)
    baseline = next(c for c in analysis.cells if c.method == "plain" and c.size == "all")
    assert float(row["baseline_mean"]) == baseline.outcomes["score"].mean


def test_formulas_and_markup_of_data_are_text() -> None:
    analysis = small_analysis()
    analysis.runs[0].error = "=HYPERLINK(1)"
    analysis.title = "a | b <b>"
    assert "'=HYPERLINK(1)" in runs_csv(analysis)
    assert r"# a \| b \<b\>" in render_markdown(analysis)


def test_section_of_a_card_is_short_and_complete() -> None:
    section = card_section(make_analysis())
    assert section.startswith("## Comparison of methods\n")
    assert "| AD-DROP | accuracy | ▲ helps | +0.018 |" in section
    assert "1 runs failed" in section
    assert len(section.splitlines()) < 30


def test_headline_names_all_methods_of_a_verdict() -> None:
    analysis = make_analysis()
    analysis.summary = [replace(entry, verdict="no difference") for entry in analysis.summary]
    assert headline(checked_analysis(analysis)) == "AD-DROP, R-Drop and AttendOut make no difference."


def test_verdicts_that_agree_on_all_tasks_are_reported_where_other_tasks_are_undecided() -> None:
    analysis = make_analysis()
    analysis.summary = [replace(entry, verdict="undecided") for entry in analysis.summary]
    assert headline(checked_analysis(analysis)) == "AD-DROP, R-Drop and AttendOut are undecided."
    sentence = other_outcomes(checked_analysis(analysis))
    assert sentence.startswith("On each task by itself, AD-DROP improves the accuracy; AttendOut worsens the accuracy")
    assert sentence in render_markdown(analysis)
    score = next(c for c in analysis.cells if c.method == "attendout").outcomes["score"]
    assert score.comparison is not None
    score.comparison = replace(score.comparison, verdict="no difference")
    assert "AttendOut worsens the accuracy" not in other_outcomes(checked_analysis(analysis))


def test_a_grid_of_settings_stays_readable() -> None:
    analysis = make_analysis(tasks=("glue/rte",), sizes=("all",))
    (cell,) = (cell for cell in analysis.cells if cell.method == "addrop:p=0.3,q=0.3")
    for number in range(1, 41):
        analysis.methods.append(Method(f"addrop:p=0.3,q={number}"))
        analysis.cells.append(replace(cell, method=f"addrop:p=0.3,q={number}"))
    assert headline(checked_analysis(analysis)) == "41 methods help; AttendOut hurts (−0.020); R-Drop is undecided."
    assert 'class="scroll tall"' in render_page(analysis)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: a.pop("cells"), "'cells' is missing"),
        (lambda a: a.update(schema=7), "its schema is 7"),
        (lambda a: a.update(methods="plain"), "'methods' is a str, not a list"),
        (lambda a: a.update(runs={}), "'runs' is a dict, not a list"),
        (lambda a: a["cells"][3].pop("task"), "entry 3 of 'cells' has no 'task'"),
        (lambda a: a["cells"][0]["outcomes"].update(x={"values": {}}), "has the outcome 'x', which"),
        (lambda a: a["cells"][0].update(method="x"), "which 'methods' does not list"),
        (lambda a: a["cells"][0]["outcomes"]["score"].pop("values"), "has no 'values'"),
        (lambda a: a["cells"][1]["outcomes"]["loss"]["comparison"].update(verdict="good"), "verdict 'good'"),
        (lambda a: a["explorer"]["examples"][0]["tokens"].append("x"), "has not the size of its 14 tokens"),
    ],
)
def test_broken_analyses_are_refused(change: Any, words: str, tmp_path: Path) -> None:
    fields = make_analysis(seeds=5).to_dict()
    change(fields)
    assert_refused(fields, words, tmp_path)


def test_a_list_is_no_analysis(tmp_path: Path) -> None:
    assert_refused([], "it is a list, not a dictionary", tmp_path)


def assert_refused(analysis: Any, words: str, folder: Path) -> None:
    with pytest.raises(UserError, match=re.escape(words)) as caught:
        write_report(analysis, folder)
    assert "\n" not in str(caught.value)
    assert list(folder.iterdir()) == []


def test_numbers_that_are_not_finite_are_shown_as_missing(tmp_path: Path) -> None:
    analysis = small_analysis()
    analysis.cells[0].outcomes["score"].mean = float("nan")
    page = write_report(analysis, tmp_path).read_text("utf-8")
    data = json.loads(re.search(r'id="analysis">(.*?)</script>', page)[1])  # type: ignore[index]
    assert data["cells"][0]["outcomes"]["score"]["mean"] is None


def test_analysis_is_the_same_after_json() -> None:
    analysis = make_analysis()
    assert Analysis.from_dict(json.loads(json.dumps(analysis.to_dict()))) == analysis


@pytest.mark.parametrize("name", FILES)
def test_files_of_others_are_not_overwritten(name: str, tmp_path: Path) -> None:
    write_report(small_analysis(), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES
    write_report(small_analysis(), tmp_path)  # its own files are replaced
    (tmp_path / name).write_text("mine")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(UserError, match="was not written by `attendrop report`"):
        write_report(make_analysis(seeds=5), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


# ---- the command ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study of two methods and two seeds that have run, and a third seed that has failed."""
    folder = tmp_path_factory.mktemp("real")
    rows = sentences(48, seed=1)
    save_encoder(folder / "model", [text for text, _ in rows])
    files = {"train_file": rows, "validation_file": sentences(24, seed=2)}
    settings = {name: str(write_csv(folder / f"{name}.csv", content)) for name, content in files.items()}
    settings |= {"model": str(folder / "model"), "num_train_epochs": 4, "learning_rate": 1e-2, "use_cpu": True}
    settings |= {"logging_steps": 2}
    worker, methods = Worker("cpu"), ["plain", "addrop:p=0.5,q=0.5,layers=all"]
    study = folder / "study"
    study.mkdir()
    write_configuration(study, StudyConfiguration(methods=methods, command="attendrop compare"), ())
    for name in methods:
        for seed in range(2):
            shared = {**settings, "method": parse_contender(name).methods, "seed": seed}
            record = worker.run(RunSpec(shared, name, "train.csv", seed, details=seed == 0))
            write_record(study, record)
    error = {"type": "DivergedError", "message": "the loss is not finite"}
    write_record(study, replace(record, id="f" * 16, seed=2, status="failed", error=error, scores={}))
    return study


@pytest.fixture
def study(real_study: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(real_study, tmp_path / "study"))


def test_command_writes_the_report_of_a_real_study(study: Path, capsys: pytest.CaptureFixture) -> None:
    before = {path.name for path in study.iterdir()}
    assert run(["report", str(study)]) == 0
    assert {path.name for path in study.iterdir()} == {*FILES, *before}
    printed = capsys.readouterr().out
    assert "2 seeds are too few" in printed
    assert "report.html" in printed
    page = (study / "report.html").read_text("utf-8")
    assert "DivergedError: the loss is not finite" in page
    table = list(csv.DictReader(io.StringIO((study / "comparisons.csv").read_text("utf-8"))))
    assert {row["outcome"] for row in table} == {"score", "loss", "ece", "brier", "scaled_loss", "cost"}
    runs = list(csv.DictReader(io.StringIO((study / "report.csv").read_text("utf-8"))))
    shown = {(row["method"], int(row["seed"])): float(row["value"]) for row in runs if row["score"] == "accuracy"}
    records = [record for record in read_records(study).values() if record.is_finished]
    assert shown == {(r.method, r.seed): r.scores["validation"]["accuracy"] for r in records}
    data = json.loads(re.search(r'id="analysis">(.*?)</script>', page)[1])  # type: ignore[index]
    assert len(data["explorer"]["examples"]) == 3
    assert run(["report", str(study), "--output", str(study / "elsewhere")]) == 0
    assert sorted(path.name for path in (study / "elsewhere").iterdir()) == FILES


def test_command_answers_bad_input_in_one_sentence(study: Path, capsys: pytest.CaptureFixture) -> None:
    def answer(*arguments: Any) -> str:
        assert run(["report", *map(str, arguments)]) == 2
        return " ".join(capsys.readouterr().err.split())

    assert "is not a folder" in answer(study / "nothing")
    (study / "empty").mkdir()
    assert "has no records of runs" in answer(study / "empty")
    (study / "file").write_text("x")
    assert "cannot be written to" in answer(study, "--output", study / "file" / "below")
    (study / "report.md").write_text("mine")
    assert "was not written by `attendrop report`" in answer(study)
    next(study.glob("runs/*.json")).write_text("{")
    assert "error:" in answer(study)


# ---- the page in a browser --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("needs a browser: no chromium on this machine")
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    paper = make_analysis(seeds=5, tasks=("glue/rte",), protocol="paper", layers=2, heads=3)
    kinds = {"whole": make_analysis(), "small": small_analysis(), "paper": paper}
    return {name: write_report(analysis, folder / name) for name, analysis in kinds.items()}


@pytest.fixture
def opened(browser: Any) -> Iterator[Any]:
    """A function that opens a page. At the end nothing may have been said on the console or asked of any server."""
    contexts, messages, asked = [], [], []

    def open_page(path: Path, width: int = 1440, theme: str = "light") -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=theme, reduced_motion="reduce"
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: messages.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        allowed.add(path.as_uri())
        return page

    allowed: set[str] = set()
    yield open_page
    for context in contexts:
        context.close()
    assert messages == []
    assert {url for url in asked if not url.startswith(("data:", "blob:"))} <= allowed


def table_rows(page: Any, figure: str) -> list[list[str]]:
    """The rows of a figure's table, which is opened if it is not."""
    button = page.locator(f"#{figure} .tools button", has_text="table")
    if button.get_attribute("aria-expanded") == "false":
        button.click()
    return page.locator(f"#{figure} .data tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )


def test_every_figure_is_drawn_and_nothing_is_wider_than_the_window(opened: Any, pages: dict[str, Path]) -> None:
    for width in (1440, 390):
        page = opened(pages["whole"], width)
        assert page.locator("#figures figure").evaluate_all("f => f.map(x => x.parentElement.id)") == FIGURES
        for figure in FIGURES:
            drawing = page.locator(f"#{figure} .canvas svg[role=img]")
            assert drawing.count() == 1, figure
            assert len(drawing.get_attribute("aria-label")) > 60
            assert drawing.locator("path, rect, circle, text").count() > 10, figure
        assert page.evaluate("document.documentElement.scrollWidth") == width


def test_shares_of_seeds_end_at_0_and_100_percent_with_one_seed(opened: Any, tmp_path: Path) -> None:
    analysis = make_analysis(seeds=5)
    one_seed = [replace(of, per_example=[round(share) for share in of.per_example]) for of in analysis.agreement]
    page = opened(write_report(replace(analysis, agreement=one_seed), tmp_path))
    texts = page.locator("#agreement .canvas svg text").all_text_contents()
    assert [text for text in texts if re.fullmatch(r"\D?\d+ %", text)] == ["0 %", "100 %"]


def test_sections_without_data_are_left_out(opened: Any, pages: dict[str, Path]) -> None:
    page = opened(pages["small"], 390)
    assert page.locator("main section[data-nav]").evaluate_all("s => s.map(x => x.id)") == [
        "seeds", "cost", "runs", "origin"
    ]  # fmt: skip
    assert page.locator("#filters").is_hidden()
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_page_of_a_real_study(opened: Any, study: Path) -> None:
    page = opened(write_report(analyse(study), study), 390)
    figures = page.locator("#figures figure").evaluate_all("f => f.map(x => x.parentElement.id)")
    assert figures == ["seeds", "cost", "curves", "rates", "explorer", "agreement"]
    assert page.locator("#figures .canvas .empty").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_choices_change_the_tables_and_the_figures(opened: Any, pages: dict[str, Path]) -> None:
    page = opened(pages["whole"])
    blocks = page.locator(".cell-block:visible h3")
    assert blocks.all_text_contents() == ["glue/rte, all training data, scored on validation"]
    before = table_rows(page, "seeds")
    page.get_by_label("Task", exact=True).select_option("glue/mrpc")
    page.get_by_label("Training data", exact=True).select_option("fraction=0.1")
    assert blocks.all_text_contents() == ["glue/mrpc, data size fraction=0.1, scored on validation"]
    after = table_rows(page, "seeds")
    assert len(before) == len(after) == 40
    assert {row[1] for row in after} == {"glue/mrpc"}
    page.locator("#seeds").get_by_label("Outcome").select_option("ece")
    assert {row[4] for row in table_rows(page, "seeds")} == {"ece"}
    page.locator("#curves").get_by_label("training loss").check()
    assert page.locator("#curves .canvas svg").get_by_text("training loss").count() == 1


def test_hidden_methods_leave_every_figure(opened: Any, pages: dict[str, Path]) -> None:
    page = opened(pages["whole"])
    page.locator("#seeds .legend").get_by_text("R-Drop").click()
    assert {row[0] for row in table_rows(page, "curves")} == {"plain", "AD-DROP", "AttendOut"}
    pressed = page.locator(".legend button[data-method='rdrop:weight=1']")
    assert set(pressed.evaluate_all("b => b.map(x => x.getAttribute('aria-pressed'))")) == {"false"}


def test_pointer_shows_the_run_and_the_line_of_its_seed(opened: Any, pages: dict[str, Path]) -> None:
    page = opened(pages["whole"])
    visible = "paths => paths.filter(path => getComputedStyle(path).opacity > 0.9).length"
    lines = page.locator("#seeds [data-mark=line] path")
    assert (lines.count(), lines.evaluate_all(visible)) == (10, 0)
    page.locator("#seeds [data-mark=dot] path").first.hover()
    assert "seed" in page.locator("#seeds [aria-label=tip]").text_content()
    assert lines.evaluate_all(visible) == 1
    page.locator("#seeds").get_by_label("paired differences").check()
    assert page.locator("#seeds .canvas").get_by_text("difference in accuracy from plain").count() == 1


def test_theme_follows_the_system_until_the_reader_chooses(opened: Any, pages: dict[str, Path]) -> None:
    page = opened(pages["whole"], theme="dark")
    color = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(color)
    page.get_by_role("button", name="Theme: system").click()
    light = page.evaluate(color)
    page.get_by_role("button", name="Theme: light").click()
    assert (page.evaluate(color), light) == (dark, "rgb(251, 251, 250)")
    page.emulate_media(color_scheme="light")
    assert page.evaluate(color) == dark
    page.get_by_role("button", name="Theme: dark").click()
    assert page.evaluate(color) == light


def test_explorer_with_the_keyboard_alone(opened: Any, pages: dict[str, Path]) -> None:
    page = opened(pages["whole"])
    page.locator("#explorer .heads [aria-selected=true]").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowLeft", "ArrowRight"):
        page.keyboard.press(key)
    chosen = page.locator("#explorer .heads [aria-selected=true]")
    assert chosen.evaluate("x => x === document.activeElement && x.dataset.layer + ' ' + x.dataset.head") == "2 1"
    assert chosen.evaluate("x => getComputedStyle(x).outlineStyle") == "solid"
    assert page.locator("#announce").text_content() == "layer 2, head 1"
    assert page.get_by_label("Layer", exact=True).input_value() == "2"

    page.locator("#explorer .tokens [aria-checked=true]").focus()
    for key in ("End", "ArrowLeft"):
        page.keyboard.press(key)
    assert page.locator("#explorer .tokens [aria-checked=true]").text_content() == TOKENS[-2]
    assert page.locator("#explorer .reading").text_content().startswith(f"“{TOKENS[-2]}” attends most to")


def test_explorer_shows_the_maps_of_the_analysis(opened: Any, pages: dict[str, Path]) -> None:
    page = opened(pages["whole"])
    example = explorer_of(make_analysis())["examples"][1]
    page.get_by_label("Example", exact=True).select_option("1")
    page.get_by_label("Layer", exact=True).select_option("1")
    page.get_by_label("Head", exact=True).select_option("5")
    for name, model in (("before pruning", example), ("after pruning", example["pruned"])):
        page.locator("#explorer").get_by_label(name).check()
        rows = table_rows(page, "explorer")
        maps, n = model["layers"][1]["heads"][5], len(TOKENS)
        for kind, column in (("attention", 4), ("attribution", 5), ("candidates", 6), ("dropped", 7)):
            expected = [value for row in maps[kind] for value in row]
            largest = max(map(abs, expected))
            assert [float(row[column]) for row in rows] == pytest.approx(expected, abs=0.006 * largest + 0.001)
        assert len(rows) == n * n
        crosses = page.locator("#explorer .canvas svg g path").count()
        assert crosses == sum(map(sum, maps["dropped"]))
    page.get_by_label("Layer", exact=True).select_option("4")  # pruned
    assert "has been pruned" in page.locator("#explorer .reading").text_content()
    page.locator("#explorer").get_by_label("before pruning").check()
    page.get_by_label("cross out what one draw drops").uncheck()
    assert page.locator("#explorer .canvas svg g path").count() == 0


@pytest.mark.parametrize("figure", ["seeds", "heatmap", "explorer"])
def test_figures_are_saved_as_svg_png_and_csv(figure: str, opened: Any, pages: dict[str, Path], tmp_path: Path) -> None:
    page = opened(pages["whole"], theme="dark")

    def saved(kind: str) -> bytes:
        with page.expect_download() as download:
            page.locator(f"#{figure} .tools").get_by_text(kind, exact=True).click()
        assert download.value.suggested_filename == f"{figure}.{kind.lower()}"
        download.value.save_as(tmp_path / kind)
        return (tmp_path / kind).read_bytes()

    svg = saved("SVG").decode()
    xml.fromstring(svg)
    assert "var(--" not in re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)
    assert page.locator(f"#{figure}-title").text_content() in svg
    assert saved("PNG").startswith(b"\x89PNG")
    lines = saved("CSV").decode().splitlines()
    assert lines[0].split(",")[0] in ("method", "layer")
    assert len(lines) - 1 == len(table_rows(page, figure))


def test_texts_of_the_data_are_never_markup(opened: Any, tmp_path: Path) -> None:
    analysis = make_analysis(seeds=5)
    analysis = replace(analysis, title=HOSTILE, command=HOSTILE, notes=[HOSTILE], versions={HOSTILE: HOSTILE})
    analysis.methods[1].label = HOSTILE
    analysis.failures[0].message = HOSTILE
    analysis.disagreements[0] = replace(analysis.disagreements[0], text=HOSTILE, gold=HOSTILE)
    explorer_of(analysis)["examples"][0]["text"] = HOSTILE
    explorer_of(analysis)["examples"][0]["tokens"][2] = HOSTILE
    analysis.runs[0].error = HOSTILE
    page = opened(write_report(analysis, tmp_path), 390)
    page.locator("#runs summary").click()
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0
    assert page.locator("h1").text_content() == HOSTILE
    assert page.locator("#disagreements p", has_text="hacked").first.text_content() == HOSTILE
    assert page.locator("#explorer .tokens button").nth(2).text_content() == HOSTILE
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_protocol_of_papers_is_on_every_figure(opened: Any, pages: dict[str, Path]) -> None:
    page = opened(pages["paper"])
    assert page.locator(".hero").get_by_text(PAPER).is_visible()
    assert page.locator("figure .label").all_text_contents() == [PAPER] * len(FIGURES)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_axe_finds_nothing_serious(width: int, theme: str, opened: Any, pages: dict[str, Path]) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = opened(pages["paper"], width, theme)
    page.locator("details > summary").evaluate_all("all => all.forEach(x => x.parentElement.open = true)")
    table_rows(page, "seeds")
    violations = [
        f"{violation['id']}: {node['html'][:120]} {node['failureSummary']}"
        for violation in axe.run(page, options={"resultTypes": ["violations"]}).response["violations"]
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"][:3]
    ]
    assert violations == []
