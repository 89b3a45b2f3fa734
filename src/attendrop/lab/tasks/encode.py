"""Tokenise the texts of every kind of task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import UserError
from .catalogue import Task

Columns = Mapping[str, list[Any]]

# How the tokenizers with byte-level BPE and SentencePiece write the space before a word.
_WORD_STARTS = ("Ġ", "▁")


def word_numbers(word_ids: Sequence[int | None], tokens: Sequence[str]) -> list[int]:
    """Number the words of a text: for each token the number of its word, or -1 for a special token.

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


class Encoder:
    """Tokenise batches of a task.

    A call returns the input columns of the model and `length`, the number of tokens of each example: of the longest
    ending for a choice, of the source for a translation. A translation also has `labels`, the token ids of the target.
    Tagging also has `word_starts`: for each word the position of its first sub-word, or -1 if the word was truncated or
    has no sub-word. Masked language modelling has `words`, the number of the word of each token (`word_numbers`), and
    divides a text that is too long into several examples instead of truncating it.

    Args:
        task: The task, which names the text columns.
        tokenizer: The tokenizer of the model; tagging and masked language modelling need a fast one.
        max_length: Examples are truncated to this number of tokens; None = no truncation.
    """

    def __init__(self, task: Task, tokenizer: Any, max_length: int | None) -> None:
        self.task, self.tokenizer = task, tokenizer
        self.options = {"truncation": max_length is not None, "max_length": max_length, "verbose": False}
        if task.kind in ("tokens", "mlm") and not getattr(tokenizer, "is_fast", False):
            raise UserError(
                f"{type(tokenizer).__name__} is not a fast tokenizer; only a fast one knows the word of each token."
            )
        if task.kind == "tokens":
            self.needs_spaces = self._needs_spaces()

    def __call__(self, batch: Columns) -> dict[str, list[Any]]:
        encoded = getattr(self, f"_{self.task.kind}")(batch)
        if "length" not in encoded:
            encoded["length"] = [len(ids) for ids in encoded["input_ids"]]
        return encoded

    def _texts(self, batch: Columns, column: str) -> list[str]:
        return ["" if text is None else text for text in batch[column]]

    def _classification(self, batch: Columns) -> dict[str, list[Any]]:
        return dict(self.tokenizer(*(self._texts(batch, column) for column in self.task.text), **self.options))

    _regression = _multilabel = _classification

    def _choice(self, batch: Columns) -> dict[str, list[Any]]:
        context, *endings = (self._texts(batch, column) for column in self.task.text)
        n = len(endings)
        first = [text for text in context for _ in range(n)]
        second = [text for example in zip(*endings, strict=True) for text in example]
        flat = self.tokenizer(first, second, **self.options)
        encoded = {name: [ids[i : i + n] for i in range(0, len(ids), n)] for name, ids in flat.items()}
        encoded["length"] = [max(map(len, ids)) for ids in encoded["input_ids"]]
        return encoded

    def _translation(self, batch: Columns) -> dict[str, list[Any]]:
        source, target = self.task.text
        encoded = dict(self.tokenizer(self._texts(batch, source), **self.options))
        if target in batch:
            encoded["labels"] = self.tokenizer(text_target=self._texts(batch, target), **self.options)["input_ids"]
        return encoded

    def _tokens(self, batch: Columns) -> dict[str, list[Any]]:
        sentences = batch[self.task.text[0]]
        if self.needs_spaces:
            sentences = [[word if i == 0 else f" {word}" for i, word in enumerate(words)] for words in sentences]
        encoded = self.tokenizer(sentences, is_split_into_words=True, **self.options)
        word_starts = []
        for row, words in enumerate(sentences):
            starts = [-1] * len(words)
            for position, word in enumerate(encoded.word_ids(row)):
                if word is not None and starts[word] < 0:
                    starts[word] = position
            word_starts.append(starts)
        return {**encoded, "word_starts": word_starts}

    def _mlm(self, batch: Columns) -> dict[str, list[Any]]:
        texts = self._texts(batch, self.task.text[0])
        encoded = self.tokenizer(texts, return_overflowing_tokens=self.options["truncation"], **self.options)
        words = [word_numbers(encoded.word_ids(row), encoded.tokens(row)) for row in range(len(encoded["input_ids"]))]
        kept = [row for row, numbers in enumerate(words) if max(numbers) >= 0]  # a text may have no words at all
        names = [name for name in self.tokenizer.model_input_names if name in encoded]
        columns = {name: [encoded[name][row] for row in kept] for name in names}
        return {**columns, "words": [words[row] for row in kept]}

    def _needs_spaces(self) -> bool:
        """Whether the tokenizer joins a list of words without spaces, as that of RoBERTa does.

        Each word then needs a space before it, so that it gets the same tokens as in running text.
        """

        def ids(text: str | list[str]) -> list[int]:
            is_split = isinstance(text, list)
            return self.tokenizer(text, is_split_into_words=is_split, add_special_tokens=False)["input_ids"]

        return ids(["the", "the"]) != ids("the the") and ids(["the", " the"]) == ids("the the")
