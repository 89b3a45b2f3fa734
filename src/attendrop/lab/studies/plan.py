"""The plan of a comparison: written before the first run, and compared with the finished study.

A plan is a YAML file with the tasks, methods, settings, seeds and rules of a comparison and its primary outcome. Its
hash is stored in every record; whitespace, comments and the order of names in the file do not change it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...utils.checks import check_choice, check_number, check_whole
from ...utils.dataclass_json import from_json
from ...utils.files import write_whole
from ...utils.secrets import is_secret
from ..records import StudyConfiguration, StudyRecord
from ..runs.run_yaml import read_yaml
from ..tasks.outcomes import OUTCOMES, SCORE, all_deltas, compared_outcomes
from .configuration import plan_hash
from .design import Design, make_design

SCHEMA = 1
_DESIGN = (
    "settings",
    "methods",
    "tasks",
    "data",
    "sizes",
    "keep",
    "resample",
    "first_seed",
    "same_head",
    "score_on",
    "score_epochs",
)
_STUDY = (*_DESIGN, "seeds", "max_seeds", "delta", "confidence")
_KNOWN = ("schema", "primary", "families", "rules", *_STUDY)
_HEAD = "# The plan of a comparison: `attendrop compare --plan FILE` runs it. Its hash is {hash}.\n"


@dataclass
class _Content:
    """What is read of a plan. A part without a default must be there."""

    primary: str
    settings: dict[str, Any]
    methods: list[str]
    sizes: list[str]
    keep: str
    resample: bool
    first_seed: int
    delta: dict[str, float]
    confidence: float
    tasks: list[str] = field(default_factory=list)
    data: dict[str, dict[str, Any]] = field(default_factory=dict)
    same_head: bool = False
    score_on: str = ""
    score_epochs: int = 1
    seeds: int | None = None
    max_seeds: int | None = None


@dataclass(frozen=True)
class Plan:
    """A plan.

    Attributes:
        content: The content of its file.
    """

    content: Mapping[str, Any]

    @property
    def hash(self) -> str:
        """The hash of the content."""
        return plan_hash(self.content)

    @property
    def primary(self) -> str:
        """The outcome that decides; verdicts on all others are exploratory."""
        return str(self.content["primary"])

    def study(self) -> dict[str, Any]:
        """Return the part that a comparison is started with."""
        return {name: self.content[name] for name in _STUDY if name in self.content}


def make_plan(
    design: Design, seeds: int | None, max_seeds: int | None, deltas: Mapping[str, float], primary: str = SCORE.name
) -> Plan:
    """Return the plan of a comparison.

    Args:
        design: The design of the comparison.
        seeds: The number of seeds; None = they are added until every method is decided.
        max_seeds: The largest number of seeds, if they are added.
        deltas: Outcome -> the smallest difference that matters.
        primary: The outcome that decides.
    """
    names = [outcome.name for outcome in compared_outcomes()]
    if primary not in names:
        raise UserError(f"primary is {primary!r}; it must be one of {', '.join(names)}.")
    correction = "Holm over the methods" if max_seeds is None else "alpha spending over looks, Bonferroni over methods"
    content = {
        "schema": SCHEMA,
        "primary": primary,
        "families": [
            {"outcome": name, "kind": "primary" if name == primary else "exploratory", "methods": [*design.methods[1:]]}
            for name in names
        ],
        "rules": {
            "test": "paired t interval over seeds and test examples, corrected for skewness; at least 5 pairs",
            "correction": correction,
            "collapse": "no difference, and helps where more runs of the method collapsed, need at most 10 % collapses",
            "failures": "a failed run leaves its seed out of the pair, and is counted",
        },
        **{name: value for name, value in design.to_dict().items() if name in _DESIGN},
        "seeds": seeds if max_seeds is None else None,
        "max_seeds": max_seeds,
        "delta": all_deltas(deltas),
        "confidence": 0.95,
    }  # fmt: skip
    content["settings"] = {name: value for name, value in design.settings.items() if not is_secret(name)}
    return Plan(json.loads(json.dumps(content, default=str)))


def write_plan(plan: Plan, path: str | Path) -> None:
    """Write a plan. Another file of this name is never replaced.

    Args:
        plan: The plan.
        path: The file.
    """
    import yaml

    path = Path(path)
    text = _HEAD.format(hash=plan.hash) + yaml.safe_dump(dict(plan.content), sort_keys=False, allow_unicode=True)
    if path.is_dir() or (path.exists() and path.read_text(encoding="utf-8", errors="replace") != text):
        raise UserError(
            f"{str(path)!r} exists and holds something else; a plan is never replaced, so choose another name."
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be written to ({error.strerror or error}).") from None


def read_plan(path: str | Path) -> Plan:
    """Read a plan.

    Args:
        path: The file, from `write_plan`.
    """
    content = read_yaml(path)
    if content.get("schema") != SCHEMA:
        raise UserError(
            f"{str(path)!r} has the schema {content.get('schema')!r} and is not a plan of schema {SCHEMA}; write one "
            "with `attendrop plan`."
        )
    content = json.loads(json.dumps(content, default=str))
    try:
        from_json(_Content, content, "it")
    except ValueError as error:
        raise UserError(f"the plan {str(path)!r} is wrong: {error}; write it again with `attendrop plan`.") from None
    for name in content:
        if name not in _KNOWN:
            raise UserError(f"the plan {str(path)!r} has {name!r}, which no plan has; remove it.")
    for name, value in content["delta"].items():
        check_choice(f"an outcome in delta of the plan {str(path)!r}", name, tuple(OUTCOMES))
        check_number(f"delta of {name} in the plan {str(path)!r}", value)
    for name in ("seeds", "max_seeds"):
        if content.get(name) is not None:
            check_whole(f"{name} of the plan {str(path)!r}", content[name], 1)
    if content["primary"] not in OUTCOMES:
        raise UserError(f"the plan {str(path)!r} has the primary outcome {content['primary']!r}, which is not known.")
    if content.get("seeds") is None and content.get("max_seeds") is None:
        raise UserError(
            f"the plan {str(path)!r} has neither seeds nor max_seeds; it must say how many seeds there are."
        )
    return Plan(content)


def design_of_plan(study: Mapping[str, Any]) -> Design:
    """Return the design of a comparison from its part of a plan, checked.

    Args:
        study: From `Plan.study`, perhaps changed.
    """
    fields = {name: study[name] for name in _DESIGN[2:] if name in study}
    fields |= {name: tuple(fields[name]) for name in ("tasks", "sizes") if name in fields}
    methods = [str(method) for method in study["methods"]]
    return make_design(dict(study["settings"]), methods, baseline=methods[0] if methods else None, **fields)


def changed_by_flags(plan: Plan, given: Mapping[str, Any], path: str, may_deviate: bool) -> dict[str, Any]:
    """Return the study of a plan with the flags of the user.

    Args:
        plan: The plan.
        given: Name -> value of what the user gave; `settings`, and others of the names of a plan.
        path: The file of the plan, for the sentence.
        may_deviate: Whether flags may differ from the plan.

    Raises:
        UserError: A flag contradicts the plan, which the user did not allow.
    """
    study = plan.study()
    settings = {**study["settings"], **given.get("settings", {})}
    delta = {**study["delta"], **given.get("delta", {})}
    wanted = {**study, **given, "settings": settings, "delta": delta}
    if given.get("max_seeds") is not None:
        wanted["seeds"] = None
    elif given.get("seeds") is not None:
        wanted["max_seeds"] = None
    for name, was, value in _differences(study, json.loads(json.dumps(wanted, default=str))):
        if not may_deviate:
            raise UserError(
                f"{name} is {value}, and {was} in the plan {path!r}; leave the flag out, or add --deviate, with which "
                "the report lists it as a deviation."
            )
    return wanted


def deviations(plan: Plan, study: StudyConfiguration, records: Sequence[StudyRecord]) -> list[str]:
    """Return one sentence for each deviation of a study from its plan.

    Args:
        plan: The plan.
        study: The configuration of the study.
        records: The records of its runs.
    """
    done = json.loads(json.dumps(study.to_json(), default=str))
    now = {name: done.get(name) for name in _STUDY}
    sentences = [f"{name} is {value}, and was planned as {was}" for name, was, value in _differences(plan.study(), now)]
    without = sum(record.plan != plan.hash for record in records)
    sentences += [f"{without} runs do not belong to this plan"] * (without > 0)
    failed = sum(record.has_failed for record in records)
    sentences += [f"{failed} planned runs failed"] * (failed > 0)
    if plan.content.get("seeds") is not None:
        planned = {run.id for run in design_of_plan(plan.study()).all_runs(plan.content["seeds"])}
        missing = len(planned - {record.id for record in records})
        sentences += [f"{missing} of {len(planned)} planned runs have not ended"] * (missing > 0)
    return sentences


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return name, planned value and actual value of each difference."""
    differences = []
    for name in dict.fromkeys([*old, *new]):
        was, value = old.get(name), new.get(name)
        if isinstance(was, Mapping) and isinstance(value, Mapping):
            inner = _differences(was, value)
            differences += [
                (key if name == "settings" else f"{name} of {key}", one, other) for key, one, other in inner
            ]
        elif was != value and (was or value or value == 0):
            differences.append((name, was, value))
    return differences
