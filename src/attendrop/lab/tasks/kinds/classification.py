"""Classification: each example, a text, image or sound, has one class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .answers import ClassAnswers
from .base import Kind
from .codec import ClassCodec
from .heads import LinearHead
from .members import Array, Members
from .snippets import Snippet

if TYPE_CHECKING:
    from ..catalogue import Task


class ClassifierMembers(Members):
    """Probabilities are averaged, and their calibration is measured."""

    def outcomes(self, mean: Array, gold: Array) -> dict[str, float]:
        from ..outcomes import measured_outcomes  # imports scipy

        return super().outcomes(mean, gold) | measured_outcomes(mean, gold)


class Classification(Kind):
    """One class for each example."""

    name = "classification"
    modalities = ("text", "image", "audio")
    metrics = ("accuracy", "macro_f1")
    further_metrics = ("macro_f1",)
    has_one_class = has_named_labels = True
    can_be_pooled = can_weigh_classes = weighs_rare_classes = can_focus = can_smooth = True
    codec = ClassCodec
    answers = ClassAnswers
    linear = LinearHead()
    members = ClassifierMembers()
    snippet = Snippet()

    def label_name(self, task: Task, value: Any) -> Any:
        return task.labels[value]

    def set_head(self, config: Any, labels: tuple[str, ...]) -> None:
        super().set_head(config, labels)
        config.problem_type = "single_label_classification"
