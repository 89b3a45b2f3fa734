"""The closing text of the demo: the limits of one seed, and commands to try next."""

from __future__ import annotations

import json
import math
import shutil
import sys
from pathlib import Path

from ....methods.attendout import AttendOut
from ....utils.shell import quoted
from ...runs import Result
from ..console import console
from .folder import Reviews
from .options import RUNS, DemoOptions


def print_conclusions(options: DemoOptions, results: dict[str, Result], dev_reviews: Reviews) -> None:
    """Compare the accuracies with their standard error, and state what remains uncertain."""
    accuracy = {name: result.scores["validation"]["accuracy"] for name, result in results.items()}
    plain, count = accuracy["plain"], len(dev_reviews)
    error = 100 * standard_error(plain, count)
    positive = sum(label == "positive" for _, label in dev_reviews) / count
    console.print("\nWhat one seed can and cannot show", style="bold")
    console.print(
        f"An accuracy of {plain:.3f} on {count} reviews has a standard error of {error:.1f} points. Differences below "
        f"about twice that, {2 * error:.1f} points, cannot be distinguished from noise. A model that always gives the "
        f"same answer would score {max(positive, 1 - positive):.3f}."
    )
    for name in ("addrop", "attendout"):
        points = 100 * (accuracy[name] - plain)
        is_noise = abs(points) < 2 * error
        verdict = "within the noise" if is_noise else "more than the noise, but another seed may not repeat it"
        console.print(f"{RUNS[name].title} against plain: {points:+.1f} points, {verdict}.")
    console.print(
        "The seed sets the weights of the new head, the order of the reviews and every random draw. One run does not "
        "show how much other seeds differ from this one; several seeds of each method do."
    )
    rounds = len(json.loads((options.output_dir / "attendout/attendout_run.json").read_text(encoding="utf-8")))
    held_out = round(AttendOut.hold_out * options.train_samples)
    console.print(
        f"AttendOut learned from {options.train_samples - held_out} reviews; the other {held_out} gave its rewards. "
        "The better of its two networks on the dev set was kept, so its score is slightly optimistic. Its generator "
        f"was updated {rounds} times, too few to learn much."
    )


def standard_error(accuracy: float, count: int) -> float:
    """Return the standard error of an accuracy that was measured on `count` independent examples."""
    return math.sqrt(accuracy * (1 - accuracy) / count)


def print_next_steps(options: DemoOptions, model: Path, page: Path) -> None:
    """Print commands that can be copied: training, prediction and comparison with the user's own file.

    Args:
        options: The options of the demo.
        model: The folder of the pretrained model.
        page: The report of the comparison.
    """
    program, folder = _program(), options.output_dir
    yours = f"--model {quoted(model)} --train-file yours.csv --text text --label label"
    console.print("\nWhat to try next", style="bold")
    console.print("# look at the report in a browser", style="dim")
    _print_command(page.absolute().as_uri())
    console.print("# predict your own review", style="dim")
    _print_command(f'{program} predict {quoted(folder / "addrop")} "a film that never quite takes off"')
    console.print("# look at your own CSV file, train on it; --text and --label name its columns", style="dim")
    _print_command(f"{program} check yours.csv --text text --label label")
    _print_command(f"{program} train {yours} --method {RUNS['addrop'].method} --output-dir runs/yours")
    console.print("# which method helps on your data? ten seeds of each, and a verdict", style="dim")
    _print_command(
        f"{program} compare {yours} --method plain --method {RUNS['addrop'].method} --method rdrop:alpha=1 --seeds 10 "
        "--output-dir studies/yours"
    )


def _program() -> str:
    """Return how this program was called, for commands that can be copied."""
    called = Path(sys.argv[0])
    if called.name != "attendrop":
        return f"{quoted(sys.executable)} -m attendrop"
    on_path = shutil.which("attendrop")
    return "attendrop" if on_path and Path(on_path).samefile(called) else quoted(called)


def _print_command(text: str) -> None:
    console.print(text, soft_wrap=True, markup=False)  # on one line, so that it can be copied
