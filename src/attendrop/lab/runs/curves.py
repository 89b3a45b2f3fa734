"""The curves of several finished runs in one figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import UserError
from ..records import FolderRecord
from ..report.learning_curves import plot_histories
from .folder import read_record

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_runs(folders: Sequence[str | Path], path: str | Path | None = None, metric: str | None = None) -> Figure:
    """Draw the losses and scores of finished runs, one line for each run, named by its methods.

    Runs with the same methods are told apart by the names of their folders.

    Args:
        folders: The folders of finished runs.
        path: The image file to write; None = none.
        metric: The score; None = the first metric of the runs' task.

    Example:
        ```python
        plot_runs(["runs/plain", "runs/addrop", "runs/attendout"], "curves.png")
        ```
    """
    records = {Path(folder): read_record(folder) for folder in folders}
    score = metric or _common_metric(records)
    for folder, record in records.items():
        logged = {name for entry in record.history for name in entry}
        if f"eval_{score.removeprefix('eval_')}" not in logged:
            known = sorted(name.removeprefix("eval_") for name in logged if name.startswith("eval_"))
            raise UserError(f"metric is {score!r}, which {str(folder)!r} has not; it has {', '.join(known) or 'none'}.")
    histories = {name: records[folder].history for folder, name in _names(records).items()}
    return plot_histories(histories, path, score)


def _common_metric(records: Mapping[Path, FolderRecord]) -> str:
    metrics = {str(record.metric) for record in records.values()}
    if len(metrics) > 1:
        raise UserError(f"the runs have different scores ({', '.join(sorted(metrics))}); choose one with --metric.")
    return metrics.pop()


def _names(records: Mapping[Path, FolderRecord]) -> dict[Path, str]:
    """Return the name of each run in the legend: its methods, with the name of the folder where that is not unique."""
    methods = {
        folder: " + ".join(method["method"] for method in record.regularizers) or "plain"
        for folder, record in records.items()
    }
    counts = Counter(methods.values())
    return {folder: name if counts[name] == 1 else f"{name} ({folder.name})" for folder, name in methods.items()}
