"""`attendrop compare`: run every method on the same seeds and test the differences."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ...errors import UserError
from ...utils.secrets import is_secret
from ...utils.shell import command_line
from ..report.analysis import Analysis, Result
from ..report.page.words import amount_of_data
from ..runs import make_config, read_yaml
from ..runs.hub_token import token_in_environment
from ..studies.compare import compare
from ..studies.design import Design
from ..studies.plan import changed_by_flags, read_plan
from ..studies.splits import load_split_data
from ..tasks.outcomes import OUTCOMES, SCORE, Outcome
from .arguments import as_arguments
from .comparison_options import DEFAULTS, Chosen, ComparisonOptions, study_option
from .console import console, plain_table, quiet_libraries, shown
from .data_tables import show_data
from .engine_options import LOCAL, EngineOptions, RetryFailed
from .flags import ConfigFile, with_flags
from .study_view import StudyView

# Settings that the study decides, or that belong to a single run.
NOT_FOR_STUDIES = (
    "seed", "resume", "resume_changed", "overwrite", "save_strategy", "load_best_model_at_end", "keep_epoch",
)  # fmt: skip


@quiet_libraries()
def compare_command(
    settings: dict[str, Any],
    options: ComparisonOptions = DEFAULTS,
    keep_models: Annotated[
        bool, study_option("Keep the trained models in the output folder, for `attendrop soup`.", "--keep-models")
    ] = False,
    plan: Annotated[
        str | None,
        study_option("A plan from `attendrop plan`, which says everything; the report lists each deviation."),
    ] = None,
    deviate: Annotated[
        bool, study_option("With --plan: flags may differ from the plan, as deviations.", "--deviate")
    ] = False,
    config: ConfigFile = None,
    executor: EngineOptions = LOCAL,
    retry_failed: RetryFailed = False,
) -> None:
    """Compare with `settings`, the flags that the user gave; `with_flags` adds a flag for each setting of a run."""
    shared = {**(read_yaml(config) if config else {}), **settings}
    folder = shared.pop("output_dir", None)
    secrets = {name: shared.pop(name) for name in [*shared] if is_secret(name)}
    if plan is None:
        if deviate:
            raise UserError("deviate is on, and there is no plan to deviate from; give one with --plan.")
        planned, chosen = None, options.choose(shared)
    else:
        planned = read_plan(plan)
        chosen = Chosen.of_study(changed_by_flags(planned, options.beside_plan(shared), plan, deviate))
    design = chosen.design
    if keep_models:
        _check_keeping(executor.engine, design.settings)
    example = make_config({**design.runs(design.cells[0], 0)[0].settings, **secrets})
    place = Path(folder or Path("studies", example.output_dir.name.removesuffix("-plain")))
    more = {"config": config, "keep_models": keep_models, "plan": plan, "deviate": deviate, "output_dir": str(place)}
    words = {**settings, **options.given(), **{name: value for name, value in more.items() if value}}
    if plan is None:
        words["method"] = list(design.methods)
    command = command_line("attendrop", "compare", *as_arguments(words))
    made = executor.make(design.settings)
    seeds = chosen.seeds or DEFAULTS.seeds
    _announce(design, seeds, chosen.max_seeds, place)
    try:
        with token_in_environment(example):
            for cell in design.task_cells:
                first = design.runs(cell, 0)[0]
                show_data(load_split_data(first, make_config(dict(first.settings))))
            analysis = compare(
                design, place, made, seeds=seeds, max_seeds=chosen.max_seeds, deltas=chosen.deltas, command=command,
                retry_failed=retry_failed, keep_models=keep_models, watcher=StudyView(), plan=planned,
            )  # fmt: skip
    except KeyboardInterrupt:
        console.print("stopped; finished runs are kept; rerun the command to continue", soft_wrap=True)
        raise typer.Exit(130) from None
    print_verdicts(analysis)
    _write_report(analysis, place)
    if any(entry.runs == entry.failed for entry in analysis.methods):
        raise typer.Exit(1)


command = with_flags(
    compare_command,
    without=NOT_FOR_STUDIES,
    shown=("data", "seeds", "fraction", "shots", "keep", "until_decided", "delta", "workers"),
)


def _check_keeping(engine: str, settings: Mapping[str, Any]) -> None:
    """Refuse to keep models that cannot be kept."""
    if engine == "ray":
        raise UserError(
            "keep_models is on, and engine is 'ray', whose workers may be on other machines; it needs --engine local."
        )
    if settings.get("quantize"):
        raise UserError(
            f"keep_models is on, and quantize is {settings['quantize']!r}; quantised weights cannot be averaged, so it "
            "needs runs without --quantize."
        )


def _announce(design: Design, seeds: int, max_seeds: int | None, folder: Path) -> None:
    cells = len(design.cells)
    places = f" × {cells} tasks and sizes" if cells > 1 else ""
    if max_seeds is None:
        amount = f"{seeds} seeds{places}: {len(design.methods) * seeds * cells} runs"
    else:
        amount = f"up to {max_seeds} seeds{places}, until every method is decided"
    console.print(f"{len(design.methods)} methods × {shown(amount)}; records are in {shown(folder)}", soft_wrap=True)
    if max_seeds is None and seeds < 5:
        console.print("[dim]note:[/dim] fewer than 5 seeds give figures, but no verdict", soft_wrap=True)
    if design.keep == "dev":
        console.print("paper protocol: the epoch is selected on the development set", soft_wrap=True)


def print_verdicts(analysis: Analysis) -> None:
    """Print a table of verdicts for each task and amount of data, and the sentences behind them.

    Args:
        analysis: The analysis of a study.
    """
    places = dict.fromkeys((cell.task, cell.size) for cell in analysis.cells if cell.part == "validation")
    for task, size in places:
        cells = [cell for cell in analysis.cells if (cell.task, cell.size, cell.part) == (task, size, "validation")]
        outcomes = [name for name in cells[0].outcomes if OUTCOMES[name].is_in_terminal]
        title = f"{task}" if size == "all" and not cells[0].available else f"{task}, {amount_of_data(cells[0])}"
        table = plain_table(shown(title), *(OUTCOMES[name].column(analysis.metric) for name in outcomes))
        table.columns[0].overflow = "fold"
        first = min(30, max(len(title), *(len(cell.method) for cell in cells)))
        each = (console.width - first) // len(outcomes) - 1
        table.columns[0].min_width = first
        for column in table.columns[1:]:
            column.width = min(max(each, len("(+0.000)")), len("0.0000 (+0.000)"))
        for cell in cells:
            table.add_row(shown(cell.method), *(_cell(cell.outcomes[name], OUTCOMES[name]) for name in outcomes))
        console.print(table)
        for cell in cells:
            if comparison := cell.outcomes[SCORE.name].comparison:
                console.print(f"  {shown(comparison.sentence)}", soft_wrap=True)
        for ensemble in analysis.ensembles:
            if (ensemble.task, ensemble.size, ensemble.part) == (task, size, "validation"):
                console.print(f"  [dim]{shown(ensemble.sentence)}[/dim]", soft_wrap=True)
    for sentence in analysis.plan:
        console.print(shown(sentence), soft_wrap=True)
    for failure in analysis.failures:
        text = f"failed: {failure.method} seed {failure.seed} on {failure.task}: {failure.message}"
        console.print(shown(text), soft_wrap=True)


_COLOURS = {"helps": "green", "hurts": "red"}


def _cell(result: Result, outcome: Outcome) -> str:
    if result.mean is None:
        return "failed"
    mean = f"{result.mean:.2f} ×" if outcome.is_relative else f"{result.mean:.4f}"
    comparison = result.comparison
    if not comparison or comparison.difference is None:
        return mean
    verdict = comparison.verdict
    difference = "" if outcome.is_relative else f" ({comparison.difference:+.3f})"  # shown by the multiple
    if verdict == "too few seeds":
        return f"{mean}{difference}"  # stated once below the table
    colour, word = _COLOURS.get(verdict), outcome.verdicts.get(verdict, verdict)
    shown_verdict = f"[{colour}]{word}[/{colour}]" if colour else f"[dim]{word}[/dim]"
    return f"{mean}{difference}\n{shown_verdict}"


def _write_report(analysis: Analysis, folder: Path) -> None:
    from ..report.page import write_report

    page = write_report(analysis, folder)
    console.print(f"the report is {shown(page)}; open it in a browser", soft_wrap=True)
