"""Time of whole runs on few texts: `Trainer.train()` with an evaluation after each epoch, captured against eager.

    python -m benchmarks.whole_runs                                     # 300, 1,000 and 3,000 texts, both models
    python -m benchmarks.whole_runs --sizes 300 --models minilm
    python -m benchmarks.whole_runs --texts train.parquet               # the first column of texts in a file

The time includes everything that a run does once: recording graphs, the first use of kernels, the lengths of the
examples. A run of each kind warms the process up and does not count. In a round all kinds of runs take turns; the times
are medians over the rounds, and "spread" is the difference of the largest and the smallest in percent. "x eager" is the
ratio to the same run with eager steps: the aim is at most 1.0 at 300 texts, and at most 0.6 from 1,000 on.

Lengths are those of real texts: sentences of this project's documentation, or of a file. Words are cut into pieces of
at most six letters, whose numbers are hashes, so that no tokenizer has to be downloaded. Labels are random.
"""

from __future__ import annotations

import argparse
import gc
import re
import statistics
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import Trainer, TrainingArguments

from attendrop import ADDrop, RegularizedTrainer

from .records import RESULTS, append, conditions, spread_of
from .shapes import MINILM, TINY

ROOT = Path(__file__).parent.parent
VOCABULARY = 30522
LONGEST = 128  # tokens
# name -> sizes of a BERT model; those of `BertConfig` itself are RoBERTa-base's
MODELS: dict[str, dict[str, int]] = {"minilm": MINILM, "roberta-base": {}, "tiny": TINY}
AIMS = {300: 1.0, 1000: 0.6, 3000: 0.6}
# kind of run -> (class of the trainer, its arguments)
RUNS: dict[str, tuple[Any, dict[str, Any]]] = {
    "stock plain": (Trainer, {}),
    "plain eager": (RegularizedTrainer, {"capture": "eager"}),
    "plain captured": (RegularizedTrainer, {"capture": "auto"}),
    "addrop eager": (RegularizedTrainer, {"capture": "eager", "regularizers": "addrop"}),
    "addrop captured": (RegularizedTrainer, {"capture": "auto", "regularizers": "addrop"}),
}


def texts_of(file: Path | None) -> list[str]:
    """The texts of a Parquet file, or the sentences of the documentation."""
    if file is not None:
        import pyarrow
        import pyarrow.parquet as parquet

        table = parquet.read_table(file)
        column = next(name for name, kind in zip(table.column_names, table.schema.types, strict=True)
                      if pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind))  # fmt: skip
        return [text for text in table.column(column).to_pylist() if text and text.strip()]
    pages = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    words = " ".join(" ".join(path.read_text(encoding="utf-8").split()) for path in pages)
    return [sentence for sentence in re.split(r"(?<=[.?!:;]) ", words) if 8 < len(sentence) < 600]


def encoded(texts: list[str], count: int, seed: int) -> list[dict[str, Any]]:
    """`count` texts, drawn at random, as token numbers with random labels."""
    g = torch.Generator().manual_seed(seed)
    rows = []
    for number in torch.randint(len(texts), (count,), generator=g).tolist():
        pieces = re.findall(r"\w{1,6}|[^\w\s]", texts[number])[: LONGEST - 2]
        ids = [1, *(10 + zlib.crc32(piece.encode()) % (VOCABULARY - 10) for piece in pieces), 2]
        rows.append({"input_ids": ids, "attention_mask": [1] * len(ids), "labels": int(sum(ids) % 2)})
    return rows


def padded(examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """A batch as long as its longest example."""
    width = max(len(example["input_ids"]) for example in examples)
    batch = {
        name: torch.tensor([example[name] + [0] * (width - len(example[name])) for example in examples])
        for name in ("input_ids", "attention_mask")
    }
    return {**batch, "labels": torch.tensor([example["labels"] for example in examples])}


def make_model(name: str, device: str) -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=VOCABULARY, num_labels=2, **MODELS[name])
    with torch.device(device):
        return transformers.BertForSequenceClassification(config)


