"""Records and an executor with made-up scores, for studies without training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from attendrop.lab.records import StudyRecord
from attendrop.lab.studies.spec import RunSpec


def record_of(spec: RunSpec, score: float, **more: Any) -> StudyRecord:
    """A record as a worker makes it, with made-up scores."""
    content = {
        "schema": 2, "id": spec.id, "status": "finished", "method": spec.method, "task": spec.task, "size": spec.size,
        "seed": spec.seed, "keep": spec.keep, "fold": None, "trial": None, "settings": dict(spec.settings),
        "regularizers": [], "versions": {"attendrop": "0.1.0"}, "device": "cpu",
        "model": {"name": "m", "fingerprint": "f"},
        "data": {"train": "t", "validation": "v"}, "examples": {"train": 100, "validation": 50}, "metric": "accuracy",
        "greater_is_better": True, "labels": ["a", "b"], "notes": [], "curves": [], "method_metrics": {},
        "scores": {"validation": {"accuracy": score, "loss": 1 - score, "brier": 0.3, "ece": 0.1}},
        "predictions": {}, "kept": {"rule": "last", "epoch": 1.0}, "plan": spec.plan,
        "cost": {"seconds": 2.0, "steps": 3},
        "started": "2026-01-01T00:00:00Z", "ended": "2026-01-01T00:01:00Z", "worker": "w", "error": None, **more,
    }  # fmt: skip
    return StudyRecord.from_json(content)


class MadeUpExecutor:
    """Gives every run a score of its method and seed, without training. It hands several runs out at a time."""

    def __init__(self, score: Callable[[RunSpec], float], workers: int = 3) -> None:
        self.score, self.workers, self.ran = score, workers, []  # type: ignore[var-annotated]

    def results(self, next_spec: Any, on_progress: Any = None) -> Iterator[StudyRecord]:
        running: list[RunSpec] = []
        while True:
            while len(running) < self.workers and (spec := next_spec()) is not None:
                if not spec.only_check:  # there is nothing to find out
                    running.append(spec)
            if not running:
                return
            spec = running.pop(0)
            self.ran.append(spec)
            yield record_of(spec, self.score(spec))

    def close(self) -> None:
        pass


def noisy(effects: dict[str, float], deviation: float = 0.01) -> Callable[[RunSpec], float]:
    """A score that depends on the seed, and on the method by an effect with noise."""

    def score(spec: RunSpec) -> float:
        shared = np.random.default_rng(spec.seed).normal(0.8, 0.03)
        own = np.random.default_rng([spec.seed, len(spec.method)]).normal(0, deviation)
        return float(shared + effects.get(spec.method, 0.0) + (own if spec.method != "plain" else 0))

    return score
