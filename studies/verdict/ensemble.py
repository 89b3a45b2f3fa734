"""The upper line of the study: an ensemble of five plain models that were trained on the same examples.

    python -m studies.verdict.ensemble confirm --data DATA --model MODEL --name minilm --minutes 4

The members of an ensemble differ in their new head and in the order of the examples. (An ensemble of the seeds of the
study would see many times as many training examples, because every seed draws its own.) There is one line for each
ensemble, with the columns of all other runs, in docs/results/verdict/ensemble-<stage>-<model>.csv.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from attendrop.lab.evaluation.outputs import Outputs, read_outputs, write_outputs
from attendrop.lab.records import StudyRecord
from attendrop.lab.statistics.calibration import calibration_error, log_loss, scaled_probabilities
from attendrop.lab.studies.analysis.ensembles import evidence, other_outcomes, score_of
from attendrop.lab.studies.spec import RunSpec

from .lines import make_parser, run_parts
from .parts import MEMBERS, PLAIN, STAGES, UPPER_LINE
from .plan import runs
from .run import COLUMNS, line, portable_id

PART = "ensemble"
OTHER_HEAD = 100_000  # added to the seed for each further member


def members_of(run: RunSpec) -> list[RunSpec]:
    """The runs of an ensemble; the first is the plain run itself.

    Args:
        run: A plain run of the study.
    """
    seeds = [run.seed + OTHER_HEAD * number for number in range(1, MEMBERS)]
    others = [replace(run, head_seed=s, settings={**run.settings, "data_seed": s}) for s in seeds]
    return [run, *others]


def scores_of(members: list[Outputs], metric: str) -> dict[str, float]:
    """The scores of the mean of the members' predictions.

    Args:
        members: What each member answered.
        metric: The metric of the task.
    """
    mean = np.mean([evidence(member, place) for place, member in enumerate(members)], axis=0)
    scores = {metric: score_of(mean, members[0], metric), **other_outcomes(mean, members[0])}
    if members[0].kind == "classification":
        gold = members[0].gold
        scaled = scaled_probabilities(np.log(np.maximum(mean, 1e-12)), gold)
        scores |= {"scaled_loss": log_loss(scaled, gold), "scaled_ece": calibration_error(scaled, gold)}
    return scores


class Ensembles:
    """Collects the records of the members, and makes a line when the last one is there."""

    def __init__(self) -> None:
        self._records: dict[str, list[StudyRecord]] = {}

    def lines_of(self, name: str, record: StudyRecord) -> Iterator[dict[str, Any]]:
        """The line of the ensemble, if this is its last member."""
        records = self._records.setdefault(name, [])
        records.append(record)
        if len(records) == MEMBERS:
            yield self._line(name, self._records.pop(name))

    def _line(self, name: str, records: list[StudyRecord]) -> dict[str, Any]:
        failed = [record for record in records if not record.is_finished]
        if failed:
            return {**line(failed[0]), "id": name, "method": UPPER_LINE}
        with tempfile.TemporaryDirectory() as folder:
            for record in records:
                write_outputs(folder, record.id, str(record.outputs))
            answers = [read_outputs(folder, record.id) for record in records]
        scores = {part: scores_of([of[part] for of in answers], str(records[0].metric)) for part in answers[0]}
        seconds = sum(record.cost.seconds or 0.0 for record in records)
        together = replace(records[0], scores=scores, cost=replace(records[0].cost, seconds=round(seconds, 3)))
        return {**line(together), "id": name, "method": UPPER_LINE}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("stage", choices=STAGES)
    options = parser.parse_args()
    plain = runs(options.stage, options.data, options.model, [PLAIN], options.name)
    wanted = {portable_id(run): members_of(run) for run in plain}
    run_parts(COLUMNS, {f"{PART}-{options.stage}": wanted}, Ensembles().lines_of, options)


if __name__ == "__main__":
    main()
