"""Texts: a tokenizer makes their inputs. The parts are in the modules of `tasks`, which import this package."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from ....errors import UserError
from ..catalogue import Task
from ..files import Problem, Table
from ..kinds import kind_of
from ..values import is_missing, problem_of_text, problem_of_words, words_of
from .base import Encoder, Modality


class Text(Modality):
    """Texts, pairs of texts, words of a sentence, or answers to choose from."""

    name, noun, example, unit = "text", "text", '"a text"', "tokens"
    processor_class, processor_called = "AutoTokenizer", "tokenizer"
    reads_files = False

    def model_class(self, task: Task) -> str:
        return kind_of(task).model_class

    def pipeline_tag(self, task: Task) -> str:
        return kind_of(task).pipeline_tag

    def on_command_line(self, task: Task) -> str:
        return kind_of(task).on_command_line(task, self.example)

    def load_processor(self, name: str, *, trust_remote_code: bool = False) -> Any:
        from ..models import load_tokenizer

        return load_tokenizer(name, trust_remote_code=trust_remote_code)

    def match(self, name: str, model: Any, processor: Any, notes: list[str]) -> None:
        """Check that the model has an embedding for every token, and set its padding token."""
        embeddings = model.get_input_embeddings().num_embeddings
        if len(processor) > embeddings:
            raise UserError(
                f"the tokenizer has {len(processor):,} tokens, but {name} has {embeddings:,} embeddings; use the "
                "tokenizer of the model."
            )
        if getattr(model.config, "pad_token_id", None) is None:
            model.config.pad_token_id = processor.pad_token_id

    def check_length(self, model: Any, processor: Any, max_length: int | None, task: Task, notes: list[str]) -> int:
        from ..max_length import check_length

        return check_length(model, processor, max_length, task, notes)

    def length_limit(self, task: Task, processor: Any, max_length: int | None, notes: list[str]) -> int:
        length = task.max_length if max_length is None else max_length
        least = processor.num_special_tokens_to_add(pair=len(task.text) > 1) + 1
        if length < least:
            raise UserError(
                f"max_length is {length}; with the special tokens of this model it must be at least {least}."
            )
        if length > processor.model_max_length:
            if max_length is not None:
                notes.append(
                    f"max_length {length} is above the limit of the tokenizer; {processor.model_max_length} is used "
                    "instead"
                )
            length = processor.model_max_length
        if kind_of(task).encoder.needs_word_ids and processor.padding_side != "right":
            raise UserError(
                f"the tokenizer pads on the left, but the kind {task.kind} needs the right; load it with "
                "load_tokenizer."
            )
        if processor.pad_token is None:
            raise UserError(
                "the tokenizer has no padding token; set tokenizer.pad_token, or load it with load_tokenizer."
            )
        return length

    def encoder(self, task: Task, processor: Any, max_length: int | None) -> Encoder:
        return kind_of(task).encoder(task, processor, max_length)

    def collator(self, task: Task, processor: Any, max_length: int, seed: int, mlm_probability: float) -> Any:
        return kind_of(task).collator(processor, seed, mlm_probability)

    def how_cut(self, task: Task, max_length: int) -> str:
        cut = "divided into pieces of at most" if kind_of(task).divides_texts else "truncated to"
        return f"Texts are {cut} {max_length} tokens."

    def check_column(self, table: Table, task: Task, column: str) -> None:
        values = table.columns[column]
        row = next((row for row, value in enumerate(values) if not is_missing(value)), None)
        if not kind_of(task).is_per_word and row is not None and not any(isinstance(value, str) for value in values):
            raise UserError(
                f"column {column!r} does not hold text: {table.location(row)} has {values[row]!r}; name another with "
                "--text."
            )

    def problem(self, task: Task, column: str, value: Any) -> Problem | None:
        return (problem_of_words if kind_of(task).is_per_word else problem_of_text)(column, value)

    def keys(self, task: Task, values: Sequence[Any]) -> list[Hashable]:
        """Return the texts, without spaces around them."""
        are_words = kind_of(task).is_per_word
        return [str(words_of(value)) if are_words else str(value).strip() for value in values]
