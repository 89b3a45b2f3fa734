"""The design of a comparison: every method on the same seeds, tasks and amounts of data."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import UserError, on_one_line
from ...methods import parse_method
from ...methods._own import checksum, sources
from ...utils.checks import check_choice, check_whole
from ..records import StudyConfiguration
from ..runs.losses import UNWEIGHTED
from ..runs.recipe import needs_model_loss
from ..runs.settings import make_config
from .data_sets import SET_BY_THE_STUDY, add_setting, check_data_sets, refuse_secrets
from .spec import FROZEN, KEEP, SCORE_ON, RunSpec, checksums_of_data, with_absolute_paths

PLAIN = "plain"  # fine-tuning without a method
_JOINED = re.compile(r"\+(?=\s*(?:[a-zA-Z~]|\.{0,2}/))")  # before a name or the path of a file, not in 1e+3
_DRAWS_EXAMPLES = ("fraction", "shots", "max_train_samples")  # settings that train on a part of the examples
_SINCE = {"same_head": False, "data": {}, "score_on": "validation", "score_epochs": 1}  # older designs lack them
LENGTH_AND_RATE = ("learning_rate", "num_train_epochs", "max_steps")  # in which a matched control equals its method


class Contender(NamedTuple):
    """A method or combination in a study, as the user wrote it: `addrop:p=0.3,q=0.3+mixout@learning_rate=3e-5`.

    Attributes:
        name: The text itself.
        methods: The methods that act together; none for `plain` and `frozen`.
        settings: Settings of its own, which the others do not share.
    """

    name: str
    methods: list[str]
    settings: dict[str, str]


def parse_contender(text: str) -> Contender:
    """Read one `--method` of a study, and check its methods; a method in a file is run.

    Args:
        text: The text of the user, such as `plain@learning_rate=5e-5`.
    """
    contender = read_contender(text)
    for method in contender.methods:
        try:
            parse_method(method)
        except ValueError as error:
            raise UserError(f"{on_one_line(error)}.") from None
    return contender


def read_contender(text: str) -> Contender:
    """Read a contender without checking its methods. `+` joins methods that act together, `@` begins settings.

    Args:
        text: The contender, which may be that of a study of someone else: no file is run.
    """
    joined, has_settings, rest = text.strip().partition("@")
    method, settings = joined.strip(), dict[str, str]()
    refuse_secrets(rest, f"method {method!r}")
    for part in rest.split(",") if has_settings else []:
        name, equals, value = part.partition("=")
        if not equals or not name.strip() or name.strip() in SET_BY_THE_STUDY:
            raise UserError(
                f"method {text!r} has {part!r} after the @; settings of its own are written name=value, with commas "
                "between them, and are settings of `attendrop train` that describe no output and no seed."
            )
        add_setting(settings, name, value, f"method {method!r}")
    methods = [] if joined.strip() in (PLAIN, FROZEN) else [part.strip() for part in _JOINED.split(joined)]
    return Contender(text.strip(), methods, settings)


def checksums_of_files(methods: Sequence[str]) -> dict[str, str]:
    """Return the checksums of the files of one's own methods, for study.json; empty if there are none.

    Args:
        methods: The contenders, as the user wrote them.
    """
    files = sources(name for method in methods for name in parse_contender(method).methods)
    return {os.path.normpath(file): checksum(text) for file, text in files.items()}


def matched_controls(methods: Sequence[str], settings: Mapping[str, Any]) -> list[str]:
    """Return the baseline with the learning rate and the epochs of each method that has its own.

    Args:
        methods: The contenders, the baseline first.
        settings: The settings that all runs share.
    """
    baseline, *others = (parse_contender(method) for method in methods)
    shared = {str(name).replace("-", "_"): value for name, value in settings.items()}

    def trained(of: Contender) -> dict[str, Any]:
        values = {name: of.settings.get(name, shared.get(name)) for name in LENGTH_AND_RATE}
        return {name: float(value) for name, value in values.items() if value is not None}

    controls: dict[str, None] = {}
    known = [trained(of) for of in (baseline, *others) if _same_method(of, baseline)]
    for of in others:
        if of.settings.get("preset"):
            raise UserError(
                f"matched is on, and method {of.name!r} takes its learning rate and epochs from a preset; write them "
                "after the @ instead, as in addrop@learning_rate=2e-5,num_train_epochs=10."
            )
        if trained(of) in known or of.name.partition("@")[0].strip() == FROZEN:
            continue
        known.append(trained(of))
        own = {name: value for name, value in baseline.settings.items() if name not in LENGTH_AND_RATE}
        own |= {name: of.settings[name] for name in LENGTH_AND_RATE if name in of.settings}
        written = ",".join(f"{name}={value}" for name, value in own.items())
        controls[f"{baseline.name.partition('@')[0].strip()}{'@' * bool(written)}{written}"] = None
    return list(controls)


def _same_method(one: Contender, other: Contender) -> bool:
    """Return whether two contenders differ in the learning rate and the epochs alone."""
    own, others = (
        {name: value for name, value in of.settings.items() if name not in LENGTH_AND_RATE} for of in (one, other)
    )
    return one.name.partition("@")[0].strip() == other.name.partition("@")[0].strip() and own == others


def is_control(method: str, baseline: str) -> bool:
    """Return whether a contender is the baseline, but for the learning rate and the epochs."""
    return _same_method(read_contender(method), read_contender(baseline))


def with_common_loss(settings: Mapping[str, Any], contenders: Sequence[Contender]) -> dict[str, Any]:
    """Return the shared settings, without weights of classes where one of the contenders can have none.

    All contenders must have the same loss, and a run chooses weights for classes of different sizes by itself.

    Args:
        settings: Settings of `attendrop train` that all runs share.
        contenders: The contenders to compare.
    """
    needs_own = any(needs_model_loss([parse_method(text) for text in of.methods]) for of in contenders)
    is_paper = any(of.settings.get("preset") == "paper" for of in contenders)
    given = {str(name).replace("-", "_") for name in settings}
    if (needs_own or is_paper) and "class_weights" not in given:
        return {**settings, "class_weights": [UNWEIGHTED]}
    return dict(settings)


@dataclass(frozen=True)
class Design:
    """The design of a comparison: every method on the same seeds, tasks and amounts of data.

    Attributes:
        settings: Settings of `attendrop train` that all runs share.
        methods: The contenders, as the user wrote them. The first one is the baseline.
        tasks: Names of tasks. Empty if the data are the user's files.
        data: Name of a data set -> the settings that belong to it: its files and columns. Empty if the shared settings
            name one training file.
        sizes: Amounts of training data: "all", "fraction=0.1" or "shots=16".
        keep: Which epoch is scored, see `RunSpec`.
        resample: Whether the seed decides which examples are trained on.
        score_on: What is scored, see `RunSpec`.
        score_epochs: The number of last epochs whose mean score is the score of a run.
        first_seed: The first seed; the others follow it.
        same_head: Whether all runs have the new head of the first seed, so that their weights can be averaged.
    """

    settings: Mapping[str, Any]
    methods: tuple[str, ...]
    tasks: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ("all",)
    keep: str = "last"
    resample: bool = False
    first_seed: int = 0
    same_head: bool = False
    data: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    score_on: str = "validation"
    score_epochs: int = 1

    @property
    def baseline(self) -> str:
        return self.methods[0]

    @property
    def cells(self) -> list[tuple[str, str]]:
        """Every task with every amount of data."""
        names = (*self.tasks, *self.data) or (Path(str(self.settings["train_file"])).name,)
        return [(task, size) for task in names for size in self.sizes]

    @property
    def task_cells(self) -> list[tuple[str, str]]:
        """Every task with the first amount of data."""
        return [cell for cell in self.cells if cell[1] == self.sizes[0]]

    def runs(self, cell: tuple[str, str], seed: int) -> list[RunSpec]:
        """Return the runs of one seed on one task and amount of data: one for each method.

        Args:
            cell: Task and size, one of `cells`.
            seed: Number of the seed, from 0.
        """
        return [self._run(cell, self.first_seed + seed, parse_contender(method)) for method in self.methods]

    def all_runs(self, seeds: int) -> list[RunSpec]:
        """Return all runs with this number of seeds.

        Runs are grouped by task, so that workers rarely change their model, then by seed, so that pairs complete early.
        """
        return [run for cell in self.cells for seed in range(seeds) for run in self.runs(cell, seed)]

    def _run(self, cell: tuple[str, str], seed: int, contender: Contender) -> RunSpec:
        task, size = cell
        settings = {**self.settings, **contender.settings, "method": contender.methods, "seed": seed}
        settings |= self._data_of(task)
        if size != "all":
            name, _, value = size.partition("=")
            settings[name] = value
        return RunSpec(
            settings, contender.name, task, seed, size, self.keep, self.resample,
            score_on=self.score_on, score_epochs=self.score_epochs,
            head_seed=self.first_seed if self.same_head else None, details=seed == self.first_seed,
            code=sources(contender.methods),
        )  # fmt: skip

    def _data_of(self, task: str) -> Mapping[str, Any]:
        return self.data.get(task, {"task": task} if self.tasks else {})

    def configuration(self, **more: Any) -> StudyConfiguration:
        """Return the configuration of a study with this design.

        Args:
            **more: Its other fields.
        """
        return StudyConfiguration(
            methods=[*self.methods], settings=dict(self.settings), tasks=[*self.tasks], sizes=[*self.sizes],
            data={name: dict(own) for name, own in self.data.items()}, keep=self.keep, resample=self.resample,
            first_seed=self.first_seed, same_head=self.same_head or None, method_files=checksums_of_files(self.methods),
            data_files=checksums_of_data({**self.settings, **self._data_of(task)} for task, _ in self.cells),
            score_on=None if self.score_on == SCORE_ON[0] else self.score_on,
            score_epochs=None if self.score_epochs == 1 else self.score_epochs, **more,
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Return the design as values that JSON can hold."""
        values = asdict(self)
        for name, default in _SINCE.items():
            if values[name] == default:
                del values[name]  # keeps the configuration of older studies unchanged
        files = checksums_of_files(self.methods)
        return {**values, "method_files": files} if files else values


