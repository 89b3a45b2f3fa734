"""Simulated evaluations: the bias of calibration errors, and the log loss after temperature scaling.

`python tests/scripts/simulate_calibration.py` prints the table and writes it to studies/results/calibration.csv. A
model has two classes. Its logits are those of a calibrated one times a factor: 1 = calibrated, 2 = overconfident.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attendrop.lab.statistics.calibration import (
    calibration_error,
    debiased_calibration_error,
    log_loss,
    scaled_probabilities,
    softmax,
)

RESULTS = Path(__file__).parents[2] / "studies" / "results" / "calibration.csv"
EXAMPLES = (100, 277, 1000)
SPREADS = {0.77: 1.2, 0.86: 2.5, 0.92: 5.0, 0.96: 9.0}  # accuracy -> deviation of the calibrated logits
FACTORS = (1.0, 1.5, 3.0)


class Row(NamedTuple):
    """One line of the table; calibration errors in points, `doubled` the share of evaluations in percent.

    `true_error` is the error on endless examples, `error` and `debiased` are the mean estimates. `loss` and
    `scaled_loss` are the mean losses, and `doubled` says how often scaling more than doubles the loss.
    """

    accuracy: float
    factor: float
    examples: int
    evaluations: int
    true_error: float
    error: float
    debiased: float
    loss: float
    scaled_loss: float
    doubled: float


def draw(generator: np.random.Generator, examples: int, spread: float, factor: float) -> tuple[Any, Any]:
    """Return the logits of a model, and the true classes."""
    logits = generator.normal(0, spread, (examples, 2))
    gold = (generator.random(examples) < softmax(logits)[:, 1]).astype(int)
    return factor * logits, gold


def simulate(accuracy: float, factor: float, examples: int, evaluations: int, seed: int = 0) -> Row:
    """Simulate evaluations of one model on different examples.

    Args:
        accuracy: One of `SPREADS`.
        factor: How much too large its logits are.
        examples: The number of examples of an evaluation.
        evaluations: How many evaluations.
        seed: The seed of the simulation.
    """
    spread, generator = SPREADS[accuracy], np.random.default_rng([seed, examples, round(100 * accuracy)])
    many, _ = draw(generator, 400_000, spread, factor)
    true_error = float(np.abs(softmax(many).max(-1) - softmax(many / factor).max(-1)).mean())
    values = []
    for _ in range(evaluations):
        logits, gold = draw(generator, examples, spread, factor)
        raw, scaled = softmax(logits), scaled_probabilities(logits, gold)
        losses = log_loss(raw, gold), log_loss(scaled, gold)
        errors = calibration_error(raw, gold), debiased_calibration_error(raw, gold)
        values.append([*(100 * error for error in errors), *losses, 100.0 * (losses[1] > 2 * losses[0])])
    return Row(accuracy, factor, examples, evaluations, 100 * true_error, *np.mean(values, 0).tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--evaluations", type=int, default=400, help="number of evaluations for each line")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows = []
    for accuracy in SPREADS:
        for factor in FACTORS:
            for examples in EXAMPLES:
                rows.append(simulate(accuracy, factor, examples, options.evaluations))
                print(rows[-1], flush=True)
    with options.output.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(Row._fields)
        writer.writerows([f"{value:.4g}" if isinstance(value, float) else value for value in row] for row in rows)


if __name__ == "__main__":
    main()
