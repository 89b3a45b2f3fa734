"""Texts to token ids, for every kind of task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import UserError
from .catalogue import Task

Columns = Mapping[str, list[Any]]


class Encoder:
    """Tokenises batches of a task; without `max_length` nothing is cut off.

    Gives the model's input columns and `length`, the tokens of an example: of the longest ending for a choice, of the
    source for a translation. A translation gives the ids of its target as `labels`, a tagging `first`: the place of
    the first sub-word of each word, or -1 where it was cut off or left no sub-word.
    """

    def __init__(self, task: Task, tokenizer: Any, max_length: int | None) -> None:
        self.task, self.tokenizer = task, tokenizer
        self.options = {"truncation": max_length is not None, "max_length": max_length, "verbose": False}
        if task.kind == "tokens":
            if not getattr(tokenizer, "is_fast", False):
                raise UserError(
                    f"{type(tokenizer).__name__} is not a fast tokenizer, and only those know which word a token is of."
                )
            self.glue = self._glues_words()

    def __call__(self, batch: Columns) -> dict[str, list[Any]]:
        found = getattr(self, f"_{self.task.kind}")(batch)
        if "length" not in found:
            found["length"] = [len(ids) for ids in found["input_ids"]]
        return found

    def _texts(self, batch: Columns, column: str) -> list[str]:
        return ["" if text is None else text for text in batch[column]]

    def _classification(self, batch: Columns) -> dict[str, list[Any]]:
        return dict(self.tokenizer(*(self._texts(batch, column) for column in self.task.text), **self.options))

    _regression = _classification

    def _choice(self, batch: Columns) -> dict[str, list[Any]]:
        context, *endings = (self._texts(batch, column) for column in self.task.text)
        n = len(endings)
        first = [text for text in context for _ in range(n)]
        second = [text for example in zip(*endings, strict=True) for text in example]
        flat = self.tokenizer(first, second, **self.options)
        found = {name: [ids[i : i + n] for i in range(0, len(ids), n)] for name, ids in flat.items()}
        found["length"] = [max(map(len, ids)) for ids in found["input_ids"]]
        return found

    def _translation(self, batch: Columns) -> dict[str, list[Any]]:
        source, target = self.task.text
        found = dict(self.tokenizer(self._texts(batch, source), **self.options))
        if target in batch:
            found["labels"] = self.tokenizer(text_target=self._texts(batch, target), **self.options)["input_ids"]
        return found

    def _tokens(self, batch: Columns) -> dict[str, list[Any]]:
        sentences = batch[self.task.text[0]]
        if self.glue:
            sentences = [[word if i == 0 else f" {word}" for i, word in enumerate(words)] for words in sentences]
        encoded = self.tokenizer(sentences, is_split_into_words=True, **self.options)
        first = []
        for row, words in enumerate(sentences):
            places = [-1] * len(words)
            for place, word in enumerate(encoded.word_ids(row)):
                if word is not None and places[word] < 0:
                    places[word] = place
            first.append(places)
        return {**encoded, "first": first}

    def _glues_words(self) -> bool:
        """Whether the tokenizer reads a list of words as one long word, as that of RoBERTa does.

        Words then need their space in front, so that they are read as in running text.
        """

        def ids(text: str | list[str]) -> list[int]:
            split = isinstance(text, list)
            return self.tokenizer(text, is_split_into_words=split, add_special_tokens=False)["input_ids"]

        return ids(["the", "the"]) != ids("the the") and ids(["the", " the"]) == ids("the the")
