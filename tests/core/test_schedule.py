"""Schedules of strengths, and the alternation of epochs in cross-tuning."""

from __future__ import annotations

import pytest

from attendrop import Progress, Schedule
from attendrop.core.schedule import is_method_epoch, value_at


def test_schedule_is_piecewise_linear() -> None:
    schedule = Schedule([(0, 0.0), (0.5, 1.0), (1, 0.5)])
    assert [schedule(t) for t in (0, 0.25, 0.5, 0.75, 1)] == [0, 0.5, 1, 0.75, 0.5]
    assert Schedule.parse("0.1..0.5") == Schedule([(0, 0.1), (1, 0.5)])
    assert value_at(Schedule.parse("0..1"), Progress(step=30, total_steps=40)) == 0.75
    assert value_at(0.3, Progress()) == 0.3


@pytest.mark.parametrize("points", [[(0, 1)], [(0, 1), (0, 2), (1, 1)], [(0.1, 1), (1, 1)], [(0, 1), (0.9, 1)]])
def test_invalid_points_are_refused(points: list) -> None:
    with pytest.raises(ValueError, match="Schedule.points"):
        Schedule(points)


@pytest.mark.parametrize(
    ("end_on", "epochs", "expected"),
    [
        ("plain", 3, "-x-"),
        ("plain", 4, "x-x-"),
        ("plain", 2, "x-"),
        ("method", 3, "x-x"),
        ("method", 4, "-x-x"),
        ("either", 3, "-x-"),
        ("either", 4, "-x-x"),
    ],
)
def test_cross_tuning_alternates_and_ends_as_requested(end_on: str, epochs: int, expected: str) -> None:
    actual = "".join("x" if is_method_epoch(epoch, epochs, end_on) else "-" for epoch in range(epochs))
    assert actual == expected
