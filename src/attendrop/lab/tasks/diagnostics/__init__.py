"""Look at the user's files as a careful colleague would, before anything is trained on them.

Nothing is changed here. An error is a finding that would make the result wrong; it stops a run. All other findings
are counted, and name the first place.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..catalogue import Task
from ..files import Table
from ..findings import Finding
from ..modalities import modality_of
from .header import examine_header
from .labels import examine_labels
from .tags import examine_tags
from .texts import examine_texts

__all__ = ["examine", "examine_header"]


def examine(task: Task, tables: Mapping[str, Table]) -> list[Finding]:
    """Return findings about unusual texts and labels of a task.

    Args:
        task: The task, with its labels.
        tables: The files by the name of their split, without rows that cannot be used.
    """
    of_labels = [*examine_labels(task, tables), *examine_tags(task, tables)]
    return [*of_labels, *examine_texts(task, tables), *modality_of(task).examine(task, tables)]
