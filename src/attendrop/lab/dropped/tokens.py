"""Kinds of tokens: special tokens, punctuation, parts of words, rare words and all other words."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

KINDS = ("special token", "punctuation", "later part of a word", "rare word", "other word")
SPECIAL, PUNCTUATION, PART, RARE_WORD, WORD = range(len(KINDS))
RARE = 2  # occurrences in the examples, up to which a token is rare

_PART_MARK = "##"  # of WordPiece, before parts of words
_WORD_MARKS = ("▁", "Ġ")  # of SentencePiece and byte-level BPE, before words


class TokenKinds:
    """Tells the kinds of tokens by their texts in the vocabulary, and by how often they occur.

    The vocabulary of WordPiece marks the later parts of a word. Other vocabularies mark its first part; some of them do
    not at the beginning of a text, and such a word is counted as a later part.

    Args:
        tokenizer: The tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        size = len(tokenizer)
        texts = [str(text or "") for text in tokenizer.convert_ids_to_tokens(list(range(size)))]
        special = set(tokenizer.all_special_ids)
        has_part_marks = any(text.startswith(_PART_MARK) for text in texts)
        has_word_marks = not has_part_marks and any(text.startswith(_WORD_MARKS) for text in texts)

        def kind(number: int, text: str) -> int:
            if number in special:
                return SPECIAL
            bare = text.removeprefix(_PART_MARK).lstrip("".join(_WORD_MARKS))
            if bare and not any(letter.isalnum() for letter in bare):
                return PUNCTUATION
            is_part = text.startswith(_PART_MARK) if has_part_marks else not text.startswith(_WORD_MARKS)
            return PART if is_part and (has_part_marks or has_word_marks) else WORD

        self._kinds = torch.tensor([kind(number, text) for number, text in enumerate(texts)])

    def count(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return how often each token of the vocabulary occurs.

        Args:
            ids: Token ids, `[rows, L]`.
            mask: Their padding mask.
        """
        return torch.bincount(ids[mask.bool()].cpu(), minlength=len(self._kinds))

    def of(self, ids: Tensor, counts: Any) -> Tensor:
        """Return the kind of each token as its place in `KINDS`.

        Args:
            ids: Token ids, `[rows, L]`.
            counts: How often each token occurs in all examples.
        """
        kinds = self._kinds.clone()
        kinds[(kinds == WORD) & (counts <= RARE)] = RARE_WORD
        return kinds.to(ids.device)[ids]