def seconds_of(run: str, model: str, data: tuple[list[Any], list[Any]], options: argparse.Namespace) -> float:
    """Seconds of one `train()`."""
    gc.collect()
    cls, arguments = RUNS[run]
    arguments = dict(arguments)
    if arguments.get("regularizers") == "addrop":
        arguments["regularizers"] = [ADDrop(p=0.3, q=0.3, layers="first")]
    on_gpu = options.device == "cuda"
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder, num_train_epochs=options.epochs, per_device_train_batch_size=16, per_device_eval_batch_size=32,
            eval_strategy="epoch", save_strategy="no", report_to=[], disable_tqdm=True, logging_strategy="epoch",
            learning_rate=1e-5, bf16=on_gpu, use_cpu=not on_gpu,
        )  # fmt: skip
        trainer = cls(
            make_model(model, options.device), args=args, train_dataset=data[0], eval_dataset=data[1],
            data_collator=padded, **arguments,
        )  # fmt: skip
        trainer.remove_callback(transformers.PrinterCallback)
        start = time.perf_counter()
        trainer.train()
        if on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - start


def rows_of(model: str, size: int, times: dict[str, list[float]]) -> list[dict[str, Any]]:
    """One row for each kind of run."""
    medians = {run: statistics.median(values) for run, values in times.items()}
    table = []
    for run, values in times.items():
        eager = medians.get(run.replace("captured", "eager"))
        table.append(
            {
                "model": model,
                "texts": size,
                "run": run,
                "seconds": round(medians[run], 2),
                "spread": spread_of(values),
                "rounds": len(values),
                "x eager": round(medians[run] / eager, 3) if "captured" in run and eager else "",
                "aim": AIMS.get(size, "") if "captured" in run else "",
                "x stock": round(medians[run] / medians["stock plain"], 3) if "stock plain" in medians else "",
            }
        )
    return table


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, default=[300, 1000, 3000], help="numbers of texts")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=["minilm", "roberta-base"])
    parser.add_argument("--runs", nargs="+", choices=list(RUNS), default=list(RUNS))
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=None, help="by default 5 at 300 texts, 3 at 1,000 and 1 beyond")
    parser.add_argument("--texts", type=Path, default=None, help="a Parquet file with texts")
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--output", type=Path, default=None, help="CSV file to append to")
    options = parser.parse_args(arguments)
    transformers.utils.logging.set_verbosity_error()
    texts = texts_of(options.texts)
    path = options.output or RESULTS / f"whole-runs-{options.device}.csv"
    print(
        f"{'model':<13} {'texts':>5} {'run':<16} {'seconds':>8} {'spread':>7} {'x eager':>8} {'aim':>5} {'x stock':>8}"
    )
    for model in options.models:
        for run in options.runs:
            short = argparse.Namespace(**{**vars(options), "epochs": 2})
            seconds_of(run, model, (encoded(texts, 16, 0), encoded(texts, 32, 1)), short)
        for size in options.sizes:
            data = encoded(texts, size, 0), encoded(texts, max(32, min(size // 3, 300)), 1)
            rounds = options.rounds or (5 if size <= 300 else 3 if size <= 1000 else 1)
            times: dict[str, list[float]] = {run: [] for run in options.runs}
            for _ in range(rounds):
                for run in options.runs:
                    times[run].append(seconds_of(run, model, data, options))
                    # at once, so that it is known also if the command is stopped before the medians
                    print(f"{model:<13} {size:>5} {run:<16} {times[run][-1]:>8.2f}", flush=True)
            table = rows_of(model, size, times)
            print("medians:")
            for row in table:
                print(
                    f"{model:<13} {size:>5} {row['run']:<16} {row['seconds']:>8} {row['spread']:>6}% "
                    f"{row['x eager']:>8} {row['aim']:>5} {row['x stock']:>8}",
                    flush=True,
                )
            shared = conditions(options.device, epochs=options.epochs, longest=LONGEST)
            append(path, [{**shared, **row} for row in table])


if __name__ == "__main__":
    main()
