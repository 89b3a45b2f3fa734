"""Means over seeds with bands: scores and losses by epoch, metrics logged by methods by step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ...records import StudyRecord
from ...report.analysis import Curves, Numbers, Series
from ...statistics.paired import t_interval
from ...tasks.metrics import limits_of
from .groups import Group


def curves_of(group: Group, method: str, confidence: float) -> Curves:
    """Return score and losses of a method after each evaluation: epoch, mean, and the limits of the mean's interval."""
    runs = [record.curves for record in group.runs[method].values() if record.is_finished]
    epochs = sorted({row["epoch"] for rows in runs for row in rows})
    names = list(dict.fromkeys(name for rows in runs for row in rows for name in row))
    curves = Curves(epochs, {})
    for name in names:
        if name in ("epoch", "step", "majority"):
            continue
        columns = [[row.get(name) for rows in runs for row in rows if row["epoch"] == epoch] for epoch in epochs]
        mean, low, high = band(columns, confidence)
        curves.mean[name], curves.low[name], curves.high[name] = mean, *(_limited(side, name) for side in (low, high))
    return curves


def _limited(values: Numbers, metric: str) -> Numbers:
    """Return the limits of intervals, which end where the metric does."""
    low, high = limits_of(metric)
    return [None if value is None else min(max(value, low), high) for value in values]


def method_metrics_of(records: Iterable[StudyRecord], confidence: float) -> dict[str, Series]:
    """Return the metrics that a method logged, by name: step, mean over its runs, and the mean's interval."""
    series: dict[str, dict[int, list[float]]] = {}
    for record in records:
        for name, points in record.method_metrics.items():
            for step, value in points:
                series.setdefault(name, {}).setdefault(int(step), []).append(value)
    return {
        name: Series(sorted(points), *band([points[step] for step in sorted(points)], confidence))
        for name, points in series.items()
    }


def band(columns: Iterable[Iterable[Any]], confidence: float) -> tuple[Numbers, Numbers, Numbers]:
    """Return the mean, low and high of each column.

    A column with one number has no interval, one without numbers no mean.
    """
    means: Numbers = []
    lows: Numbers = []
    highs: Numbers = []
    for column in columns:
        known = np.array([value for value in column if value is not None and np.isfinite(value)], float)
        low, high = t_interval(known, confidence) if len(known) > 1 else (None, None)
        means.append(float(known.mean()) if len(known) else None)
        lows.append(low)
        highs.append(high)
    return means, lows, highs
