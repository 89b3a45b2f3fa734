"""Whether the runs of a study learned anything: without that, a comparison of methods means nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ...records import StudyRecord
from ...report.analysis import Result
from .outcomes import Group


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
            and dataclasses.replace(result.comparison, verdict="undecided", sentence=sentence, seeds_needed=None),
        )
        for method, result in results.items()
    }
