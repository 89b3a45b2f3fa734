"""What the host does for each batch of an evaluation beside the forward: batches made each time, and kept ones.

    python -m benchmarks.host_batches              # 3,000 texts of up to 128 tokens, batches of 32

On a CPU, without a model: the Trainer's dataloader with `DataCollatorWithPadding` over a `datasets.Dataset`, and the
lengths that a captured evaluation reads to choose its shapes. Times are those of the processor, per batch; the first
evaluation, which makes the batches in both cases, stands apart.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from transformers import DataCollatorWithPadding, PreTrainedTokenizerFast, TrainingArguments

from attendrop import RegularizedTrainer
from attendrop.capture import step_capture
from attendrop.capture.buckets import lengths_of
from attendrop.capture.kept_batches import KeptBatches

from .records import RESULTS, append, conditions, spread_of
from .whole_runs import encoded, make_model, texts_of


def make_tokenizer() -> Any:
    """A tokenizer that can pad, which is all that the collator asks of it."""
    from tokenizers import Tokenizer, models

    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1}, "[UNK]")), pad_token="[PAD]"
    )


def seconds_of(trainer: Any, known: dict[int, Any]) -> float:
    """Processor seconds of one evaluation without its forwards.

    Args:
        trainer: the trainer.
        known: the data sets whose lengths the evaluations before have read, by their ids.
    """
    start = time.process_time()
    loader = trainer.get_eval_dataloader()
    for _ in loader:
        pass
    data = loader.dataset.examples if isinstance(loader.dataset, KeptBatches) else loader.dataset
    if id(data) not in known:  # as `CapturedEvaluation` has it
        known[id(data)] = data, lengths_of(data)
    return time.process_time() - start


def measured(texts: int, batch: int, evaluations: int) -> list[dict[str, Any]]:
    """A row without kept batches, and one with them."""
    from datasets import Dataset

    rows = [{**row, "length": len(row["input_ids"])} for row in encoded(texts_of(None), texts, 0)]
    table = []
    for what in ("made each time", "kept"):
        with tempfile.TemporaryDirectory() as folder:
            args = TrainingArguments(
                folder, per_device_eval_batch_size=batch, report_to=[], use_cpu=True, dataloader_pin_memory=False
            )
            trainer = RegularizedTrainer(
                make_model("tiny", "cpu"), args=args, eval_dataset=Dataset.from_list(rows),
                data_collator=DataCollatorWithPadding(make_tokenizer()),
            )  # fmt: skip
            captures = property(lambda self, what=what: what == "kept")
            with (
                patch.object(step_capture.StepCapture, "may_capture", captures),
                patch.object(step_capture, "reason_against_evaluation", lambda trainer: None),
            ):
                known: dict[int, Any] = {}
                batches = -(-texts // batch)
                first, *later = (seconds_of(trainer, known) / batches * 1e3 for _ in range(evaluations))
        timing = {"first ms": round(first, 3), "later ms": round(statistics.median(later), 3)}
        table.append({"texts": texts, "batch": batch, "batches are": what, **timing, "spread": spread_of(later)})
    return table


def main(arguments: list[str] | None = None) -> None:
    """Measure both, and append the rows to the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--evaluations", type=int, default=6)
    parser.add_argument("--output", type=Path, default=RESULTS / "host-batches.csv", help="CSV file to append to")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows = measured(options.texts, options.batch, options.evaluations)
    for row in rows:
        print("  ".join(f"{title}: {value}" for title, value in row.items()))
    append(options.output, [{**conditions("cpu"), **row} for row in rows])


if __name__ == "__main__":
    main()
