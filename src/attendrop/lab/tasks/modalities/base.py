"""The interface of a modality, so that other code need not distinguish texts, images and sounds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar

from ..catalogue import Task
from ..files import Problem, Table
from ..findings import Finding

Encoder = Callable[[Mapping[str, list[Any]]], dict[str, list[Any]]]


class Modality(ABC):
    """The modality of a task: texts, images or sounds."""

    name: ClassVar[str]  # the value of `Task.modality`
    noun: ClassVar[str]  # what one example is called in messages
    example: ClassVar[str]  # an example on the command line
    unit: ClassVar[str | None]  # of lengths; None if all examples have the same
    processor_class: ClassVar[str]  # the class of transformers that loads the processor
    processor_called: ClassVar[str]  # what the processor is called in code
    reads_files: ClassVar[bool]  # whether the text column holds paths, and the collator reads the files

    # ---- the model ---------------------------------------------------------------------------------------------

    @abstractmethod
    def model_class(self, task: Task) -> str:
        """Return the class of transformers that loads a model with the head for a task."""

    @abstractmethod
    def pipeline_tag(self, task: Task) -> str:
        """Return the name of the kind of task on the Hub."""

    def on_command_line(self, task: Task) -> str:
        """Return an example of the task as an argument of `attendrop predict`."""
        return self.example

    @abstractmethod
    def load_processor(self, name: str, *, trust_remote_code: bool = False) -> Any:
        """Load the processor of a model: its tokenizer, image processor or feature extractor."""

    @abstractmethod
    def match(self, name: str, model: Any, processor: Any, notes: list[str]) -> None:
        """Raise a `UserError` if the model does not take the processor's outputs.

        Args:
            name: The name of the model, for messages.
            model: The model with its head.
            processor: Its processor.
            notes: A list to which sentences for the user are added.
        """

    @abstractmethod
    def check_length(self, model: Any, processor: Any, max_length: int | None, task: Task, notes: list[str]) -> int:
        """Return the maximum length of an example, after checks.

        Args:
            model: The model with its head.
            processor: Its processor.
            max_length: The length that the user set; None = that of the task.
            task: The task.
            notes: A list to which a sentence is added if the length is reduced.
        """

    # ---- the inputs of the model -------------------------------------------------------------------------------

    @abstractmethod
    def length_limit(self, task: Task, processor: Any, max_length: int | None, notes: list[str]) -> int:
        """Return the maximum length that `prepare` uses, after checks of the processor."""

    @abstractmethod
    def encoder(self, task: Task, processor: Any, max_length: int | None) -> Encoder:
        """Return a function from the columns of the task to those of the model, or to those that the collator reads."""

    @abstractmethod
    def collator(self, task: Task, processor: Any, max_length: int, seed: int, mlm_probability: float) -> Any:
        """Return a function that makes a batch of encoded examples."""

    @abstractmethod
    def how_cut(self, task: Task, max_length: int) -> str:
        """Return a sentence for the model card about the length of the examples."""

    # ---- the user's files --------------------------------------------------------------------------------------

    @abstractmethod
    def check_column(self, table: Table, task: Task, column: str) -> None:
        """Raise a `UserError` if a whole column cannot hold the examples, and read what will be needed of it."""

    @abstractmethod
    def problem(self, task: Task, column: str, value: Any) -> Problem | None:
        """Return why a row with this value cannot be used."""

    @abstractmethod
    def keys(self, task: Task, values: Sequence[Any]) -> list[Hashable]:
        """Return the keys by which duplicate examples are recognised."""

    def located(self, table: Table, columns: Sequence[str]) -> Table:
        """Return the table with paths that can be opened from the current folder, where the columns hold paths."""
        return table

    def examine(self, task: Task, tables: Mapping[str, Table]) -> list[Finding]:
        """Return findings about unusual examples, other than duplicates."""
        return []
