"""`attendrop compare`: run every method on the same seeds and test the differences."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ...errors import UserError
from ...utils.checks import check_number, check_whole
from ...utils.secrets import is_secret
from ..report.analysis import Analysis, Result
from ..report.page.words import amount_of_data
from ..runs import make_config, read_yaml
from ..runs.hub_token import token_in_environment
from ..studies.compare import compare
from ..studies.data_sets import read_data_sets
from ..studies.design import PLAIN, Design, make_design
from ..studies.plan import changed_by_flags, design_of_plan, read_plan
from ..studies.spec import with_absolute_paths
from ..studies.splits import load_split_data
from ..tasks.outcomes import OUTCOMES, SCORE, Outcome, delta_options
from .arguments import as_arguments
from .console import console, plain_table, quiet_libraries, shown
from .data_tables import show_data
from .engine_options import LOCAL, EngineOptions, RetryFailed
from .flags import with_flags
from .study_view import StudyView

_STUDY = "Comparison"  # panel of these options in --help
_MOST_SEEDS = 40
_DELTAS = delta_options()

# Settings that the study decides, or that belong to a single run.
NOT_FOR_STUDIES = (
    "seed", "resume", "resume_changed", "overwrite", "save_strategy", "load_best_model_at_end", "keep_epoch",
)  # fmt: skip


def _option(help_text: str, *names: str) -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel=_STUDY)


@quiet_libraries()
def compare_command(
    settings: dict[str, Any],
    method: Annotated[
        list[str] | None,
        _option("A method: plain, frozen, name:field=value; methods joined with +, settings after @; repeat it."),
    ] = None,
    task: Annotated[list[str] | None, _option("A data set by name; may be repeated.")] = None,
    train_file: Annotated[
        list[str] | None, _option("Your own training data; several files are several data sets.")
    ] = None,
    data: Annotated[
        list[str] | None,
        _option("A data set of your own with a name: NAME=FILE, and its settings after @; may be repeated."),
    ] = None,
    seeds: Annotated[int, _option("Seeds that every method is trained with.")] = 10,
    first_seed: Annotated[int, _option("The first seed; the others follow it.")] = 0,
    fraction: Annotated[
        list[str] | None, _option("Train on this share of the examples; repeat it for a data-size curve.")
    ] = None,
    shots: Annotated[
        list[str] | None, _option("Train on this number of examples of each class; may be repeated.")
    ] = None,
    resample: Annotated[
        bool | None,
        _option(
            "With --fraction, --shots or --max-train-samples: every seed draws its own examples, the default; or all "
            "train on the same ones, and the verdicts are about these alone.",
            "--resample/--no-resample",
        ),
    ] = None,
    keep: Annotated[
        str,
        _option(
            "Which epoch is scored: last; split, the best on a tenth of the training data that is split off; or dev, "
            "the best on the validation data itself, as papers often do."
        ),
    ] = "last",
    score_on: Annotated[
        str,
        _option(
            "What is scored: validation, or rest, the validation examples and all training examples that a run does "
            "not draw; the verdicts are then about new examples."
        ),
    ] = "validation",
    score_epochs: Annotated[
        int, _option("The score of a run is the mean over this number of last epochs, such as 3.")
    ] = 1,
    until_decided: Annotated[
        bool, _option("Add seeds until every method is decided, with error rates corrected for it.", "--until-decided")
    ] = False,
    max_seeds: Annotated[int, _option("With --until-decided: the largest number of seeds.")] = _MOST_SEEDS,
    baseline: Annotated[
        str | None, _option("The method to compare the others with. [dim]\\[default: plain][/dim]")
    ] = None,
    matched: Annotated[
        bool,
        _option(
            "For each method with a learning rate or epochs of its own, add the baseline with the same ones.",
            "--matched",
        ),
    ] = False,
    delta: Annotated[float, _option("The smallest difference of the score that matters to you.")] = _DELTAS["delta"],
    delta_loss: Annotated[float, _option("Likewise for the loss.")] = _DELTAS["delta_loss"],
    delta_calibration: Annotated[float, _option("Likewise for calibration error and Brier score.")] = _DELTAS[
        "delta_calibration"
    ],
    keep_models: Annotated[
        bool, _option("Keep the trained models in the output folder, for `attendrop soup`.", "--keep-models")
    ] = False,
    same_head: Annotated[
        bool,
        _option(
            "Begin all runs with the new head of the first seed, so that their weights can be averaged; the verdicts "
            "are then about this head.",
            "--same-head",
        ),
    ] = False,
    plan: Annotated[
        str | None, _option("A plan from `attendrop plan`, which says everything; the report lists each deviation.")
    ] = None,
    deviate: Annotated[
        bool, _option("With --plan: flags may differ from the plan, as deviations.", "--deviate")
    ] = False,
    config: Annotated[
        str | None,
        typer.Option(help="A YAML file with settings of runs; flags take precedence.", rich_help_panel="Run"),
    ] = None,
    executor: EngineOptions = LOCAL,
    retry_failed: RetryFailed = False,
) -> None:
    """Compare with `settings`, the flags that the user gave; `with_flags` adds a flag for each setting of a run."""
    shared = {**(read_yaml(config) if config else {}), **settings}
    folder = shared.pop("output_dir", None)
    secrets = {name: shared.pop(name) for name in [*shared] if is_secret(name)}
    options = {
        "method": method, "task": task, "train_file": train_file, "data": data, "seeds": seeds,
        "first_seed": first_seed, "fraction": fraction, "shots": shots, "resample": resample, "keep": keep,
        "score_on": score_on, "score_epochs": score_epochs, "until_decided": until_decided, "max_seeds": max_seeds,
        "baseline": baseline, "matched": matched,
        "delta": delta, "delta_loss": delta_loss, "delta_calibration": delta_calibration, "same_head": same_head,
    }  # fmt: skip
    planned = None if plan is None else read_plan(plan)
    if plan is None or planned is None:
        if deviate:
            raise UserError("deviate is on, and there is no plan to deviate from; give one with --plan.")
        chosen = choose(dict(shared), options)
    else:
        given = _given(dict(shared), options)
        chosen = Chosen.of_study(changed_by_flags(planned, given, plan, deviate))
    design, shared = chosen.design, {**chosen.design.settings}
    if keep_models:
        _check_keeping(executor.engine, shared)
    example = make_config({**design.runs(design.cells[0], 0)[0].settings, **secrets})
    place = Path(folder or Path("studies", example.output_dir.name.removesuffix("-plain")))
    made = executor.make(shared)
    more: dict[str, Any] = {"keep_models": True} if keep_models else {}
    if plan is not None:
        more |= {"plan": plan, **({"deviate": True} if deviate else {})}
    words = {**settings, **({"config": config} if config else {}), **_as_given(options), **more}
    words["output_dir"] = str(place)
    if plan is None:
        words["method"] = list(design.methods)
    command = shlex.join(["attendrop", "compare", *as_arguments(words)])
    seeds, max_seeds = chosen.seeds or _DEFAULTS["seeds"], chosen.max_seeds or 0
    until_decided, deltas = chosen.max_seeds is not None, chosen.deltas
    _announce(design, seeds, max_seeds if until_decided else None, place)
    try:
        with token_in_environment(example):
            for cell in design.task_cells:
                first = design.runs(cell, 0)[0]
                show_data(load_split_data(first, make_config(dict(first.settings))))
            analysis = compare(
                design, place, made, seeds=seeds, max_seeds=max_seeds if until_decided else None, deltas=deltas,
                command=command, retry_failed=retry_failed, keep_models=keep_models, watcher=StudyView(),
                plan=planned,
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


@dataclass(frozen=True)
class Chosen:
    """The settings that start a comparison: its design, seeds, and the deltas that differ from the usual ones."""

    design: Design
    seeds: int | None
    max_seeds: int | None
    deltas: dict[str, float]

    @classmethod
    def of_study(cls, study: Mapping[str, Any]) -> Chosen:
        deltas = {name: value for name, value in study["delta"].items() if value != OUTCOMES[name].delta}
        return cls(design_of_plan(study), study.get("seeds"), study.get("max_seeds"), deltas)


def choose(shared: dict[str, Any], options: Mapping[str, Any]) -> Chosen:
    """Return what the flags choose.

    Args:
        shared: The settings of runs.
        options: The options of the comparison, by name.
    """
    if not options["method"]:
        raise UserError("there is no method to compare; give at least one with --method, such as addrop.")
    check_whole("seeds", options["seeds"], 1)
    check_whole("first_seed", options["first_seed"], 0)
    deltas = _deltas(options)
    for name, value in deltas.items():
        check_number(f"delta of {name}", value)
    tasks = options["task"] or ([shared.pop("task")] if "task" in shared else [])
    in_yaml = shared.pop("train_file", [])
    files = options["train_file"] or (in_yaml if isinstance(in_yaml, list) else [in_yaml])
    sets = read_data_sets(options["data"] or (), files) if options["data"] or len(files) > 1 else {}
    shared |= {"train_file": files[0]} if files and not sets else {}
    same = ("keep", "resample", "first_seed", "baseline", "same_head", "matched", "score_on", "score_epochs")
    design = make_design(
        shared, options["method"], tasks=tuple(tasks), data=sets, sizes=_sizes(options["fraction"], options["shots"]),
        **{name: options[name] for name in same},
    )  # fmt: skip
    max_seeds = options["max_seeds"] if options["until_decided"] else None
    return Chosen(design, None if max_seeds else options["seeds"], max_seeds, deltas)


def _deltas(options: Mapping[str, Any]) -> dict[str, float]:
    """Return the deltas that differ from the usual ones."""
    every = {name: options[of.delta_option] for name, of in OUTCOMES.items() if of.delta_option}
    return {name: value for name, value in every.items() if value != OUTCOMES[name].delta}


_DEFAULTS: dict[str, Any] = {
    "seeds": 10,
    "first_seed": 0,
    "keep": "last",
    "max_seeds": _MOST_SEEDS,
    "score_on": "validation",
    "score_epochs": 1,
    **_DELTAS,
}


def _as_given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that differ from their defaults."""
    given = {
        name: value
        for name, value in options.items()
        if value is not None and value is not False and value != [] and value != _DEFAULTS.get(name)
    }
    return {**given, "resample": False} if options["resample"] is False else given


