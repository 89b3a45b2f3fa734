"""Token classification (tagging): an example is a list of words, and each word has a tag.

The first sub-word of a word carries its tag and the other sub-words are ignored. A word that was truncated, or has no
sub-word, is not scored, and is decoded as `O`, or as `_` if there is no tag `O`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from ..files import Problem, Table
from ..findings import plural
from ..values import declared_name, is_missing, words_of
from .answers import Answers, ClassAnswers, Columns
from .base import Kind
from .codec import IGNORED, ClassCodec, first_of
from .encoder import Encoder
from .heads import LinearHead
from .members import Array, Members, Outputs
from .reading import Reading
from .snippets import Snippet

if TYPE_CHECKING:
    from datasets import Dataset

    from ..catalogue import Task

_FIRST = 1e-6  # of a vote, which an earlier seed has more than the next, so that there are no ties


def unseen_tag(labels: Sequence[str]) -> str:
    """Return the tag of a word that the model has not seen."""
    return "O" if "O" in labels else "_"


class TagReading(Reading):
    """A cell holds a list of tags, or a text in which spaces stand between them."""

    has_one_text = True

    def problem_of_label(self, table: Table, task: Task, row: int) -> Problem | None:
        column, advice = str(task.label), "each word needs one tag"
        value, words = table.columns[column][row], words_of(table.columns[task.text[0]][row])
        tags = words_of(value)
        if not isinstance(tags, list):
            return Problem(
                f"has {value!r:.80} in column {column!r}", f"it must be a list of tags; {advice}", f"tags {column}"
            )
        if len(tags) != len(words):
            return Problem(f"has {plural(len(words), 'word')} and {plural(len(tags), 'tag')}", advice, "number of tags")
        if declared := table.names.get(column):
            tags = [declared_name(declared, tag) for tag in tags]
        for tag in tags:
            if is_missing(tag) or isinstance(tag, (list, dict)):
                return Problem(f"has the tag {tag!r} in column {column!r}", advice, f"tag {column}")
        return None

    def names_in(self, value: Any, name_of: Callable[[Any], str], task: Task) -> Any:
        return [name_of(tag) for tag in words_of(value)]

    def written(self, table: Table, task: Task) -> Any:
        return chain.from_iterable(words_of(value) for value in table.columns[str(task.label)])

    def flat(self, labels: Sequence[Any]) -> list[Any]:
        return list(chain.from_iterable(labels))


class WordEncoder(Encoder):
    """Tokenise lists of words.

    A call also returns `word_starts`: for each word the position of its first sub-word, or -1 if the word was truncated
    or has no sub-word.
    """

    needs_word_ids = True

    def __init__(self, task: Task, tokenizer: Any, max_length: int | None) -> None:
        super().__init__(task, tokenizer, max_length)
        self.needs_spaces = self._needs_spaces()

    def encode(self, batch: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
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

    def _needs_spaces(self) -> bool:
        """Return whether the tokenizer joins a list of words without spaces, as that of RoBERTa does.

        Each word then needs a space before it, so that it gets the same tokens as in running text.
        """

        def ids(text: str | list[str]) -> Any:
            is_split = isinstance(text, list)
            return self.tokenizer(text, is_split_into_words=is_split, add_special_tokens=False)["input_ids"]

        return bool(ids(["the", "the"]) != ids("the the") and ids(["the", " the"]) == ids("the the"))


class TagCodec(ClassCodec):
    """The tag of a word is learned at its first sub-word; all other positions are ignored."""

    def after_encoding(self, name: str, split: Dataset) -> Dataset:
        self.word_starts[name] = split["word_starts"][:]
        return split.remove_columns("word_starts")

    def encode_labels(self, values: list[Any], encoded: Mapping[str, list[Any]]) -> list[Any]:
        rows = zip(values, encoded["word_starts"], encoded["input_ids"], strict=True)
        return [self._align(tags, starts, len(ids)) for tags, starts, ids in rows]

    def _align(self, tags: list[int], starts: list[int], length: int) -> list[int]:
        aligned = [IGNORED] * length
        for tag, start in zip(tags, starts, strict=True):
            if start >= 0:
                aligned[start] = self.to_model[tag]
        return aligned

    def for_metrics(self, predicted: np.ndarray, gold: np.ndarray) -> tuple[Any, Any]:
        scored = gold != IGNORED
        names = np.array(self.task.labels, dtype=object)[self.to_task]
        predictions = [list(names[row[mask]]) for row, mask in zip(predicted, scored, strict=True)]
        return predictions, [list(names[row[mask]]) for row, mask in zip(gold, scored, strict=True)]

    def quality_of(self, predicted: np.ndarray, gold: np.ndarray) -> np.ndarray:
        """Return minus the number of wrong words of each sentence."""
        return -((predicted != gold) & (gold != IGNORED)).sum(-1).astype(float)

    def decode(self, predictions: Any, split: str = "test") -> list[Any]:
        names = [self.task.labels[index] for index in self.to_task]
        unseen = unseen_tag(self.labels)
        return [
            [unseen if start < 0 else names[row[start]] for start in starts]
            for row, starts in zip(self.predicted(first_of(predictions)), self.word_starts[split], strict=True)
        ]

    def values(self, predictions: Any, split: str = "test") -> Any:
        lengths = [len(starts) for starts in self.word_starts[split]]
        positions = np.fromiter(chain.from_iterable(self.word_starts[split]), int, sum(lengths))
        outputs = first_of(predictions)[np.repeat(np.arange(len(lengths)), lengths), np.maximum(positions, 0)]
        return super().values(outputs, split)


class TagAnswers(ClassAnswers):
    """Each word has a predicted tag."""

    marks_correct = False

    @classmethod
    def of(cls, task: Task, values: Any, split: Any, word_starts: Sequence[Sequence[int]] | None = None) -> Answers:
        labels = split[task.label][:]
        assert word_starts is not None
        lengths = np.array([len(row) for row in labels])
        starts = np.fromiter(chain.from_iterable(word_starts), int, lengths.sum())
        return cls(task, values, np.fromiter(chain.from_iterable(labels), int), lengths, starts >= 0)

    def for_metrics(self, predicted: Any) -> tuple[Any, Any]:
        names = np.array(self.task.labels, dtype=object)
        return self._sentences(names[predicted]), self._sentences(names[self.gold])

    def _sentences(self, words: np.ndarray) -> list[list[Any]]:
        """Return the scored words of each sentence."""
        assert self.lengths is not None
        assert self.is_scored is not None
        ends = np.cumsum(self.lengths)[:-1]
        parts = zip(np.split(words, ends), np.split(self.is_scored, ends), strict=True)
        return [list(part[mask]) for part, mask in parts]

    def scored(self) -> tuple[np.ndarray, np.ndarray]:
        return self.values[self.is_scored], self.gold[self.is_scored]

    def losses(self, temperature: float = 1.0) -> np.ndarray:
        """Return the mean over the scored words of a sentence of -log of the probability of the right tag."""
        assert self.lengths is not None
        assert self.is_scored is not None
        losses = super().losses(temperature)
        rows = np.repeat(np.arange(len(self.lengths)), self.lengths)
        counts = np.bincount(rows, self.is_scored, len(self.lengths))
        return np.asarray(np.bincount(rows, losses * self.is_scored, len(self.lengths)) / np.maximum(counts, 1))

    def columns(self, temperature: float, decimals: int, word_starts: Sequence[Sequence[int]] | None) -> Columns:
        """List with one entry for each word; `probability` is that of the predicted tag.

        A word that the model has not seen, because it was cut off, has the tag `O` (or `_`) and None.
        """
        assert word_starts is not None
        labels, probabilities = self.task.labels, self.probabilities(temperature)
        lengths = [len(starts) for starts in word_starts]
        positions = np.fromiter(chain.from_iterable(word_starts), int, sum(lengths))
        tags = np.array(labels, dtype=object)[probabilities.argmax(-1)]
        tags[positions < 0] = unseen_tag(labels)
        rounded = np.round(probabilities, 4).astype(object)
        rounded[positions < 0] = None
        columns = {"prediction": tags, "probability": rounded[np.arange(len(rounded)), probabilities.argmax(-1)]}
        columns |= {f"probability_{label}": rounded[:, place] for place, label in enumerate(labels)}
        ends = np.cumsum(lengths)[:-1]
        return {name: [part.tolist() for part in np.split(values, ends)] for name, values in columns.items()}


class TagMembers(Members):
    """Each seed votes for the tag of each word. Votes are no probabilities, so they have no loss."""

    precision = None

    def reduce(self, outputs: Outputs) -> None:
        is_scored = outputs.gold != IGNORED
        outputs.values, outputs.gold = outputs.values.argmax(-1)[is_scored], outputs.gold[is_scored]
        outputs.lengths = is_scored.sum(-1)

    def evidence(self, outputs: Outputs, values: Array, place: int) -> Array:
        votes = np.zeros((len(values), max(len(outputs.to_task), int(values.max(initial=0)) + 1)))
        votes[np.arange(len(values)), outputs.values] = 1 - _FIRST * place
        return votes

    def predicted(self, mean: Array, outputs: Outputs) -> tuple[Any, Any]:
        ends = np.cumsum(outputs.lengths)[:-1]
        pair = ([list(part) for part in np.split(outputs.labels[of], ends)] for of in super().predicted(mean, outputs))
        predicted, gold = pair
        return predicted, gold

    def outcomes(self, mean: Array, gold: Array) -> dict[str, float]:
        return {}


class WordSnippet(Snippet):
    """The lines for a tag of each word."""

    truncation = "the tag of a word is that of its first token"

    def examples(self, task: Task, needs_spaces: bool) -> str:
        line = 'words = "a sentence that is split into words".split()'
        return f'{line}\nwords[1:] = [f" {{word}}" for word in words[1:]]' if needs_spaces else line

    def pipeline_call(self, task: Task) -> str:
        return "pipe([words], is_split_into_words=True)[0]"

    def batch(self, task: Task, options: str) -> str:
        return f"batch = tokenizer([words], is_split_into_words=True, {options})"

    def answers(self, scaled: str, threshold: float) -> str:
        return (
            "first = {word: place for place, word in reversed([*enumerate(batch.word_ids(0))]) if word is not None}\n"
            f"probabilities = {scaled}[0].softmax(-1)\n"
            "tags = {word: model.config.id2label[int(logits[0, place].argmax())] for word, place in first.items()}"
        )


class TokenClassification(Kind):
    """A tag for each word."""

    name, spoken = "token_classification", "token classification"
    metrics = ("token_accuracy",)
    model_class = "AutoModelForTokenClassification"
    pipeline_tag = "token-classification"
    has_named_labels = is_per_word = True
    can_weigh_classes = can_focus = can_smooth = True
    learning_rate = 5e-5  # a head for each word starts at random, and has many rare classes to learn
    reading = TagReading()
    encoder = WordEncoder
    codec = TagCodec
    answers = TagAnswers
    linear = LinearHead()
    members = TagMembers()
    snippet = WordSnippet()

    def corpus(self, task: Task) -> tuple[str, ...]:
        return task.text[:1]

    def default_metrics(self, labels: Sequence[str]) -> tuple[str, ...]:
        """Return token accuracy, and before it those of entities if all tags are written so."""
        are_entities = all(name == "O" or name[:2] in ("B-", "I-", "E-", "S-") for name in labels)
        return (*(("entity_f1", "entity_precision", "entity_recall") if are_entities else ()), *self.metrics)

    def label_name(self, task: Task, value: Any) -> Any:
        return [task.labels[index] for index in value]

    def separator(self, task: Task) -> str:
        return " "

    def collator(self, tokenizer: Any, seed: int, mlm_probability: float) -> Any:
        import transformers

        return transformers.DataCollatorForTokenClassification(tokenizer)