def make_design(settings: Mapping[str, Any], methods: Sequence[str], **fields: Any) -> Design:
    """Make and check the design of a comparison.

    Args:
        settings: Settings of `attendrop train` that all runs share.
        methods: The contenders, as the user wrote them.
        **fields: Other fields of `Design`, and `baseline`, the name of one of the methods. Without it the baseline is
            `plain`, which is added if it is not among the methods. `resample` is on by default where runs train on a
            part of the examples. `matched` adds the baseline with the learning rate and epochs of each method that
            has its own.
    """
    baseline, is_matched = fields.pop("baseline", None), fields.pop("matched", False)
    names = [parse_contender(method).name for method in methods]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"method {name!r} is listed {names.count(name)} times; every method is compared once.")
    if baseline is not None and baseline not in names:
        raise UserError(f"baseline is {baseline!r}; it must be one of the methods: {', '.join(names)}.")
    first = baseline or PLAIN
    if is_matched:
        ordered = [first, *(name for name in names if name != first)]
        names += [name for name in matched_controls(ordered, settings) if name not in names]
    if "data" in fields:
        fields["data"] = {name: with_absolute_paths(own) for name, own in fields["data"].items()}
    contenders = [parse_contender(name) for name in names]
    settings = with_common_loss(with_absolute_paths(settings), contenders)
    each = (settings, *fields.get("data", {}).values(), *(contender.settings for contender in contenders))
    given = {name.replace("-", "_") for of in each for name, value in of.items() if value is not None}
    draws = set(fields.get("sizes", ("all",))) != {"all"} or not given.isdisjoint(_DRAWS_EXAMPLES)
    if fields.get("resample") is None:
        fields["resample"] = draws
    design = Design(dict(settings), (first, *(name for name in names if name != first)), **fields)
    if len(design.methods) < 2:
        raise UserError("there is one method only; give at least two with --method, such as plain and addrop.")
    check_choice("keep", design.keep, KEEP)
    if design.resample and not draws:
        raise UserError(
            "resample is on, but all examples are trained on; it needs --fraction, --shots or --max-train-samples to "
            "choose from them."
        )
    _check_scoring(design, draws)
    for name in ("method", "seed", *(("task",) if design.tasks else ())):
        if name in design.settings:
            raise UserError(f"{name} is decided by the study and cannot be a shared setting.")
    check_data_sets(design.tasks, design.data, design.settings)
    if preset := design.settings.get("preset"):
        raise UserError(
            f"preset is {preset!r}, which would change plain fine-tuning too; write it after the method that it is "
            "for, as in addrop@preset=paper."
        )
    for run in {(run.method, run.size, run.task): run for run in design.all_runs(1)}.values():
        make_config(run.settings)
    return design


def _check_scoring(design: Design, draws: bool) -> None:
    """Refuse what cannot be scored.

    Args:
        design: The design.
        draws: Whether runs train on a part of the examples.
    """
    check_choice("score_on", design.score_on, SCORE_ON)
    check_whole("score_epochs", design.score_epochs, 1)
    if design.score_on == "rest" and not draws:
        raise UserError(
            "score_on is 'rest', but all training examples are trained on; it needs --fraction, --shots or "
            "--max-train-samples, which leave a rest."
        )
    if design.score_on == "rest" and design.keep == "dev":
        raise UserError(
            "score_on is 'rest', and keep is 'dev', which would choose the epoch on examples of the training data; "
            "keep must be last or split."
        )
    if design.score_epochs > 1 and design.keep != "last":
        raise UserError(
            f"score_epochs is {design.score_epochs}, and keep is {design.keep!r}, which scores one chosen epoch; leave "
            "one of the two out."
        )
