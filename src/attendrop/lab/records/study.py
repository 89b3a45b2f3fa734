"""`study.json`: the configuration of a study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from ...utils.limits import MOST_LOOKS
from ...utils.secrets import is_secret
from .older import study_configuration_from_1
from .schema import Stored


@dataclass(kw_only=True)
class StudyConfiguration(Stored):
    """The configuration of a study. A field that a kind of study does not have is None or empty, and is not stored.

    Attributes:
        kind: "compare", "tune", or the name of a study of one's own.
        methods: The methods; the first one of a comparison is the baseline.
        settings: The settings that all runs share.
        method_files: File of a method of one's own -> the checksum of its content.
        data_files: File of examples, or folder of images or sounds -> the checksum of its content.
        title: The title of the report.
        command: The command that ran the study.
        created: When the study began.
        tasks: The tasks of a comparison, by name.
        data: Its data sets from files: name -> their settings.
        sizes: Its amounts of training data.
        keep: Which epoch is scored, see `RunSpec`.
        resample: Whether the seed decides which examples are trained on.
        first_seed: The first seed.
        same_head: Whether all runs begin with the same new head.
        score_on: What is scored, see `RunSpec`; None = the validation examples.
        score_epochs: The number of last epochs whose mean score is the score; None = 1.
        seeds: The number of seeds; None = they are added until every method is decided.
        max_seeds: The largest number of seeds, if they are added.
        first_look: The number of seeds at the first look, if they are added.
        delta: Outcome -> the smallest difference that matters.
        confidence: The confidence of intervals and verdicts.
        plan: The plan of the comparison, with its hash.
        protocol: The protocol of a search: "honest" or "paper".
        spaces: Its search spaces, as text.
        sampler: The sampler of its trials.
        seed: The seed of the search.
        repeats: The number of splits that score a trial.
        trials: The number of trials of each method.
        final_seeds: The number of runs of each setting on the development set.
    """

    kind: str = "compare"
    methods: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    method_files: dict[str, str] = field(default_factory=dict)
    data_files: dict[str, str] = field(default_factory=dict)
    title: str = ""
    command: str = ""
    created: str = ""
    tasks: list[str] = field(default_factory=list)
    data: dict[str, dict[str, Any]] = field(default_factory=dict)
    sizes: list[str] = field(default_factory=list)
    keep: str | None = None
    resample: bool | None = None
    first_seed: int | None = None
    same_head: bool | None = None
    score_on: str | None = None
    score_epochs: int | None = None
    seeds: int | None = None
    max_seeds: int | None = None
    first_look: int | None = None
    delta: dict[str, float] = field(default_factory=dict)
    confidence: float = 0.95
    plan: dict[str, Any] | None = None
    protocol: str | None = None
    spaces: list[str] = field(default_factory=list)
    sampler: str | None = None
    seed: int | None = None
    repeats: int | None = None
    trials: int | None = None
    final_seeds: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.confidence < 1:
            raise ValueError(f"'confidence' is {self.confidence!r}; it must be between 0 and 1")
        for name, delta in self.delta.items():
            if delta is None or not 0 <= delta < inf:
                raise ValueError(f"{name!r} of 'delta' is {delta!r}; it must be a number from 0 on")
        if self.max_seeds is not None and not 1 <= self.max_seeds <= MOST_LOOKS:
            raise ValueError(f"'max_seeds' is {self.max_seeds!r}; it must be from 1 to {MOST_LOOKS}")

    def to_json(self) -> dict[str, Any]:
        """Return the fields that have a value, without tokens and passwords, with the number of the schema."""
        stored: dict[str, Any] = _without_secrets(super().to_json())
        return {name: value for name, value in stored.items() if value not in (None, "", [], {})}

    @classmethod
    def _from_schema_1(cls, content: Mapping[str, Any]) -> Mapping[str, Any]:
        return study_configuration_from_1(content)


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_secrets(inner) for name, inner in value.items() if not is_secret(name)}
    return value
