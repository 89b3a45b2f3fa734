"""The flags that `attendrop compare` and `attendrop plan` share: what is compared, on what, and with how many seeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any

import typer

from ...errors import UserError
from ...utils.checks import check_number, check_whole
from ..studies.data_sets import read_data_sets
from ..studies.design import PLAIN, Design, make_design
from ..studies.plan import design_of_plan
from ..studies.spec import with_absolute_paths
from ..tasks.outcomes import OUTCOMES, delta_options

_STUDY = "Comparison"  # panel of these options in --help
_DELTAS = delta_options()
# The options that a design has by the same names.
_OF_DESIGN = ("first_seed", "keep", "resample", "same_head", "score_on", "score_epochs")


def study_option(help_text: str, *names: str) -> Any:
    """Return an option in the panel of comparisons."""
    return typer.Option(*names, help=help_text, rich_help_panel=_STUDY)


@dataclass(frozen=True)
class Chosen:
    """The settings that start a comparison: its design, seeds, and the deltas that differ from the usual ones."""

    design: Design
    seeds: int | None
    max_seeds: int | None
    deltas: dict[str, float]

    @classmethod
    def of_study(cls, study: Mapping[str, Any]) -> Chosen:
        """Return what a plan, perhaps changed by flags, starts."""
        deltas = {name: value for name, value in study["delta"].items() if value != OUTCOMES[name].delta}
        return cls(design_of_plan(study), study.get("seeds"), study.get("max_seeds"), deltas)


@dataclass(frozen=True)
class ComparisonOptions:
    """What is compared. `with_flags` makes a flag of each field."""

    method: Annotated[
        list[str] | None,
        study_option("A method: plain, frozen, name:field=value; methods joined with +, settings after @; repeat it."),
    ] = None
    task: Annotated[list[str] | None, study_option("A data set by name; may be repeated.")] = None
    train_file: Annotated[
        list[str] | None, study_option("Your own training data; several files are several data sets.")
    ] = None
    data: Annotated[
        list[str] | None,
        study_option("A data set of your own with a name: NAME=FILE, and its settings after @; may be repeated."),
    ] = None
    seeds: Annotated[int, study_option("Seeds that every method is trained with.")] = 10
    first_seed: Annotated[int, study_option("The first seed; the others follow it.")] = 0
    fraction: Annotated[
        list[str] | None, study_option("Train on this share of the examples; repeat it for a data-size curve.")
    ] = None
    shots: Annotated[
        list[str] | None, study_option("Train on this number of examples of each class; may be repeated.")
    ] = None
    resample: Annotated[
        bool | None,
        study_option(
            "With --fraction, --shots or --max-train-samples: every seed draws its own examples, the default; or all "
            "train on the same ones, and the verdicts are about these alone.",
            "--resample/--no-resample",
        ),
    ] = None
    keep: Annotated[
        str,
        study_option(
            "Which epoch is scored: last; split, the best on a tenth of the training data that is split off; or dev, "
            "the best on the validation data itself, as papers often do."
        ),
    ] = "last"
    score_on: Annotated[
        str,
        study_option(
            "What is scored: validation, or rest, the validation examples and all training examples that a run does "
            "not draw; the verdicts are then about new examples."
        ),
    ] = "validation"
    score_epochs: Annotated[
        int, study_option("The score of a run is the mean over this number of last epochs, such as 3.")
    ] = 1
    until_decided: Annotated[
        bool,
        study_option("Add seeds until every method is decided, with error rates corrected for it.", "--until-decided"),
    ] = False
    max_seeds: Annotated[int, study_option("With --until-decided: the largest number of seeds.")] = 40
    baseline: Annotated[
        str | None, study_option("The method to compare the others with. [dim]\\[default: plain][/dim]")
    ] = None
    matched: Annotated[
        bool,
        study_option(
            "For each method with a learning rate or epochs of its own, add the baseline with the same ones.",
            "--matched",
        ),
    ] = False
    delta: Annotated[float, study_option("The smallest difference of the score that matters to you.")] = _DELTAS[
        "delta"
    ]
    delta_loss: Annotated[float, study_option("Likewise for the loss.")] = _DELTAS["delta_loss"]
    delta_calibration: Annotated[float, study_option("Likewise for calibration error and Brier score.")] = _DELTAS[
        "delta_calibration"
    ]
    same_head: Annotated[
        bool,
        study_option(
            "Begin all runs with the new head of the first seed, so that their weights can be averaged; the verdicts "
            "are then about this head.",
            "--same-head",
        ),
    ] = False

    def choose(self, shared: dict[str, Any]) -> Chosen:
        """Return what the flags choose.

        Args:
            shared: The settings of runs. A task and files are taken out of it.
        """
        if not self.method:
            raise UserError("there is no method to compare; give at least one with --method, such as addrop.")
        check_whole("seeds", self.seeds, 1)
        check_whole("first_seed", self.first_seed, 0)
        for name, value in self.deltas.items():
            check_number(f"delta of {name}", value)
        tasks = self.task or ([shared.pop("task")] if "task" in shared else [])
        in_yaml = shared.pop("train_file", [])
        files = self.train_file or (in_yaml if isinstance(in_yaml, list) else [in_yaml])
        sets = read_data_sets(self.data or (), files) if self.data or len(files) > 1 else {}
        shared |= {"train_file": files[0]} if files and not sets else {}
        design = make_design(
            shared, self.method, tasks=tuple(tasks), data=sets, sizes=self.sizes, baseline=self.baseline,
            matched=self.matched, **{name: getattr(self, name) for name in _OF_DESIGN},
        )  # fmt: skip
        max_seeds = self.max_seeds if self.until_decided else None
        return Chosen(design, None if max_seeds else self.seeds, max_seeds, self.deltas)

    @property
    def deltas(self) -> dict[str, float]:
        """The deltas that differ from the usual ones."""
        every = {name: getattr(self, of.delta_option) for name, of in OUTCOMES.items() if of.delta_option}
        return {name: value for name, value in every.items() if value != OUTCOMES[name].delta}

    @property
    def sizes(self) -> tuple[str, ...]:
        """The amounts of training data."""
        sizes = [*(f"fraction={value}" for value in self.fraction or ()), *(f"shots={n}" for n in self.shots or ())]
        for size in sizes:
            if sizes.count(size) > 1:
                times = sizes.count(size)
                raise UserError(f"{size.replace('=', ' is ')} is given {times} times; every size is run once.")
        return tuple("all" if size in ("fraction=1", "fraction=1.0") else size for size in sizes) or ("all",)

    def given(self) -> dict[str, Any]:
        """Return the options that differ from their defaults."""
        defaults = {field.name: field.default for field in fields(self)}
        return {name: value for name, value in asdict(self).items() if value != defaults[name] and value != []}

    def beside_plan(self, shared: dict[str, Any]) -> dict[str, Any]:
        """Return what the user gave besides a plan, by the names of a plan.

        Args:
            shared: The settings of runs that the user gave. A task is taken out of it.
        """
        options = self.given()
        for name in ("data", "baseline", "matched", "train_file"):
            if name in options:
                raise UserError(f"{name} is given, and --plan says what is compared; leave it out.")
        given: dict[str, Any] = {name: options[name] for name in _OF_DESIGN if name in options}
        if tasks := self.task or ([shared.pop("task")] if "task" in shared else []):
            given["tasks"] = tasks
        if self.method:
            given["methods"] = [PLAIN, *(method for method in self.method if method != PLAIN)]
        if self.fraction or self.shots:
            given["sizes"] = list(self.sizes)
        if self.until_decided:
            given["max_seeds"] = self.max_seeds
        elif "seeds" in options:
            given["seeds"] = self.seeds
        return {**given, "delta": self.deltas, "settings": with_absolute_paths(shared)}


DEFAULTS = ComparisonOptions()
