"""Time of evaluation and of prediction against a bare captured forward of the same batches.

    python -m benchmarks.evaluation                                 # RoBERTa-base shapes, batches of 32
    python -m benchmarks.evaluation --models minilm --texts 1000 5000

"evaluate" is an evaluation inside of `Trainer.train()`, with bf16: the Trainer's own `eval_runtime` in a run that
evaluates ten times, without the first one, which records the graphs and makes the batches that are kept. "predict" is
what `attendrop predict` does between tokens and logits, in float32, with the recording of its graphs. The bare forward
is the least that one could write by hand for the same batches, which are padded and on the device already: it copies
each into a buffer and replays the graph of its length. It records its graphs only beside "predict", with which it takes
turns; beside "evaluate" it comes after the training. Times are medians, over evaluations or rounds, and "spread" is the
difference of the longest and the shortest in percent.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import TrainingArguments
from transformers.utils import is_datasets_available

from attendrop import RegularizedTrainer
from attendrop.lab.runs.inference import Rows, run_model
from attendrop.lab.tasks import Task
from attendrop.utils.batches import padded_length
from attendrop.utils.processes import freeze_imported

from .records import RESULTS, append, conditions, spread_of
from .weight_passes import as_graph
from .whole_runs import LONGEST, MODELS, encoded, make_model, padded, texts_of

BATCH = 32
EVALUATIONS = 10  # of a run; with fewer, the smaller last batch would not repay its recording

Batch = dict[str, torch.Tensor]


class Padding:
    """`padded` as a collator whose batches may be kept."""

    is_deterministic = True

    def __call__(self, examples: list[dict[str, Any]]) -> Batch:
        return padded(examples)


def device_batches(examples: list[dict[str, Any]], device: str) -> list[Batch]:
    """The examples in their order, in batches on the device; full ones are as long as captured batches are."""
    batches = []
    for first in range(0, len(examples), BATCH):
        batch = padded(examples[first : first + BATCH])
        width = batch["input_ids"].shape[1]
        more = padded_length(width) - width if len(batch["labels"]) == BATCH else 0
        batch = {name: x if x.dim() == 1 else torch.nn.functional.pad(x, (0, more)) for name, x in batch.items()}
        batches.append({name: x.to(device) for name, x in batch.items()})
    return batches


class BareForward:
    """Graphs of a forward, one for each shape of batch. On a CPU the model itself runs."""

    def __init__(self, model: Any, device: str, dtype: torch.dtype | None) -> None:
        self.model, self.device, self.dtype = model.eval(), device, dtype
        self.graphs: dict[torch.Size, tuple[Callable[[], Any], Batch, torch.Tensor]] = {}

    def logits(self, batch: Batch) -> torch.Tensor:
        cast = nullcontext() if self.dtype is None else torch.autocast(self.device, self.dtype, cache_enabled=False)
        with cast:
            return self.model(**batch).logits

    def captured(self, batch: Batch) -> tuple[Callable[[], Any], Batch, torch.Tensor]:
        """The replay of the graph for batches of this shape, the buffers that it reads, and its logits."""
        shape = batch["input_ids"].shape
        if shape not in self.graphs:
            static, outputs = {name: x.clone() for name, x in batch.items()}, []
            replay = as_graph(lambda: outputs.append(self.logits(static)))
            self.graphs[shape] = replay, static, outputs[-1]  # what the capture itself returned
        return self.graphs[shape]

    @torch.no_grad()
    def run(self, batches: Iterable[Batch]) -> None:
        """The logits of all batches, to the host."""
        outputs = []
        for batch in batches:
            if self.device == "cpu":
                outputs.append(self.logits(batch))
                continue
            replay, static, logits = self.captured(batch)
            for name, value in batch.items():
                static[name].copy_(value)
            replay()
            outputs.append(logits.clone())
        torch.cat(outputs).cpu()


def seconds(work: Callable[[], Any], device: str) -> float:
    """Of one call, until the GPU has finished it."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def evaluated(data: list[dict[str, Any]]) -> Any:
    """The texts as a data set whose batches are kept; where `datasets` is not installed, the list, which has none."""
    if not is_datasets_available():
        return data
    from datasets import Dataset

    return Dataset.from_list(data)


