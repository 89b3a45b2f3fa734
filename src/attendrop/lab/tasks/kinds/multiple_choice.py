"""Multiple choice: a context and several answers, of which one is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ....errors import UserError
from .. import columns
from ..catalogue import Task
from ..values import choice_names
from .answers import ClassAnswers
from .base import Kind
from .codec import Codec, first_of
from .encoder import Encoder
from .members import Members
from .reading import Found, Reading, Request

if TYPE_CHECKING:
    from ..files import Table


def _as_numbers(names: Sequence[str]) -> list[Any]:
    """Answer as the label column names them, which may be by number."""
    return [int(name) if name.isdigit() else name for name in names]


class ChoiceReading(Reading):
    """One column for the context, one for each answer, and one for the number or letter of the right one."""

    def table(self, table: Table) -> Table:
        return columns.split_lists(table)

    def check_request(self, request: Request) -> None:
        if request.text_pair is not None:
            raise UserError(
                f"--text-pair is {request.text_pair!r}, but a multiple choice has one context; see --choices."
            )

    def find_columns(self, table: Table, request: Request) -> Found:
        return columns.find_choices(table, request.text, request.choices, request.label)

    def task(self, kind: str, name: str, columns: Found, request: Request) -> Task:
        return Task(name, kind, columns[0], columns[1], max_length=256)

    def labels(self, table: Table, task: Task) -> tuple[tuple[str, ...], list[str]]:
        names = set(self.label_names(table, task))
        known, note = choice_names(table, str(task.label), names, len(task.text) - 1)
        return known, [note]


class EndingEncoder(Encoder):
    """Tokenise the context with each of its endings: one row for each; `length` is that of the longest."""

    def encode(self, batch: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        context, *endings = (self.texts(batch, column) for column in self.task.text)
        n = len(endings)
        first = [text for text in context for _ in range(n)]
        second = [text for example in zip(*endings, strict=True) for text in example]
        flat = self.tokenizer(first, second, **self.options)
        encoded = {name: [ids[i : i + n] for i in range(0, len(ids), n)] for name, ids in flat.items()}
        encoded["length"] = [max(map(len, ids)) for ids in encoded["input_ids"]]
        return encoded


@dataclass
class ChoiceCollator:
    """Pad all endings of all examples to the longest one: `[B, endings, L]`."""

    tokenizer: Any
    is_deterministic: ClassVar[bool] = True  # so that an evaluation may keep its batches

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        import torch

        names = [name for name in self.tokenizer.model_input_names if name in examples[0]]
        endings = len(examples[0]["input_ids"])
        flat = [{name: example[name][i] for name in names} for example in examples for i in range(endings)]
        padded = self.tokenizer.pad(flat, return_tensors="pt")
        batch = {name: value.view(len(examples), endings, -1) for name, value in padded.items()}
        if "labels" in examples[0]:
            batch["labels"] = torch.tensor([example["labels"] for example in examples])
        return batch


class ChoiceCodec(Codec):
    """The head has one output for each answer; answers have no names that a model knows."""

    compares_examples = True

    def decode(self, predictions: Any, split: str = "test") -> list[Any]:
        return _as_numbers([self.task.labels[index] for index in self.predicted(first_of(predictions))])


class ChoiceAnswers(ClassAnswers):
    """The chosen answer of each example."""

    def decoded(self) -> list[Any]:
        return _as_numbers(super().decoded())


class MultipleChoice(Kind):
    """The right one of several answers."""

    name = "multiple_choice"
    model_class = "AutoModelForMultipleChoice"
    pipeline_tag = "multiple-choice"
    has_endings = True
    can_focus = can_smooth = True
    reading = ChoiceReading()
    encoder = EndingEncoder
    codec = ChoiceCodec
    answers = ChoiceAnswers
    members = Members()

    def corpus(self, task: Task) -> tuple[str, ...]:
        raise UserError(
            f"{task.name} is of kind {self.name}, and its endings are no texts to learn from; use another task."
        )

    def label_name(self, task: Task, value: Any) -> Any:
        return task.labels[value]

    def on_command_line(self, task: Task, example: str) -> str:
        return " ".join(['"the context"', *(f'"answer {number}"' for number in range(1, len(task.text)))])

    def collator(self, tokenizer: Any, seed: int, mlm_probability: float) -> Any:
        return ChoiceCollator(tokenizer)

    def example_inputs(self, ids: Any) -> dict[str, Any]:
        return {"input_ids": ids[:, None]}
