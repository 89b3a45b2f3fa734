"""Masked language modelling: the model learns words of its texts that are hidden from it. See `tasks.masking`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ....errors import UserError
from .. import columns
from ..catalogue import Task
from .base import Kind
from .codec import IGNORED, Codec
from .encoder import Encoder
from .members import Array, Members, Outputs
from .reading import Found, Reading, Request

if TYPE_CHECKING:
    from datasets import Dataset

    from ..files import Table

# How the tokenizers with byte-level BPE and SentencePiece write the space before a word.
_WORD_STARTS = ("Ġ", "▁")


class CorpusReading(Reading):
    """One column of texts and no labels."""

    has_plain_texts = True

    def check_request(self, request: Request) -> None:
        flags = {
            "--text-pair": request.text_pair,
            "--label": request.label,
            "--label-separator": request.label_separator,
            "--choices": list(request.choices) or None,
        }
        for flag, value in flags.items():
            if value is not None:
                raise UserError(
                    f"{flag} is {value!r}, but masked language modelling reads one text column and no labels."
                )

    def find_columns(self, table: Table, request: Request) -> Found:
        column, notes = columns.find_text(table, request.text)
        return (column,), None, notes

    def task(self, kind: str, name: str, columns: Found, request: Request) -> Task:
        return Task(name, kind, columns[0], None, metrics=("perplexity",))


def word_numbers(word_ids: Sequence[int | None], tokens: Sequence[str]) -> list[int]:
    """Return the number the words of a text: for each token the number of its word, or -1 for a special token.

    Args:
        word_ids: What a fast tokenizer returns as `word_ids`. Some tokenizers count a whole text as one word.
        tokens: The tokens. One that is written with a space before it also begins a word.
    """
    numbers: list[int] = []
    last, previous = -1, None
    for word, token in zip(word_ids, tokens, strict=True):
        if word is not None and (word != previous or token.startswith(_WORD_STARTS)):
            last += 1
        numbers.append(-1 if word is None else last)
        previous = word
    return numbers


class CorpusEncoder(Encoder):
    """Tokenise texts, and divide one that is too long into several examples instead of truncating it.

    A call also returns `words`, the number of the word of each token (`word_numbers`).
    """

    needs_word_ids = True

    def encode(self, batch: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        texts = self.texts(batch, self.task.text[0])
        encoded = self.tokenizer(texts, return_overflowing_tokens=self.options["truncation"], **self.options)
        words = [word_numbers(encoded.word_ids(row), encoded.tokens(row)) for row in range(len(encoded["input_ids"]))]
        kept = [row for row, numbers in enumerate(words) if max(numbers) >= 0]  # a text may have no words at all
        names = [name for name in self.tokenizer.model_input_names if name in encoded]
        inputs = {name: [encoded[name][row] for row in kept] for name in names}
        return {**inputs, "words": [words[row] for row in kept]}


class MaskCodec(Codec):
    """The log-likelihoods of hidden words. Masks of examples that are evaluated are fixed."""

    def after_encoding(self, name: str, split: Dataset) -> Dataset:
        split = split.add_column("example", list(range(len(split))))
        return split if name == "train" else self.collator.fix(split)

    def predicted(self, outputs: np.ndarray) -> np.ndarray:
        return outputs

    def for_metrics(self, predicted: np.ndarray, gold: np.ndarray) -> tuple[Any, Any]:
        is_scored = gold != IGNORED
        return predicted[is_scored], gold[is_scored]


class MaskMembers(Members):
    """Likelihoods of the hidden words are averaged."""

    precision = np.float32

    def reduce(self, outputs: Outputs) -> None:
        is_scored = outputs.gold != IGNORED
        outputs.values, outputs.gold = outputs.values[is_scored], outputs.gold[is_scored]
        outputs.lengths = is_scored.sum(-1)

    def evidence(self, outputs: Outputs, values: Array, place: int) -> Array:
        return np.asarray(np.exp(values))

    def predicted(self, mean: Array, outputs: Outputs) -> tuple[Any, Any]:
        return np.log(np.maximum(mean, 1e-300)), outputs.gold

    def outcomes(self, mean: Array, gold: Array) -> dict[str, float]:
        return {"loss": float(-np.log(np.maximum(mean, 1e-15)).mean())}


class MaskedLM(Kind):
    """Hidden words of each text."""

    name = "mlm"
    metrics = ("perplexity",)
    model_class = "AutoModelForMaskedLM"
    pipeline_tag = "fill-mask"
    is_masked = divides_texts = True
    has_answers = has_new_head = is_scored_from_logits = False
    can_smooth = True
    fixed_recipe = (3, 5e-5)  # corpora are large, and their evaluations take long
    reading = CorpusReading()
    encoder = CorpusEncoder
    codec = MaskCodec
    members = MaskMembers()

    def collator(self, tokenizer: Any, seed: int, mlm_probability: float) -> Any:
        from ..masking import MaskingCollator  # imports torch

        return MaskingCollator(tokenizer, seed, mlm_probability)

    def reduction(self) -> Any:
        from ..masking import log_likelihoods

        return log_likelihoods
