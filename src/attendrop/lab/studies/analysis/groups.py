"""The runs of a study, by task and amount of data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ...evaluation.outputs import Outputs
from ...records import StudyRecord
from ...statistics.rules import Items

Read = Callable[[StudyRecord], Mapping[str, Outputs]]  # a run -> outputs of its model, by part


@dataclass
class Group:
    """The runs of one task with one amount of training data.

    Attributes:
        task: The task.
        size: The amount of training data.
        runs: Method -> seed -> record.
        selection: Outcome -> method -> the noise of the selection of its settings, in a search.
    """

    task: str
    size: str
    runs: dict[str, dict[int, StudyRecord]] = field(default_factory=dict)
    selection: Mapping[str, Mapping[str, Items]] = field(default_factory=dict)

    @property
    def records(self) -> list[StudyRecord]:
        return [record for seeds in self.runs.values() for record in seeds.values()]

    @property
    def finished(self) -> list[StudyRecord]:
        return [record for record in self.records if record.is_finished]

    @property
    def parts(self) -> list[str]:
        """The parts of the data that were scored, validation first."""
        return list(dict.fromkeys(part for record in self.finished for part in record.scores))


def group_records(records: Sequence[StudyRecord], methods: Sequence[str]) -> list[Group]:
    """Group records by task and amount of data.

    Args:
        records: The records.
        methods: The methods in the order of the study.
    """
    groups: dict[tuple[str, str], Group] = {}
    for record in records:
        key = (record.task, record.size)
        group = groups.setdefault(key, Group(*key, {method: {} for method in methods}))
        group.runs[record.method][record.seed] = record
    for group in groups.values():
        group.runs = {method: dict(sorted(seeds.items())) for method, seeds in group.runs.items()}
    return list(groups.values())
