"""`attendrop tune`: searches the fields of methods and the learning rate, and scores the chosen settings."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from ...errors import UserError
from ...utils.secrets import is_secret
from ...utils.shell import command_line
from ..records import TUNING_FILE, DevelopmentResult, TuningResult
from ..records.tuning import ChosenSetting
from ..report.page import write_report
from ..report.page.words import PAPER_LABEL
from ..runs import make_config, read_yaml
from ..runs.data import load_data
from ..runs.hub_token import token_in_environment
from ..studies.analysis import analyse
from ..studies.design import PLAIN
from ..studies.splits import DATA_SEED
from ..studies.trials import load_optuna
from ..studies.tune import Setting, TuneListener, Tuner, tune
from ..studies.tune_design import NOT_TUNED, TuneConfig, make_tune_config
from ..studies.tune_result import summarize
from .arguments import as_arguments
from .console import console, plain_table, quiet_libraries, shown
from .data_tables import show_data
from .engine_options import LOCAL, EngineOptions, RetryFailed
from .flags import ConfigFile, with_flags
from .study_view import StudyView

_SEARCH = "Search"  # the panel of these options in --help


@quiet_libraries()
def tune_command(
    settings: dict[str, Any],
    config: ConfigFile = None,
    space: Annotated[
        list[str] | None,
        typer.Option(
            help="What is searched: addrop.p=0.1..0.9, learning_rate=log:1e-5..1e-4 or layers=all,first; may be "
            "repeated. All other fields have their default ranges.",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            help="Settings that are tried for each method, plain included; 20, or all points of a grid.",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    repeats: Annotated[
        int, typer.Option(help="Splits of the training data that score a trial.", rich_help_panel=_SEARCH)
    ] = 3,
    sampler: Annotated[
        str,
        typer.Option(
            help="grid, random, qmc, tpe, or auto: qmc for few trials, tpe with pruning from 30 trials on.",
            rich_help_panel=_SEARCH,
        ),
    ] = "auto",
    protocol: Annotated[
        str,
        typer.Option(
            help="honest, or paper: as papers often do, select the setting and the epoch on the development set.",
            rich_help_panel=_SEARCH,
        ),
    ] = "honest",
    final_seeds: Annotated[
        int, typer.Option(help="Runs of each chosen setting on the development set.", rich_help_panel=_SEARCH)
    ] = 5,
    storage: Annotated[
        str | None,
        typer.Option(
            help="Optuna storage that several machines share: a database URL or a journal file. By default, a file in "
            "the output folder.",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    executor: EngineOptions = LOCAL,
    retry_failed: RetryFailed = False,
) -> None:
    """Tune with `settings`, the flags that the user gave; `with_flags` adds a flag for each setting."""
    settings = {**(read_yaml(config) if config else {}), **settings}
    options = {"repeats": repeats, "sampler": sampler, "protocol": protocol, "final_seeds": final_seeds}
    search = make_tune_config(settings, space or (), trials, **options)  # type: ignore[arg-type]
    load_optuna()
    one_run = make_config({**search.settings, **_tokens(settings)})
    name = one_run.output_dir.name.removesuffix("-plain")
    folder = Path(settings.get("output_dir") or Path("studies", f"tune-{name}"))
    more = {"space": space or [], "trials": search.trials, **options, "output_dir": str(folder)}
    words = as_arguments({**search.settings, "method": list(search.spaces), "seed": search.seed, **more})
    command = command_line("attendrop", "tune", *words)
    made = executor.make(search.settings)
    _announce(search, folder)
    with token_in_environment(one_run), closing(made):
        show_data(load_data(one_run, DATA_SEED))
        try:
            tuner = tune(search, folder, made, storage, Lines(search), StudyView(), command, retry_failed)
        except KeyboardInterrupt:
            _say("stopped; finished runs are kept; rerun the command to continue")
            raise typer.Exit(130) from None
    if tuner.running_elsewhere:
        _say(
            f"{tuner.running_elsewhere} trials are still running in other drivers; the driver that ends last scores "
            "the chosen settings on the development set, or rerun this command when they have ended."
        )
        return
    print_result(tuner, folder)
    page = write_report(analyse(folder), folder)
    _say(f"the report is {page}; open it in a browser")


command = with_flags(
    tune_command,
    without=NOT_TUNED,
    shown=("space", "trials", "repeats", "sampler", "protocol", "final_seeds", "seed", "workers"),
)


def _tokens(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if is_secret(name)}


def _say(text: str) -> None:
    console.print(shown(text), soft_wrap=True)


def _announce(config: TuneConfig, folder: Path) -> None:
    """Print the search space and the sampler."""
    samplers = {
        "grid": "all points of a grid",
        "random": "random points",
        "qmc": "quasi-random points (QMC, for few trials)",
        "tpe": "TPE, which learns from earlier trials, and stops trials that fall behind",
    }
    table = plain_table("method", "searched")
    for method, space in config.spaces.items():
        table.add_row(shown(method), shown("  ".join(f"{name}={dimension}" for name, dimension in space.items())))
    console.print(table)
    _say(f"{config.trials} trials for each method, {samplers[config.sampler]}; everything is in {folder}")
    if config.is_paper:
        _say(PAPER_LABEL)
    else:
        _say(f"each trial is scored on {config.repeats} splits of the training data, not on the development set")


class Lines(TuneListener):
    """Prints a line for each trial.

    Args:
        config: The configuration of the search.
    """

    def __init__(self, config: TuneConfig) -> None:
        self.config = config

    def trial_ended(self, method: str, number: int, state: str, score: float | None) -> None:
        result = state if score is None else f"{score:.4f}"
        _say(f"{method}: trial {number + 1} of {self.config.trials}: {result}")

    def search_ended(self, settings: Sequence[Setting]) -> None:
        if settings:
            _say(f"the search has ended; {self.config.final_seeds} runs of each chosen setting on the development set")


def print_result(tuner: Tuner, folder: Path) -> None:
    """Print the chosen settings, their scores, and the commands to train with them.

    Args:
        tuner: The search, which has ended.
        folder: The folder of the study.
    """
    config, result = tuner.config, summarize(tuner)
    if not result.chosen:
        first = next(trial.error for trial in result.trials if trial.error)
        raise UserError(f"all trials failed; the first one: {first.rstrip('.')}.")
    table = plain_table("method", "chosen setting", "search score", "dev score", "dev score, median random setting")
    table.columns[1].no_wrap = True
    table.title, table.title_justify = PAPER_LABEL if config.is_paper else tuner.metric, "left"
    for method in config.spaces:
        table.add_row(*_row(method, result))
    console.print(table)
    searched = "the development set, best epoch" if config.is_paper else f"{config.repeats} splits of the training data"
    fresh = ", the last epoch of seeds that were not searched" if config.is_paper else ""
    _say(f"search score: mean {tuner.metric} on {searched}")
    _say(f"dev score: {tuner.metric} on the development set, mean and deviation over {config.final_seeds} seeds{fresh}")
    for method, chosen in result.chosen.items():
        _say(f"train with {method}: {train_command(chosen.settings or {})}")
    if len(result.chosen) > 1:
        _say(f"compare what was chosen, with other seeds: {compare_command(result.chosen, config.settings)}")
    _say(f"all trials are in {folder / TUNING_FILE}")


def _row(method: str, result: TuningResult) -> list[str]:
    chosen = result.chosen.get(method)
    if chosen is None:
        failed = sum(trial.method == method and trial.state == "failed" for trial in result.trials)
        return [shown(method), f"none: {failed} trials failed", "", "", ""]
    point = "\n".join(shown(f"{name}={_text(value)}") for name, value in chosen.point.items())
    dev = result.dev[method]
    median = _spread(dev["median"]) if "median" in dev else "the same setting"
    return [shown(method), point or PLAIN, f"{chosen.score:.4f}", _spread(dev["chosen"]), median]


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _spread(dev: DevelopmentResult) -> str:
    values = list(dev.values.values())
    if not values:
        return shown(f"failed: {dev.errors[0]}") if dev.errors else ""
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    failed = f", {len(dev.errors)} failed" if dev.errors else ""
    return f"{dev.mean:.4f}{spread}{failed}"


def compare_command(chosen: Mapping[str, ChosenSetting], shared: Mapping[str, Any]) -> str:
    """Return the command that compares the chosen settings of all methods, with seeds that no trial had.

    Args:
        chosen: Method -> its chosen setting.
        shared: The settings of the search, which all methods have.
    """
    names = {}
    for method, setting in chosen.items():
        settings = setting.settings or {}
        own = [f"{name}={value}" for name, value in settings.items() if name != "method" and value != shared.get(name)]
        methods = "+".join(settings.get("method") or [PLAIN])
        names[method] = f"{methods}@{','.join(own)}" if own else methods
    words = {**shared, "method": list(names.values())}
    if PLAIN in names:
        words["baseline"] = names[PLAIN]
    return command_line("attendrop", "compare", *as_arguments(words))


def train_command(settings: Mapping[str, Any]) -> str:
    """Return the command that trains with chosen settings.

    Args:
        settings: The settings of a trial.
    """
    return command_line("attendrop", "train", *as_arguments(settings))
