"""The result of a run, as Python code and notebooks see it."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any


@dataclass(repr=False)
class Result:
    """The result of a run. A notebook shows its scores and its curves.

    Attributes:
        folder: The output folder.
        metrics: The scores, `<split>/<metric>` for the splits of the task and `<task>/<metric>` for --also-eval.
        model: The trained model.
        finished: False if the run was stopped by Ctrl-C, with a checkpoint.
        record: The content of `record.json`; empty if the run was stopped.
    """

    folder: Path
    metrics: dict[str, float]
    model: Any
    finished: bool
    record: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        if not self.finished:
            return f"Result({str(self.folder)!r}, stopped before its end)"
        scores = ", ".join(f"{name} {_number(value)}" for name, value in self.metrics.items())
        return f"Result({str(self.folder)!r}: {scores})"

    def _repr_html_(self) -> str:
        """What a notebook shows: the scores, and `curves.png` if the run has written it."""
        if not self.finished:
            return f"<p>{escape(repr(self))}</p>"
        rows = "".join(
            f"<tr><td>{escape(name)}</td><td>{_number(value)}</td></tr>" for name, value in self.metrics.items()
        )
        table = f"<table><thead><tr><th>score</th><th>value</th></tr></thead><tbody>{rows}</tbody></table>"
        curves = self.folder / "curves.png"
        picture = ""
        if curves.is_file():
            data = base64.b64encode(curves.read_bytes()).decode()
            picture = f'<img alt="losses and scores during training" src="data:image/png;base64,{data}">'
        return f"{table}{picture}<p>everything is in <code>{escape(str(self.folder))}</code></p>"


def _number(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
