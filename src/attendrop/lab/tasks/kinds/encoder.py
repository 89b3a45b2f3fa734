"""Tokenise the texts of a task. Kinds whose examples are not one or two texts extend `Encoder`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ....errors import UserError

if TYPE_CHECKING:
    from ..catalogue import Task

Columns = Mapping[str, list[Any]]


class Encoder:
    """Tokenise batches of a task with one or two texts.

    A call returns the input columns of the model and `length`, the number of tokens of each example.

    Args:
        task: The task, which names the text columns.
        tokenizer: The tokenizer of the model.
        max_length: Examples are truncated to this number of tokens; None = no truncation.
    """

    needs_word_ids: ClassVar[bool] = False  # whether the tokenizer must know the word of each token

    def __init__(self, task: Task, tokenizer: Any, max_length: int | None) -> None:
        self.task, self.tokenizer = task, tokenizer
        self.options = {"truncation": max_length is not None, "max_length": max_length, "verbose": False}
        if self.needs_word_ids and not getattr(tokenizer, "is_fast", False):
            raise UserError(
                f"{type(tokenizer).__name__} is not a fast tokenizer; only a fast one knows the word of each token."
            )

    def __call__(self, batch: Columns) -> dict[str, list[Any]]:
        encoded = self.encode(batch)
        if "length" not in encoded:
            encoded["length"] = [len(ids) for ids in encoded["input_ids"]]
        return encoded

    def encode(self, batch: Columns) -> dict[str, list[Any]]:
        """The input columns of the model for a batch."""
        return dict(self.tokenizer(*(self.texts(batch, column) for column in self.task.text), **self.options))

    def texts(self, batch: Columns, column: str) -> list[str]:
        """The texts of a column; a missing one is empty."""
        return ["" if text is None else text for text in batch[column]]
