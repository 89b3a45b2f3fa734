"""The result of a run, for Python code and notebooks."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from ...utils.deprecation import warn_renamed
from ..records import FolderRecord, Scores, flat_scores
from ..report.evaluation import baseline_rows, score_rows

_WARNING = "warning: "  # begins the notes that are warnings


@dataclass(repr=False)
class Result:
    """The result of a run. A notebook shows its scores and its curves.

    Attributes:
        folder: The output folder.
        scores: Part of the data -> metric -> value. The parts are the splits of the task and the tasks of --also-eval.
        model: The trained model.
        finished: False if the run was stopped by Ctrl-C, with a checkpoint.
        record: The content of `record.json`; None if the run was stopped.
    """

    folder: Path
    scores: Scores
    model: Any
    finished: bool
    record: FolderRecord | None = None

    def __repr__(self) -> str:
        if not self.finished:
            return f"Result({str(self.folder)!r}, stopped before its end)"
        scores = ", ".join(f"{name} {_number(value)}" for name, value in flat_scores(self.scores).items())
        first = f"{self.sentence}; " if self.sentence else ""
        return f"Result({str(self.folder)!r}: {first}{scores})"

    @property
    def sentence(self) -> str:
        """What to know first: a simple baseline is as good as the model, or better; empty if none is."""
        return "" if self.record is None else self.record.baselines.sentence

    @property
    def warnings(self) -> list[str]:
        """Warnings about the data and the predictions of the model."""
        if self.record is None:
            return []
        notes = [note.removeprefix(_WARNING) for note in self.record.notes if note.startswith(_WARNING)]
        return [*notes, *(warning for one in self.record.evaluation.values() for warning in one.warnings)]

    @property
    def metrics(self) -> dict[str, float]:
        """Deprecated: use `scores`. The scores by `<part>/<metric>`."""
        warn_renamed("Result.metrics", "Result.scores")
        return flat_scores(self.scores)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the scores, the warnings, and `curves.png` if the run has written it."""
        if not self.finished:
            return f"<p>{escape(repr(self))}</p>"
        scores = score_rows(self.scores, self.record.evaluation if self.record else {})
        rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in scores)
        titles = "".join(f"<th>{title}</th>" for title in ("score", "value", "95 % interval", "most frequent answer"))
        table = f"<table><thead><tr>{titles}</tr></thead><tbody>{rows}</tbody></table>"
        if self.record is not None and (beside := baseline_rows(self.record.baselines)):
            body = "".join(f"<tr><td>{escape(name)}</td><td>{value}</td></tr>" for name, value in beside[1:])
            titles = f"<th>beside simple baselines</th><th>{escape(beside[0][1])}</th>"
            table += f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"
        first = f"<p><strong>{escape(self.sentence)}</strong></p>" if self.sentence else ""
        warnings = "".join(f"<li>{escape(text)}</li>" for text in self.warnings)
        curves = self.folder / "curves.png"
        picture = ""
        if curves.is_file():
            data = base64.b64encode(curves.read_bytes()).decode()
            style = "max-width: 100%"  # a notebook is narrower than the picture
            picture = f'<img alt="losses and scores" style="{style}" src="data:image/png;base64,{data}">'
        listed = f"<p>warnings:</p><ul>{warnings}</ul>" if warnings else ""
        return f"{first}{table}{listed}{picture}<p>everything is in <code>{escape(str(self.folder))}</code></p>"


def _number(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
