"""The variation among the seeds of a study, which its verdicts are about."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from ...records import StudyRecord
from ...report.analysis import MethodSummary, Result
from ...tasks.outcomes import OUTCOMES


def scope_of(records: Sequence[StudyRecord]) -> str:
    """Return the sentence that says what the seeds vary.

    Args:
        records: The runs of one task and amount of data that have a result.
    """
    drawn = {(r.examples.get("train"), r.available.get("train")) for r in records if "train" in r.available}
    (used, available) = next(iter(drawn)) if len(drawn) == 1 else (None, None)
    count = "a part" if used is None or available is None else f"{used:,}"
    total = "the training examples" if available is None else f"the {available:,} training examples"
    if not drawn:
        text = "The seeds vary the training, not its examples."
    elif any(record.resample for record in records):
        text = f"The seeds vary the training and its examples: each draws {count} of {total}."
    else:
        text = f"All seeds train on the same {count} of {total}: this is about these examples, not about others."
    if any(record.head_seed is not None for record in records):
        text += " All begin with the same new head."
    return " ".join([text, *_scored(records)])


def scored_of(records: Sequence[StudyRecord]) -> str:
    """Return what the scores of a study are, in a few words; empty if it is the usual.

    Args:
        records: The runs that have a result.
    """
    on = ["the validation examples and all training examples that were not drawn"] * scores_rest(records)
    epochs = max((record.score_epochs for record in records), default=1)
    return ", ".join([*on, *([f"mean over the last {epochs} epochs"] if epochs > 1 else [])])


def scores_rest(records: Sequence[StudyRecord]) -> bool:
    """Return whether the training examples that were not drawn are scored, too."""
    return any(record.score_on == "rest" for record in records)


def scores_same_examples(records: Sequence[StudyRecord]) -> bool:
    """Return whether all runs are scored on the same validation examples.

    Args:
        records: Runs of one task and amount of data.
    """
    return len({record.data.get("validation") for record in records}) < 2


def _scored(records: Sequence[StudyRecord]) -> list[str]:
    """Return sentences that say where the score is not the usual one, and what is estimated then."""
    sentences = []
    if scores_rest(records):
        low, high = (of(record.examples.get("validation", 0) for record in records) for of in (min, max))
        count = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        which = "the same ones" if scores_same_examples(records) else "other ones"
        sentences.append(
            f"The score is that on all {count} labelled examples that were not trained on, {which} for each seed: this "
            "is about new examples from the same source, not about the validation set."
        )
    if (epochs := max((record.score_epochs for record in records), default=1)) > 1:
        sentences.append(
            f"The score is the mean over the last {epochs} epochs: this is about models near the end of training, not "
            "about the last one alone."
        )
    return sentences


def with_scope(results: Mapping[str, Result], sentence: str) -> dict[str, Result]:
    """Return results whose comparisons say what the seeds vary.

    Args:
        results: Method -> its result on an outcome.
        sentence: From `scope_of`.
    """
    return {
        method: dataclasses.replace(
            result,
            comparison=result.comparison
            and dataclasses.replace(result.comparison, sentence=f"{result.comparison.sentence} {sentence}"),
        )
        for method, result in results.items()
    }


def with_scope_over_tasks(summary: Sequence[MethodSummary], records: Sequence[StudyRecord]) -> list[MethodSummary]:
    """Return the verdicts over tasks; those on the score say what the seeds vary.

    Args:
        summary: The verdicts.
        records: The runs that have a result.
    """
    scope = scope_of(records)
    return [
        dataclasses.replace(entry, sentence=f"{entry.sentence} {scope}") if OUTCOMES[entry.outcome].is_score else entry
        for entry in summary
    ]
