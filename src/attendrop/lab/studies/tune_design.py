"""The design of a tuning study: methods with their search spaces, number of trials, and runs of each trial."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...methods._own import sources
from ...utils.checks import check_choice, check_whole
from ...utils.secrets import is_secret
from ..records import StudyConfiguration
from ..runs.losses import UNWEIGHTED
from ..runs.settings import all_settings
from .design import PLAIN, Contender, checksums_of_files, parse_contender, with_common_loss
from .sampling import SAMPLERS, choose_sampler, grid_size, points
from .search_space import Space, apply_point, make_spaces
from .spec import FROZEN, RunSpec, checksums_of_data, with_absolute_paths, without_paths

PROTOCOLS = ("honest", "paper")
# Of these a study that is started again may have more.
MAY_GROW = ("methods", "method_files", "spaces", "trials", "final_seeds")
_EXAMPLES = 3  # trials of each method that are checked before the search begins
TRIALS = 20  # of each method, unless the user says otherwise
FIRST_FINAL_SEED = 1000  # final runs have seeds that no trial had
# Settings of a single run, which a study decides or has no use for.
NOT_TUNED = (
    "preset", "resume", "resume_changed", "resume_from_checkpoint", "overwrite", "save_strategy",
    "load_best_model_at_end", "keep_epoch", "push_to_hub",
)  # fmt: skip


@dataclass(frozen=True)
class TuneConfig:
    """The design of a tuning study. See `make_tune_config`.

    Attributes:
        settings: The settings of `attendrop train` that all runs share, without method and seed.
        spaces: Method as the user wrote it -> its search space. `plain` is the first.
        sampler: "grid", "random", "qmc" or "tpe".
        trials: The number of trials of each method.
        repeats: The number of splits of the training data that score a trial.
        seed: The seed of the search and of the first split.
        protocol: "honest", or "paper": scored on the development set, at its best epoch, without splits.
        final_seeds: The number of runs on the development set for each setting at the end.
    """

    settings: Mapping[str, Any]
    spaces: Mapping[str, Space]
    sampler: str
    trials: int
    repeats: int
    seed: int
    protocol: str
    final_seeds: int

    @property
    def is_paper(self) -> bool:
        return self.protocol == "paper"

    @property
    def prunes(self) -> bool:
        """Whether trials with low scores are stopped."""
        return self.sampler == "tpe"

    def configuration(self, command: str = "") -> StudyConfiguration:
        """Return the configuration for `study.json`. Methods, trials and final seeds may be added later.

        Args:
            command: The command that the user gave.
        """
        spaces = [f"{method}: {name}={dimension}" for method, s in self.spaces.items() for name, dimension in s.items()]
        return StudyConfiguration(
            kind="tune", protocol=self.protocol, settings=dict(self.settings), methods=list(self.spaces), spaces=spaces,
            sampler=self.sampler, seed=self.seed, repeats=self.repeats, trials=self.trials,
            final_seeds=self.final_seeds, command=command, method_files=checksums_of_files(list(self.spaces)),
            data_files=checksums_of_data((self.settings,)),
        )  # fmt: skip

    def study_name(self, method: str) -> str:
        """Return the name of the search in Optuna's storage. The same command on another machine has the same one.

        Args:
            method: One of the methods.
        """
        space = {name: str(dimension) for name, dimension in self.spaces[method].items()}
        own = [without_paths(self.settings), self.sampler, self.seed, self.protocol, self.repeats, space]
        own += [files] if (files := checksums_of_files([method])) else []
        digest = hashlib.sha256(json.dumps(own, sort_keys=True, default=str).encode()).hexdigest()[:12]
        return f"attendrop {method} {digest}"

    def _spec(self, method: str, point: Mapping[str, Any], seed: int, role: str = "", **fields: Any) -> RunSpec:
        """Return a run with one point of the search space. Runs of different roles are not compared with each other."""
        settings = self.settings
        contender = parse_contender(method)
        axis = next((name for name in ("fraction", "shots") if settings.get(name) is not None), None)
        return RunSpec(
            settings={**apply_point(settings, contender, point), "seed": seed},
            method=f"{method} ({role})" if role else method,
            task=settings.get("task") or Path(str(settings["train_file"])).name,
            size=f"{axis}={settings[axis]}" if axis else "all",
            seed=seed,
            code=sources(contender.methods),
            **fields,
        )

    def trial_specs(self, method: str, point: Mapping[str, Any], number: int) -> list[RunSpec]:
        """Return the runs of a trial. A repeated grid has other seeds in each repetition.

        Args:
            method: One of the methods.
            point: The point of its search space.
            number: The number of the trial.
        """
        seed = self.seed
        if self.sampler == "grid":
            seed += self.repeats * (number // grid_size(self.spaces[method]))
        if self.is_paper:
            return [self._spec(method, point, seed, "search", keep="dev", trial=number)]
        return [self._spec(method, point, seed + fold, fold=fold, trial=number) for fold in range(self.repeats)]

    def examples(self) -> list[RunSpec]:
        """Return runs of the first trials of each method, to check that the method works."""
        specs = {}
        for method, space in self.spaces.items():
            for number, point in enumerate(points(space, self.sampler, min(self.trials, _EXAMPLES), self.seed)):
                spec = self.trial_specs(method, point, number)[0]
                specs[spec.id] = spec
        return list(specs.values())

    def final_specs(self, method: str, point: Mapping[str, Any], role: str = "") -> list[RunSpec]:
        """Return the runs of a setting on the development set.

        Args:
            method: One of the methods.
            point: The point of its search space.
            role: The role of the setting, if it is not the chosen one.
        """
        first = FIRST_FINAL_SEED + self.seed
        return [self._spec(method, point, seed, role) for seed in range(first, first + self.final_seeds)]


def make_tune_config(
    settings: Mapping[str, Any],
    spaces: Sequence[str] = (),
    trials: int | None = None,
    repeats: int = 3,
    sampler: str = "auto",
    protocol: str = "honest",
    final_seeds: int = 5,
) -> TuneConfig:
    """Make and check a configuration; a `UserError` names the first mistake.

    Args:
        settings: The settings of `attendrop train`; `method` lists the contenders to tune. `plain` is always tuned too.
        spaces: Search spaces such as "addrop.p=0.1..0.9"; all others have their defaults.
        trials: The number of trials of each method; None = 20, or all points of a grid.
        repeats: The number of splits of the training data that score a trial.
        sampler: "grid", "random", "qmc", "tpe", or "auto": QMC for few trials, TPE with pruning for many.
        protocol: "honest", or "paper", which selects on the development set.
        final_seeds: The number of runs on the development set for each setting at the end.
    """
    check_choice("protocol", protocol, PROTOCOLS)
    check_choice("sampler", sampler, SAMPLERS)
    counts = {"repeats": repeats, "final_seeds": final_seeds, **({} if trials is None else {"trials": trials})}
    for name, value in counts.items():
        check_whole(name, value, 1)
    given = _parsed(settings)
    for name in NOT_TUNED:
        if given.get(name):
            raise UserError(f"{name} is {given[name]!r}; it is for `attendrop train`, and cannot be tuned with.")
    shared = {name: value for name, value in given.items() if name not in ("method", "seed", "output_dir")}
    contenders = _with_plain(given.get("method") or [])
    is_paper = protocol == "paper"
    shared = with_common_loss(shared, contenders)
    if is_paper:
        shared.setdefault("class_weights", [UNWEIGHTED])
    made = make_spaces(contenders, shared, spaces, is_paper)
    sampler = "grid" if is_paper and sampler == "auto" else choose_sampler(sampler, trials or TRIALS)
    largest = max(grid_size(space) for space in made.values()) if sampler == "grid" else TRIALS
    if sampler == "grid" and trials is not None and trials < largest:
        raise UserError(
            f"trials is {trials}, and the grid has {largest:,} points; it must be at least that, or --space must be "
            "smaller, or --sampler another one."
        )
    return TuneConfig(
        settings=shared, spaces=made, sampler=sampler, trials=trials or largest, repeats=1 if is_paper else repeats,
        seed=given.get("seed", 42), protocol=protocol, final_seeds=final_seeds,
    )  # fmt: skip


def _parsed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in the form of a run, without tokens: a flag, a YAML file and a keyword give equal values."""
    known, parsed = all_settings(), {}
    for key, value in settings.items():
        name = str(key).replace("-", "_")
        if value is not None and not is_secret(name):
            parsed[name] = known[name].parse(value) if name in known else value
    return with_absolute_paths(parsed)


def _with_plain(methods: Sequence[str]) -> list[Contender]:
    """Return the contenders to tune, `plain` first."""
    contenders = [parse_contender(method) for method in methods]
    names = [contender.name for contender in contenders]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"method {name!r} is listed {names.count(name)} times; every method is tuned once.")
        if name.partition("@")[0] == FROZEN:
            raise UserError(f"method {name!r} has nothing to tune; compare it with `attendrop compare`.")
    return [parse_contender(PLAIN), *(contender for contender in contenders if contender.name != PLAIN)]
