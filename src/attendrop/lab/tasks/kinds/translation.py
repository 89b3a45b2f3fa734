"""Translation, or another text for a text: the model writes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ....errors import UserError
from .. import columns
from ..findings import shortened
from .answers import Answers
from .base import Kind
from .codec import Codec, first_of
from .encoder import Encoder
from .reading import Found, Reading, Request

if TYPE_CHECKING:
    from datasets import Dataset

    from ..catalogue import Task
    from ..data import Data
    from ..files import Table


class TargetReading(Reading):
    """Source and target are two columns of texts; the target is read as the label would be."""

    has_one_text = True

    def find_columns(self, table: Table, request: Request) -> Found:
        text_pair, label = request.text_pair, request.label
        return columns.find_columns(table, request.text, text_pair, label, is_pair_label=label is None)

    def task(self, kind: str, name: str, columns: Found, request: Request) -> Task:
        task = super().task(kind, name, columns, request)
        return dataclasses.replace(task, text=(task.text[0], str(task.label)), label=None)


class TargetEncoder(Encoder):
    """Tokenise the source, whose tokens `length` counts, and the target as `labels`."""

    def encode(self, batch: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        source, target = self.task.text
        encoded = dict(self.tokenizer(self.texts(batch, source), **self.options))
        if target in batch:
            encoded["labels"] = self.tokenizer(text_target=self.texts(batch, target), **self.options)["input_ids"]
        return encoded


class TextCodec(Codec):
    """Token ids that the model generated are decoded to texts."""

    def __init__(self, data: Data, tokenizer: Any, labels: Sequence[str] | None, collator: Any = None) -> None:
        super().__init__(data, tokenizer, labels, collator)
        self.target_ids: dict[str, Any] = {}  # of each split that is evaluated

    def after_encoding(self, name: str, split: Dataset) -> Dataset:
        if "labels" in split.column_names and name != "train":
            self.target_ids[name] = split["labels"]
        return split

    def predicted(self, outputs: np.ndarray) -> np.ndarray:
        """Return the token ids."""
        if outputs.ndim != 2:
            raise UserError(
                "a translation is scored by the text that the model generates; evaluate with predict_with_generate."
            )
        return outputs

    def for_metrics(self, predicted: np.ndarray, gold: np.ndarray) -> tuple[Any, Any]:
        return self._strings(predicted), self._references(gold)

    def decode(self, predictions: Any, split: str = "test") -> list[Any]:
        return self._strings(self.predicted(first_of(predictions)))

    def values(self, predictions: Any, split: str = "test") -> Any:
        return self._strings(first_of(predictions))

    def _strings(self, ids: np.ndarray) -> list[str]:
        padded = np.where(ids < 0, self.tokenizer.pad_token_id, ids)
        return [text.strip() for text in self.tokenizer.batch_decode(padded, skip_special_tokens=True)]

    def _references(self, ids: np.ndarray) -> list[str]:
        """Return the original targets: their token ids may be truncated, or contain unknown tokens."""
        decoded = self._strings(ids)
        return [
            self._target_texts.get(tuple(row[row >= 0].tolist()), text) for row, text in zip(ids, decoded, strict=True)
        ]

    @cached_property
    def _target_texts(self) -> dict[tuple[int, ...], str]:
        """Token ids of a target -> its text."""
        texts: dict[tuple[int, ...], str] = {}
        splits = self.data.splits()
        for name, targets in self.target_ids.items():
            for ids, text in zip(targets, splits[name][self.task.text[1]], strict=True):
                texts.setdefault(tuple(ids), text)
        return texts


class TextAnswers(Answers):
    """Generated texts."""

    @classmethod
    def of(cls, task: Task, values: Any, split: Any, word_starts: Sequence[Sequence[int]] | None = None) -> Answers:
        return cls(task, values, list(split[task.text[1]]))

    def losses(self, temperature: float = 1.0) -> np.ndarray:
        """1 minus the chrF of each text, which needs no probabilities."""
        from sacrebleu import sentence_chrf

        pairs = zip(self.values, self.gold, strict=True)
        return np.array([1 - sentence_chrf(predicted, [gold]).score / 100 for predicted, gold in pairs])

    def warnings(self, split: str) -> list[str]:
        if len(set(self.values)) == 1 < len(set(self.gold)):
            return [f"the model writes the same text for every example of {split}: {shortened(self.values[0])!r}"]
        return []


class Translation(Kind):
    """A text for each text."""

    name = "translation"
    metrics = ("bleu",)
    model_class = "AutoModelForSeq2SeqLM"
    pipeline_tag = "translation"
    is_generated = True
    has_new_head = is_scored_from_logits = False
    can_smooth = True
    fixed_recipe = (3, 2e-5)  # corpora are large, and their evaluations take long
    reading = TargetReading()
    encoder = TargetEncoder
    codec = TextCodec
    answers = TextAnswers

    def inputs(self, task: Task) -> tuple[str, ...]:
        return task.text[:1]

    def target(self, task: Task) -> str | None:
        return task.text[1]

    def corpus(self, task: Task) -> tuple[str, ...]:
        return task.text[:1]

    def from_hub(self, split: Dataset) -> Dataset:
        """Return the Hub stores source and target in one column."""
        if "translation" not in split.column_names:
            return split
        flat = split.select_columns(["translation"]).flatten()
        return flat.rename_columns({name: name.removeprefix("translation.") for name in flat.column_names})

    def collator(self, tokenizer: Any, seed: int, mlm_probability: float) -> Any:
        import transformers

        return transformers.DataCollatorForSeq2Seq(tokenizer)

    def example_inputs(self, ids: Any) -> dict[str, Any]:
        return {"input_ids": ids, "decoder_input_ids": ids}

    def reduction(self) -> Any:
        return None
