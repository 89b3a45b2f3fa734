"""How much of a training batch is padding, on twelve real data sets, and what packing texts into rows could save.

    python -m benchmarks.padding --model DIR --data DIR

`--data` holds `<name>/train.parquet` with a column `text`, and `text_pair` where texts are pairs. Texts are drawn once,
and batches as `attendrop train` does by default (grouped by length) and as the Trainer does (at random). Captured steps
round lengths up, so that batches share graphs. Nothing is trained: the share of padding is the most that rows without
padding could save, of the work that grows with the number of tokens.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attendrop.capture.buckets import BREAK_EVEN_STEPS, buckets_for, expected_at_random, expected_grouped
from attendrop.lab.runs.recipe import epochs_for
from attendrop.lab.runs.sampler import LengthGroupedSampler

from .records import RESULTS, append, conditions

OUTPUT = RESULTS / "padding.csv"
SAMPLERS = ("grouped", "random")


def batches(lengths: Sequence[int], size: int, sampler: str, epochs: int) -> Iterator[list[int]]:
    """Yield the lengths of the texts of each batch of all epochs.

    Args:
        lengths: The number of tokens of each text.
        size: The number of texts in a batch.
        sampler: One of `SAMPLERS`.
        epochs: The number of epochs.
    """
    order = LengthGroupedSampler(lengths, size, seed=0, grouped=sampler == "grouped")
    for epoch in range(epochs):
        order.set_epoch(epoch)
        drawn = list(order)
        for start in range(0, len(drawn), size):
            yield [lengths[place] for place in drawn[start : start + size]]


def shares(lengths: Sequence[int], size: int, sampler: str, epochs: int) -> tuple[float, float]:
    """Return the share of padding among the tokens of all batches: as they are, and as captured steps round them.

    Args:
        lengths: The number of tokens of each text.
        size: The number of texts in a batch.
        sampler: One of `SAMPLERS`.
        epochs: The number of epochs.
    """
    count = epochs * -(-len(lengths) // size)
    is_grouped = sampler == "grouped"
    expected = expected_grouped(lengths, count) if is_grouped else expected_at_random(lengths, size, count)
    buckets = buckets_for(expected, BREAK_EVEN_STEPS)
    tokens = exact = rounded = 0
    for batch in batches(lengths, size, sampler, epochs):
        tokens += sum(batch)
        exact += len(batch) * max(batch)
        rounded += len(batch) * (buckets.rounded(max(batch)) if buckets.is_worth_capturing(max(batch)) else max(batch))
    return 1 - tokens / exact, 1 - tokens / rounded


def tokens_of(folder: Path, tokenizer: Any, texts: int, longest: int) -> list[int]:
    """Return the number of tokens of texts that are drawn from a data set.

    Args:
        folder: The folder of the data set.
        tokenizer: The tokenizer.
        texts: How many are drawn.
        longest: The length at which they are truncated.
    """
    import pandas

    table = pandas.read_parquet(folder / "train.parquet")
    table = table.sample(min(texts, len(table)), random_state=0)
    columns = [name for name in ("text", "text_pair") if name in table]
    encoded = tokenizer(*(table[name].tolist() for name in columns), truncation=True, max_length=longest)
    return [len(ids) for ids in encoded["input_ids"]]


def main(arguments: list[str] | None = None) -> None:
    """Count the padding of every data set of the folder, and append the rows to the results."""
    from transformers import AutoTokenizer

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a folder with a tokenizer")
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--batch", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--max-length", type=int, default=128)
    options = parser.parse_args(arguments)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    rows = []
    for folder in sorted(path.parent for path in options.data.glob("*/train.parquet")):
        lengths = tokens_of(folder, tokenizer, options.texts, options.max_length)
        for size in options.batch:
            row = {
                "data set": folder.name,
                "texts": len(lengths),
                "batch": size,
                "tokens": round(sum(lengths) / len(lengths), 1),
            }
            for sampler in SAMPLERS:
                exact, rounded = shares(lengths, size, sampler, epochs_for(len(lengths), size))
                row |= {f"{sampler} %": round(100 * exact, 1), f"{sampler}, captured %": round(100 * rounded, 1)}
            rows.append(row)
            print(row)
    append(OUTPUT, [{**row, **conditions("cpu")} for row in rows])


if __name__ == "__main__":
    main()
