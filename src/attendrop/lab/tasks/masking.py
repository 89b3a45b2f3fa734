"""Masked language modelling: masks of words and their replacements.

Whole words are hidden (Devlin et al., arXiv 1810.04805, and the whole-word masking of the authors' code): of a text
with n words, max(1, ⌊share · n + 1/2⌋) are chosen. Of their tokens 80 % become the mask token, 10 % a random token,
and 10 % stay as they are; the model predicts all of them.

The draws are pure functions of (seed, epoch, number of the example). A training example therefore has other masks in
every epoch, and they are the same after a resume, on several processes and for every batch size. Evaluation masks do
not depend on the seed, so that the perplexities of runs can be compared.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from ...errors import UserError
from ...kernels.draws import uniform
from ...model.objective import IGNORED
from ...random import key_of

if TYPE_CHECKING:
    from datasets import Dataset

MASKED, RANDOM = 0.8, 0.1  # shares of the chosen tokens; the others stay as they are


def mask_words(
    ids: Tensor, words: Tensor, draws: Tensor, share: float, mask_id: int, vocabulary: int
) -> tuple[Tensor, Tensor]:
    """Hide words: the token ids that the model sees, and the labels, both `[B, L]`.

    Args:
        ids: The token ids, `[B, L]`.
        words: The number of the word of each token, counted from 0 in each text; -1 for special tokens and padding.
        draws: Random numbers in [0, 1), `[B, 3, L]`: one per word, then two per token.
        share: The share of the words that is hidden.
        mask_id: The id of the mask token.
        vocabulary: The number of tokens from which a random one is drawn.
    """
    of_words, kind, other = draws.double().unbind(1)
    count = words.amax(1, keepdim=True) + 1
    chosen = (share * count.double() + 0.5).floor().long().clamp(min=1)
    exists = torch.arange(words.shape[1]) < count
    ascending = of_words.masked_fill(~exists, 2.0).sort(dim=1).values
    threshold = ascending.gather(1, chosen - 1)
    is_hidden = (of_words.gather(1, words.clamp(min=0)) <= threshold) & (words >= 0)
    seen = torch.where(is_hidden & (kind < MASKED), mask_id, ids)
    is_random = is_hidden & (kind >= MASKED) & (kind < MASKED + RANDOM)
    seen = torch.where(is_random, (other * vocabulary).long(), seen)
    return seen, ids.masked_fill(~is_hidden, IGNORED)


class MaskingCollator:
    """Pad examples, and hide words of those that have no labels yet: the training examples.

    Args:
        tokenizer: The tokenizer of the model, which pads on the right and has a mask token.
        seed: The seed of the masks.
        share: The share of the words that is hidden.
    """

    def __init__(self, tokenizer: Any, seed: int = 42, share: float = 0.15) -> None:
        if getattr(tokenizer, "mask_token_id", None) is None:
            raise UserError(
                "the tokenizer has no mask token, which masked language modelling needs; use a model that was "
                "pretrained with one, such as bert-base-uncased or roberta-base."
            )
        self.tokenizer, self.seed, self.share = tokenizer, seed, share
        # In shared memory, because the workers of a data loader may have a copy of this object from an earlier epoch.
        self._epoch = torch.zeros((), dtype=torch.long).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        """Choose the masks of an epoch.

        Args:
            epoch: The number of the epoch, from 0.
        """
        self._epoch.fill_(epoch)

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        names = [name for name in self.tokenizer.model_input_names if name in examples[0]]
        batch = dict(self.tokenizer.pad([{name: x[name] for name in names} for x in examples], return_tensors="pt"))
        length = batch["input_ids"].shape[1]
        if "labels" in examples[0]:
            batch["labels"] = _padded([example["labels"] for example in examples], length, IGNORED)
            return batch
        words = _padded([example["words"] for example in examples], length, -1)
        numbers = torch.tensor([example["example"] for example in examples])
        key = key_of(self.seed, int(self._epoch), 0, "masked words")
        batch["input_ids"], batch["labels"] = self._hide(batch["input_ids"], words, key, numbers)
        return batch

    def fix(self, split: Dataset) -> Dataset:
        """Mask words of an evaluation split; the masks are the same for all seeds.

        Args:
            split: Examples with the columns `input_ids`, `words` and `example`.
        """

        def fix_batch(batch: Mapping[str, list[Any]]) -> dict[str, Any]:
            length = max(map(len, batch["input_ids"]))
            ids, words = _padded(batch["input_ids"], length, 0), _padded(batch["words"], length, -1)
            key = key_of(0, 0, 0, "masked words of an evaluation")
            seen, labels = self._hide(ids, words, key, torch.tensor(batch["example"]))
            lengths = [len(row) for row in batch["input_ids"]]
            return {
                name: [row[:n].tolist() for row, n in zip(rows, lengths, strict=True)]
                for name, rows in (("input_ids", seen), ("labels", labels))
            }

        # A fingerprint of our own: computing that of a tokenizer is slow, and nothing is cached.
        return split.map(
            fix_batch,
            batched=True,
            remove_columns=["words", "example"],
            keep_in_memory=True,
            load_from_cache_file=False,
            new_fingerprint=uuid.uuid4().hex,
        )

    def _hide(self, ids: Tensor, words: Tensor, key: int, numbers: Tensor) -> tuple[Tensor, Tensor]:
        draws = uniform(key, numbers, (3, ids.shape[1]))
        return mask_words(ids, words, draws, self.share, self.tokenizer.mask_token_id, len(self.tokenizer))


def _padded(rows: Sequence[Sequence[int]], length: int, fill: int) -> Tensor:
    return torch.tensor([[*row, *[fill] * (length - len(row))] for row in rows])


def log_likelihoods(outputs: Any, labels: Tensor) -> Tensor:
    """Return the log-likelihood of each label, `[B, L]`, for the Trainer's `preprocess_logits_for_metrics`.

    The logits of a whole vocabulary for every token of a data set would fill the memory.

    Args:
        outputs: The outputs of the model: the logits, or a tuple that begins with them.
        labels: The labels, `[B, L]`.
    """
    logits = outputs[0] if isinstance(outputs, (tuple, list)) else outputs
    return -functional.cross_entropy(logits.float().transpose(1, 2), labels, reduction="none", ignore_index=IGNORED)
