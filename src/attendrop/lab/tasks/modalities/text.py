"""Texts: a tokenizer makes their inputs. The parts are in the modules of `tasks`, which import this package."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....errors import UserError
from ..catalogue import Task
from ..files import Problem, Table
from .base import Encoder, Modality

_MODEL_CLASSES = {
    "classification": "AutoModelForSequenceClassification",
    "regression": "AutoModelForSequenceClassification",
    "multilabel": "AutoModelForSequenceClassification",
    "tokens": "AutoModelForTokenClassification",
    "choice": "AutoModelForMultipleChoice",
    "translation": "AutoModelForSeq2SeqLM",
    "mlm": "AutoModelForMaskedLM",
}
_PIPELINE_TAGS = {
    "classification": "text-classification",
    "regression": "text-classification",
    "multilabel": "text-classification",
    "tokens": "token-classification",
    "choice": "multiple-choice",
    "translation": "translation",
    "mlm": "fill-mask",
}


class Text(Modality):
    """Texts, pairs of texts, words of a sentence, or answers to choose from."""

    name, noun, example, unit = "text", "text", '"a text"', "tokens"
    processor_class, processor_called = "AutoTokenizer", "tokenizer"
    reads_files = False

    def model_class(self, kind: str) -> str:
        return _MODEL_CLASSES[kind]

    def pipeline_tag(self, kind: str) -> str:
        return _PIPELINE_TAGS[kind]

    def on_command_line(self, task: Task) -> str:
        if task.kind == "choice":
            return " ".join(['"the context"', *(f'"answer {number}"' for number in range(1, len(task.text)))])
        is_pair = len(task.text) == 2 and task.kind != "translation"
        return f'{self.example} "a second text"' if is_pair else self.example

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
        from ..positions import check_length

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
        if task.kind in ("tokens", "mlm") and processor.padding_side != "right":
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
        from ..encode import Encoder as TextEncoder

        return TextEncoder(task, processor, max_length)

    def collator(self, task: Task, processor: Any, max_length: int, seed: int, mlm_probability: float) -> Any:
        import transformers

        if task.kind == "mlm":
            from ..masking import MaskingCollator  # imports torch

            return MaskingCollator(processor, seed, mlm_probability)
        return {
            "classification": transformers.DataCollatorWithPadding,
            "regression": transformers.DataCollatorWithPadding,
            "multilabel": transformers.DataCollatorWithPadding,
            "tokens": transformers.DataCollatorForTokenClassification,
            "choice": ChoiceCollator,
            "translation": transformers.DataCollatorForSeq2Seq,
        }[task.kind](processor)

    def how_cut(self, task: Task, max_length: int) -> str:
        cut = "divided into pieces of at most" if task.kind == "mlm" else "truncated to"
        return f"Texts are {cut} {max_length} tokens."

    def check_column(self, table: Table, task: Task, column: str) -> None:
        from ..values import is_missing

        values = table.columns[column]
        row = next((row for row, value in enumerate(values) if not is_missing(value)), None)
        if task.kind != "tokens" and row is not None and not any(isinstance(value, str) for value in values):
            raise UserError(
                f"column {column!r} does not hold text: {table.location(row)} has {values[row]!r}; name another with "
                "--text."
            )

    def problem(self, task: Task, column: str, value: Any) -> Problem | None:
        from ..values import problem_of_text, problem_of_words

        return (problem_of_words if task.kind == "tokens" else problem_of_text)(column, value)

    def keys(self, task: Task, values: Sequence[Any]) -> list[Hashable]:
        """The texts, without spaces around them."""
        from ..values import words_of

        return [str(words_of(value)) if task.kind == "tokens" else str(value).strip() for value in values]


@dataclass
class ChoiceCollator:
    """Pad all endings of all examples to the longest one: `[B, endings, L]`."""

    tokenizer: Any

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
