"""The last part of the demo: a small comparison over three seeds, and its report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ...records import StudyRecord
from ...report.page import write_report
from ...studies.compare import compare
from ...studies.design import make_design
from ...studies.executors import make_executor
from ...studies.status import Status, Watcher
from ..compare import print_verdicts
from ..console import console, shown
from ..study_view import result_of, run_name
from .options import LEARNING_RATE, RUNS, DemoOptions

FOLDER = "comparison"
SEEDS, EPOCHS = 3, 2
_SHARE = 0.5  # of the training reviews, to save time


def compare_seeds(options: DemoOptions, model: Path) -> Path:
    """Compare AD-DROP with plain fine-tuning over a few seeds, and return the path of the report.

    Args:
        options: The options of the demo.
        model: The folder of the pretrained model.
    """
    settings = options.settings(model, EPOCHS, 2 * LEARNING_RATE)
    method = str(RUNS["addrop"].method)
    design = make_design(settings, ["plain", method], sizes=(f"fraction={_SHARE}",), resample=True)
    console.print("\nDoes it help? One seed cannot tell", style="bold")
    console.print(
        f"So here are {SEEDS} seeds of plain and AD-DROP. To save time, each seed trains on another half of the "
        f"reviews, for {EPOCHS} epochs and at twice the learning rate. This is what `attendrop compare` does; five "
        "seeds are the fewest for a verdict."
    )
    folder = options.output_dir / FOLDER
    # The runs are trained in this process: starting others would take longer than the runs.
    analysis = compare(design, folder, make_executor(workers=0), seeds=SEEDS, watcher=_Lines())
    print_verdicts(replace(analysis, ensembles=[]))  # those are in the report
    page = write_report(analysis, folder)
    console.print(f"the report, with all figures: {shown(page)}", soft_wrap=True)
    return page


class _Lines(Watcher):
    """Prints one line for each run."""

    def ended(self, record: StudyRecord, status: Status) -> None:
        console.print(f"{shown(run_name(record))}: {shown(result_of(record))}", style="dim", soft_wrap=True)