def _given(shared: dict[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the user gave besides a plan, by the names of a plan."""
    given: dict[str, Any] = {}
    options = _as_given(options)
    if "task" in shared:
        given["tasks"] = [shared.pop("task")]
    for name in ("data", "baseline", "matched", "train_file"):
        if name in options:
            raise UserError(f"{name} is given, and --plan says what is compared; leave it out.")
    if "task" in options:
        given["tasks"] = options["task"]
    if "method" in options:
        given["methods"] = [PLAIN, *(method for method in options["method"] if method != PLAIN)]
    if "fraction" in options or "shots" in options:
        given["sizes"] = list(_sizes(options.get("fraction"), options.get("shots")))
    same = ("first_seed", "keep", "resample", "same_head", "score_on", "score_epochs")
    given |= {name: options[name] for name in same if name in options}
    if options.get("until_decided"):
        given["max_seeds"] = options.get("max_seeds", _MOST_SEEDS)
    elif "seeds" in options:
        given["seeds"] = options["seeds"]
    given["delta"] = _deltas({**_DEFAULTS, **options})
    given["settings"] = with_absolute_paths(shared)
    return given


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


def _sizes(fractions: Sequence[str] | None, shots: Sequence[str] | None) -> tuple[str, ...]:
    sizes = [*(f"fraction={value}" for value in fractions or ()), *(f"shots={value}" for value in shots or ())]
    for size in sizes:
        if sizes.count(size) > 1:
            raise UserError(f"{size.replace('=', ' is ')} is given {sizes.count(size)} times; every size is run once.")
    return tuple("all" if size in ("fraction=1", "fraction=1.0") else size for size in sizes) or ("all",)


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
