"""Time of `attendrop predict` against a bare loop over the model: from a CSV file with texts to one with predictions.

    python -m benchmarks.prediction --model DIR --rows 20000

A classifier is trained for a few steps first; `--folder RUN` takes a finished run of your own instead. The bare loop
is what one would write by hand: it reads the file, tokenises all texts in one call, sorts them by length, runs the
model on padded batches and writes the class of each text. Both load the model and use the same batch size. Neither
counts the import of libraries.
"""

from __future__ import annotations

import argparse
import csv
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .records import RESULTS, append, conditions


def write_texts(path: Path, column: str, rows: int) -> None:
    """Texts of 3 to 60 words, as many short ones as long ones."""
    generator = random.Random(0)
    words = ("the", "film", "is", "a", "very", "good", "one", "and", "its", "end", "was", "not", "what", "we", "hoped")
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([column])
        writer.writerows([" ".join(generator.choices(words, k=generator.randint(3, 60)))] for _ in range(rows))


def short_run(model: Path, scratch: Path) -> Path:
    """The folder of a classifier of single texts that was trained for two steps."""
    from attendrop import fine_tune

    file = scratch / "train.csv"
    rows = [f"a {'good' if row % 2 else 'bad'} film number {row},{row % 2}\n" for row in range(40)]
    file.write_text("text,label\n" + "".join(rows), encoding="utf-8")
    return fine_tune(model=str(model), train_file=str(file), max_steps=2, output_dir=str(scratch / "run")).folder


def bare_loop(folder: Path, source: Path, target: Path, column: str, batch_size: int, max_length: int) -> None:
    """What one would write by hand, for a classifier of single texts."""
    import torch
    from transformers import AutoTokenizer

    from attendrop import load_classifier

    with source.open(encoding="utf-8", newline="") as file:
        texts = [row[column] for row in csv.DictReader(file)]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = load_classifier(folder).to(device)
    encoded = tokenizer(texts, truncation=True, max_length=max_length)
    order = sorted(range(len(texts)), key=lambda row: len(encoded["input_ids"][row]))
    predictions: list[Any] = []
    with torch.inference_mode():
        for first in range(0, len(order), batch_size):
            rows = order[first : first + batch_size]
            batch = tokenizer.pad({name: [encoded[name][row] for row in rows] for name in encoded}, return_tensors="pt")
            predictions.append(model(**batch.to(device)).logits.argmax(-1))
    classes = dict(zip(order, torch.cat(predictions).tolist(), strict=True))
    with target.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([column, "prediction"])
        writer.writerows([text, model.config.id2label[classes[row]]] for row, text in enumerate(texts))


def fastest(run: Callable[[], object], rounds: int) -> float:
    """The least time of several rounds, in seconds."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def measure(options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """The row of one measurement. A first, short round of both is not measured."""
    import torch

    from attendrop.lab.runs.predict import predict_file, read_finished

    run = read_finished(options.folder)
    if run.task.kind != "classification" or len(run.task.text) != 1:
        raise ValueError(f"{options.folder} is a run of kind {run.task.kind}; it must be a classifier of single texts.")
    column, source = run.task.text[0], scratch / "texts.csv"
    ours, bare = scratch / "ours.csv", scratch / "bare.csv"

    def ways() -> tuple[Callable[[], object], Callable[[], object]]:
        return (
            lambda: predict_file(options.folder, source, ours, options.batch, overwrite=True),
            lambda: bare_loop(options.folder, source, bare, column, options.batch, run.max_length),
        )

    write_texts(source, column, 2 * options.batch)
    for way in ways():
        way()
    write_texts(source, column, options.rows)
    tool, loop = (fastest(way, options.rounds) for way in ways())
    predictions = []
    for path in (ours, bare):
        with path.open(encoding="utf-8", newline="") as file:
            predictions.append([row["prediction"] for row in csv.DictReader(file)])
    same = sum(a == b for a, b in zip(*predictions, strict=True)) / options.rows
    return {
        **conditions("cuda" if torch.cuda.is_available() else "cpu"),
        "rows": options.rows,
        "batch": options.batch,
        "attendrop s": round(tool, 2),
        "bare loop s": round(loop, 2),
        "ratio": round(tool / loop, 3),
        "same predictions": round(same, 4),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", type=Path, help="a folder, such as that of all-MiniLM-L6-v2")
    source.add_argument("--folder", type=Path, help="a finished run, a classifier of single texts")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULTS / "prediction.csv")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        options.folder = options.folder or short_run(options.model, Path(scratch))
        row = measure(options, Path(scratch))
    print(f"attendrop {row['attendrop s']} s, bare loop {row['bare loop s']} s, ratio {row['ratio']}")
    append(options.output, [row])


if __name__ == "__main__":
    main()
