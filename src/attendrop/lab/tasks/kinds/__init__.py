"""The kinds of tasks. A new kind is one module with a subclass of `Kind`, and its line in `KINDS`."""

from __future__ import annotations

from ....errors import UserError
from ....utils.deprecation import warn_renamed
from ..catalogue import RENAMED_KINDS, Task
from .answers import Answers, ClassAnswers
from .apart import apart
from .base import Kind, Request
from .classification import Classification
from .codec import ClassCodec, Codec
from .masked_lm import MaskedLM
from .members import Members, Outputs
from .multilabel import Multilabel
from .multiple_choice import MultipleChoice
from .reading import Reading
from .regression import Regression
from .snippets import Snippet
from .token_classification import TokenClassification
from .translation import Translation

__all__ = [
    "KINDS",
    "Answers",
    "ClassAnswers",
    "ClassCodec",
    "Codec",
    "Kind",
    "Members",
    "Outputs",
    "Reading",
    "Request",
    "Snippet",
    "current_kind",
    "kind_of",
    "kinds_that",
]

# Name of a kind, as in `Task.kind` -> the kind, in the order of messages.
KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Classification(),
        Regression(),
        Multilabel(),
        TokenClassification(),
        MultipleChoice(),
        Translation(),
        MaskedLM(),
    )
}


def kind_of(task: Task) -> Kind:
    """Return the kind of a task."""
    if task.kind not in KINDS:
        raise UserError(f"kind is {task.kind!r}; it must be one of {', '.join(KINDS)}.")
    return apart(KINDS[task.kind]) if task.is_encoded_apart else KINDS[task.kind]


def kinds_that(fact: str) -> tuple[str, ...]:
    """Return the names of the kinds for which a fact holds.

    Args:
        fact: The name of a flag of `Kind`, such as `can_focus`.
    """
    return tuple(name for name, kind in KINDS.items() if getattr(kind, fact))


def current_kind(name: str | None) -> str | None:
    """Return the current name of a kind that the user named; warns about a deprecated one."""
    if name not in RENAMED_KINDS:
        return name
    warn_renamed(f"the kind {name}", RENAMED_KINDS[name])
    return RENAMED_KINDS[name]
