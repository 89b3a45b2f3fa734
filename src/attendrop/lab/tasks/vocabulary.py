"""Whether a model knows the words of the texts, or takes them apart because they are of another language.

A word is hard for a tokenizer if it has a piece that is unknown, or three or more pieces. In scripts without spaces a
run of letters is hard if it has an unknown piece, or more pieces than letters. Of the English texts of 14 public data
sets 1 to 5 % of the words are hard for the vocabulary of BERT; of German captions of images 24 %, of Romanian news
27 %, of Russian 77 % and of Chinese 100 %.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import numpy as np

from .data import Data
from .findings import WARNING, Finding, shortened
from .kinds import kind_of
from .modalities import modality_of

LARGEST_SHARE = 0.15  # of hard words, for a vocabulary of one language
LARGE_VOCABULARY = 100_000  # of many languages, or of long words; words of three pieces are usual in some languages
LARGEST_SHARE_OF_MANY = 0.3
MULTILINGUAL = ("xlm-roberta-base", "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2")
_ROWS, _WORDS, _FEWEST_WORDS = 200, 5000, 50
_WORD = re.compile(r"[^\W\d_]+")
# Thai and Lao, Myanmar, Khmer, kana, Chinese characters: letters of scripts without spaces between words
_WITHOUT_SPACES = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")


def examine_vocabulary(data: Data, model: str, tokenizer: Any) -> list[Finding]:
    """Return a warning if many words of the training texts are unknown or split into many pieces.

    Args:
        data: The data.
        model: The name or the folder of the model.
        tokenizer: Its tokenizer.
    """
    if data.train is None or modality_of(data.task).unit != "tokens":
        return []
    words = list(islice(_words(data), _WORDS))
    if len(words) < _FEWEST_WORDS:
        return []
    known = dict.fromkeys(words)
    # A space before a word makes the tokenizers of RoBERTa and GPT-2 read it as they do in a text.
    pieces = tokenizer([f" {word}" for word in known], add_special_tokens=False)["input_ids"]
    hard = {word for word, ids in zip(known, pieces, strict=True) if is_hard(word, ids, tokenizer.unk_token_id)}
    share = sum(word in hard for word in words) / len(words)
    if share <= (LARGEST_SHARE_OF_MANY if len(tokenizer) >= LARGE_VOCABULARY else LARGEST_SHARE):
        return []
    example = next(word for word in words if word in hard)
    text = (
        f"{share:.0%} of the words of train are unknown to {model} or split into three or more pieces, such as "
        f"{shortened(example)!r}: it may not know their language; use a model that does, or one of many languages such "
        f"as {' or '.join(MULTILINGUAL)}"
    )
    return [Finding(WARNING, text)]


def _words(data: Data) -> Iterator[str]:
    """Yield the words of evenly spaced training examples."""
    assert data.train is not None
    rows = np.unique(np.linspace(0, len(data.train) - 1, min(len(data.train), _ROWS)).astype(int))
    chosen = data.train.select(rows)
    columns = [chosen[name][:] for name in kind_of(data.task).inputs(data.task)]
    for value in chain.from_iterable(zip(*columns, strict=True)):
        yield from _WORD.findall(" ".join(map(str, value)) if isinstance(value, list) else str(value))


def is_hard(word: str, ids: list[int], unknown: int | None) -> bool:
    """Return whether a tokenizer does not know a word, or takes it apart.

    Args:
        word: The word.
        ids: The ids of its pieces.
        unknown: The id of an unknown piece; None = the tokenizer has none.
    """
    if unknown is not None and unknown in ids:
        return True
    return len(ids) > len(word) if _WITHOUT_SPACES.search(word) else len(ids) >= 3
