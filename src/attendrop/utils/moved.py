"""Makes imports of moved modules fail with an error that names the new path."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType, ModuleType

# Old path below the package -> new path, which may itself be an old one. The longest one that matches counts.
MOVED = {
    "capture.forwards": "capture.prediction",
    "capture.host": "capture.host_ops",
    "capture.kept": "capture.persistent_graphs",
    "capture.losses": "capture.nonfinite_filter",
    "capture.measured": "capture.measured_plans",
    "capture.steps": "capture.step_capture",
    "cli": "lab.cli",
    "experiments": "lab.runs",
    "experiments.adapters": "lab.runs.lora",
    "experiments.answers": "lab.tasks.kinds.answers",
    "experiments.checkpoints": "lab.runs.interruption",
    "experiments.judgement": "lab.evaluation.scores",
    "experiments.judging": "lab.evaluation.evaluator",
    "experiments.robustness": "lab.robustness.run_folder",
    "experiments.tables": "lab.evaluation.tables",
    "experiments.tokens": "lab.runs.hub_token",
    "kernels.all_weights": "kernels.foreach",
    "kernels.bits_attention": "kernels.bitmask_attention",
    "kernels.weights": "kernels.random_scaling",
    "lab.cli.demo.downloads": "lab.tasks.downloads",
    "lab.evaluation.answers": "lab.tasks.kinds.answers",
    "lab.evaluation.judgement": "lab.evaluation.scores",
    "lab.evaluation.judging": "lab.evaluation.evaluator",
    "lab.evaluation.scoring": "lab.evaluation.scorer",
    "lab.report.judgement": "lab.report.evaluation",
    "lab.report.page.check": "lab.report.analysis",
    "lab.runs.recommended": "lab.runs.presets",
    "lab.tasks.encode": "lab.tasks.kinds.encoder",
    "lab.tasks.files.formats": "lab.tasks.files",
    "lab.tasks.lengths": "lab.tasks.max_length",
    "lab.tasks.positions": "lab.tasks.max_length",
    "model.adapters": "model.attention_adapters",
    "model.bits": "model.bitmask_attention",
    "model.robustness": "lab.robustness.measure",
    "prune.tickets": "methods.supertickets.tickets",
    "report": "lab.report",
    "report.curves": "lab.report.attendout_figure",
    "report.judgement": "lab.report.evaluation",
    "report.robustness": "lab.robustness.figure",
    "report.training": "lab.report.learning_curves",
    "statistics": "lab.statistics",
    "study": "lab.studies",
    "study.engines": "lab.studies.executors",
    "study.engines.places": "lab.studies.executors.capacity",
    "study.outputs": "lab.evaluation.outputs",
    "study.scoring": "lab.evaluation.scorer",
    "tasks": "lab.tasks",
    "tasks.doctor": "lab.tasks.diagnostics",
    "tasks.encode": "lab.tasks.kinds.encoder",
    "tasks.own_files": "lab.tasks.user_files",
    "trainer.manifest": "utils.manifest",
}


def new_path(name: str) -> str | None:
    """Return the path to which a module has moved, or None.

    Args:
        name: The full name of a module, such as `attendrop.study.records`.
    """
    package, *parts = name.split(".")
    for end in range(len(parts), 0, -1):
        head = ".".join(parts[:end])
        if head in MOVED:
            moved = ".".join([package, MOVED[head], *parts[end:]])
            return new_path(moved) or moved
    return None


class MovedFinder:
    """The last import finder, which is called only for modules that do not exist."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        """Raise an ImportError that names the new path of a module that has moved."""
        if name.startswith("attendrop.") and new_path(name):
            wanted = _imported_name(name)
            raise ImportError(f"{wanted} has moved: import {new_path(wanted)} instead.", name=wanted)


def _imported_name(package: str) -> str:
    """Return the name in the import statement: Python asks for `a.b` first where it imports `a.b.c`."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and "importlib" in frame.f_code.co_filename:
        name = frame.f_locals.get("name")
        if isinstance(name, str) and name.startswith(f"{package}."):
            package = name
        frame = frame.f_back
    return package


sys.meta_path.append(MovedFinder)
