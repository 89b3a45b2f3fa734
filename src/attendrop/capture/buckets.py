"""The lengths to which batches are padded, and which of them are worth capturing.

Recording the graphs of one shape takes as long as several eager steps. Which shapes are recorded is decided before a
run from the lengths of its examples, and not from times, so that a resumed run does what the uninterrupted one did.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ..random import all_preserved
from ..utils.batches import padded_length

# The number of replays needed to amortise a capture. On an H200 the graphs of a training step at 32 × 128 took 0.3 s
# to record and saved 25 to 40 ms in each step; those of a forward save less, and are recorded without a backward.
BREAK_EVEN_STEPS = 12
BREAK_EVEN_FORWARDS = 6

# Lengths are not read from larger data sets. There every length comes up often enough.
_MOST_EXAMPLES = 10_000


class Buckets:
    """The lengths to which batches are padded.

    Args:
        lengths: from short to long; longer batches are not captured. None: all lengths, rounded up.
    """

    def __init__(self, lengths: Sequence[int] | None = None) -> None:
        self.lengths = lengths

    def rounded(self, length: int) -> int:
        """Return the length to which a batch of this length is padded."""
        return next((bucket for bucket in self.lengths or () if bucket >= length), padded_length(length))

    def is_worth_capturing(self, length: int) -> bool:
        """Return whether batches of this length are captured."""
        return self.lengths is None or any(bucket >= length for bucket in self.lengths)


def buckets_for(expected: Mapping[int, float], break_even: float) -> Buckets:
    """Return the buckets that are used often enough. Batches of a rare length are padded to the next longer bucket.

    The longest batches have none. If they are at most twice as long as the last bucket, it becomes as long as they are:
    an eager step takes several times as long as a captured one of twice the length.

    Args:
        expected: length -> how many batches have it.
        break_even: the number of replays needed to amortise a capture.
    """
    lengths, waiting = [], 0.0
    for length, uses in sorted(expected.items()):
        waiting += uses
        if waiting >= break_even:
            lengths.append(length)
            waiting = 0.0
    if lengths and max(expected) <= 2 * lengths[-1]:
        lengths[-1] = max(expected)
    return Buckets(lengths)


def doubling_buckets(longest: int) -> Buckets:
    """Return buckets of 16, 32, 64 … tokens, up to the first one that holds the longest example."""
    lengths = [16]
    while lengths[-1] < longest:
        lengths.append(2 * lengths[-1])
    return Buckets(lengths)


def expected_in_order(lengths: Sequence[int], batch_size: int) -> dict[int, float]:
    """Return how many batches have each padded length, where examples come in their order."""
    batches = (lengths[start : start + batch_size] for start in range(0, len(lengths), batch_size))
    return dict(Counter(padded_length(max(batch)) for batch in batches))


def expected_at_random(lengths: Sequence[int], batch_size: int, batches: float) -> dict[int, float]:
    """Return how many batches are expected to have each padded length, where their examples are drawn at random.

    The longest of n random examples is at most l with probability F(l)ⁿ.
    """
    counts = Counter(padded_length(length) for length in lengths)
    expected, seen, before = {}, 0, 0.0
    for length in sorted(counts):
        seen += counts[length]
        share = (seen / len(lengths)) ** batch_size
        expected[length] = batches * (share - before)
        before = share
    return expected


def expected_grouped(lengths: Sequence[int], batches: float) -> dict[int, float]:
    """Like `expected_at_random`, where batches hold examples of similar length."""
    counts = Counter(padded_length(length) for length in lengths)
    return {length: batches * count / len(lengths) for length, count in counts.items()}


def lengths_of(dataset: Any) -> list[int] | None:
    """Return the number of tokens of each example; None where that is not known or the data set is large."""
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__") or len(dataset) > _MOST_EXAMPLES:
        return None
    try:
        with all_preserved():
            if "length" in (getattr(dataset, "column_names", None) or ()):  # as in the data sets of `attendrop train`
                return [int(length) for length in dataset["length"]]
            return [_length(dataset[number]["input_ids"]) for number in range(len(dataset))]
    except Exception:  # lengths are only an optimisation: any error of a user's data set is ignored
        return None


def _length(ids: Any) -> int:
    if hasattr(ids, "shape"):
        return int(ids.shape[-1])
    return max(len(choice) for choice in ids) if isinstance(ids[0], (list, tuple)) else len(ids)
