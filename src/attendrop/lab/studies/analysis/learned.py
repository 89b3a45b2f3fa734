"""Whether the runs of a study learned anything: without that, a comparison of methods means nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping

from ...records import StudyRecord
from ...report.analysis import Result
from ...statistics.rules import collapsed_seeds
from .groups import Group


def has_learned(record: StudyRecord, part: str) -> bool:
    """Return whether a run does more than give the most frequent answer; True where that is not known.

    Args:
        record: The record of the run.
        part: The part of the data.
    """
    predictions = record.predictions.get(part)
    if predictions is not None and len(set(predictions.gold)) > 1 and len(set(predictions.predicted)) == 1:
        return False
    majority, score = record.score(part, "majority"), record.score(part)
    return record.metric != "accuracy" or majority is None or score is None or score > majority


def unlearned(group: Group, part: str) -> str:
    """Return the sentence that no run learned anything; empty if one did.

    Args:
        group: The runs of all methods.
        part: The part of the data.
    """
    scored = [record for record in group.finished if part in record.scores]
    if not scored or any(has_learned(record, part) for record in scored):
        return ""
    share = scored[0].score(part, "majority")
    size = "" if share is None else f" ({100 * share:.1f} % of {part})"
    return (
        f"No run learned anything: none beats the most frequent answer{size}, so that nothing follows about the "
        "methods. Train longer (--num-train-epochs), with a higher --learning-rate or on more data."
    )


def collapsed_runs(group: Group, part: str, baseline: str) -> dict[str, set[Hashable]]:
    """Return the seeds of the runs of each method that failed, learned nothing or are far worse than the others.

    Args:
        group: The runs of all methods.
        part: The part of the data.
        baseline: The baseline.
    """
    example = next(record for record in group.finished if part in record.scores)
    scores: dict[str, dict[Hashable, float | None]] = {
        m: {s: r.score(part) if r.is_finished else None for s, r in of.items()} for m, of in group.runs.items()
    }
    return {
        method: collapsed_seeds(of, scores.get(baseline, {}), example.greater_is_better)
        | {seed for seed, record in group.runs[method].items() if record.is_finished and not has_learned(record, part)}
        for method, of in scores.items()
    }


def without_verdicts(results: Mapping[str, Result], sentence: str) -> dict[str, Result]:
    """Return results with the same figures, whose verdicts are open.

    Args:
        results: Method -> its result on an outcome.
        sentence: Why there is no verdict.
    """
    return {
        method: dataclasses.replace(
            result,
            comparison=result.comparison
            and dataclasses.replace(
                result.comparison,
                verdict="undecided",
                sentence=sentence,
                seeds_needed=None,
                does_not_hurt=None,
                withheld=None,
            ),
        )
        for method, result in results.items()
    }