def evaluations(model: Any, data: list[dict[str, Any]], device: str) -> list[float]:
    """Seconds of the evaluations of a run, without the first one."""
    on_gpu = device == "cuda"
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder, max_steps=EVALUATIONS, eval_strategy="steps", eval_steps=1, per_device_train_batch_size=4,
            per_device_eval_batch_size=BATCH, save_strategy="no", logging_strategy="no", report_to=[],
            disable_tqdm=True, learning_rate=1e-6, bf16=on_gpu, use_cpu=not on_gpu,
        )  # fmt: skip
        trainer = RegularizedTrainer(
            model, args=args, train_dataset=data[:16], eval_dataset=evaluated(data), data_collator=Padding()
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    return [row["eval_runtime"] for row in trainer.state.log_history if "eval_runtime" in row][1:]


def of_evaluation(name: str, data: list[dict[str, Any]], options: argparse.Namespace) -> tuple[list[float], ...]:
    """Seconds of evaluations, and of bare forwards."""
    model, device = make_model(name, options.device), options.device
    taken = evaluations(model, data, device)
    bare = BareForward(model, device, torch.bfloat16 if device == "cuda" else None)
    batches = device_batches(data, device)
    bare.run(batches)
    return taken, [seconds(lambda: bare.run(batches), device) for _ in taken]


def of_prediction(name: str, data: list[dict[str, Any]], options: argparse.Namespace) -> tuple[list[float], ...]:
    """Seconds of predictions, and of bare forwards; each records its graphs."""
    model, device = make_model(name, options.device), options.device
    columns = {column: (np.concatenate([row[column] for row in data]), 0) for column in ("input_ids", "attention_mask")}
    rows = Rows(columns, np.array([len(row["input_ids"]) for row in data]))
    task = Task("texts", "classification", ("input_ids",), "labels")
    batches = device_batches([data[number] for number in rows.order], device)
    for batch in batches:
        del batch["labels"]

    def bare() -> None:
        BareForward(model, device, None).run(batches)

    works = [lambda: run_model(model, rows, None, task, BATCH, LONGEST), bare]
    rounds = [[seconds(work, device) for work in works] for _ in range(options.rounds + 1)][1:]
    return tuple(map(list, zip(*rounds, strict=True)))


KINDS = {"evaluate": of_evaluation, "predict": of_prediction}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=["roberta-base"])
    parser.add_argument("--texts", nargs="+", type=int, default=[3000, 10000], help="for evaluate, and for predict")
    parser.add_argument("--only", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--rounds", type=int, default=3, help="of predict")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--output", type=Path, default=None, help="CSV file to append to")
    options = parser.parse_args(arguments)
    transformers.utils.logging.set_verbosity_error()
    freeze_imported()
    texts, table = texts_of(None), []
    for model in options.models:
        for kind in options.only:
            count = options.texts[0] if kind == "evaluate" else options.texts[-1]
            taken, bare = KINDS[kind](model, encoded(texts, count, 0), options)
            row = {
                "model": model,
                "what": kind,
                "texts": count,
                "seconds": round(statistics.median(taken), 3),
                "spread": spread_of(taken),
                "bare seconds": round(statistics.median(bare), 3),
                "bare spread": spread_of(bare),
                "x bare": round(statistics.median(taken) / statistics.median(bare), 2),
                "rounds": len(taken),
            }
            print("  ".join(f"{title}: {value}" for title, value in row.items()), flush=True)
            table.append(row)
    shared = conditions(options.device, batch=BATCH, longest=LONGEST)
    append(options.output or RESULTS / f"evaluation-{options.device}.csv", [{**shared, **row} for row in table])


if __name__ == "__main__":
    main()
