"""Choose the input of the head of a run, where the user set nothing."""

from __future__ import annotations

from typing import Any

from .. import tasks
from ..tasks.pooling import SEPARATE, can_have_pooling, choose_pairs, choose_pooling
from .settings import RunConfig


def choose_head(config: RunConfig, data: tasks.Data, model: Any) -> tuple[dict[str, str], list[str]]:
    """Choose the pooling, and how two texts are encoded.

    Args:
        config: The configuration.
        data: The data, from `load_data`.
        model: The configuration of the model.

    Returns:
        The settings, and sentences for the user about what was chosen.
    """
    is_remote = config.trust_remote_code and "AutoModelForSequenceClassification" in (
        getattr(model, "auto_map", None) or {}
    )
    chosen = choose_pooling(config.model, model, data.task, config.pooling, is_remote)
    examples = 0 if data.train is None else len(data.train)
    pairs = choose_pairs(model, data.task, chosen, examples, config.pairs)
    if not can_have_pooling(data.task):
        return {}, []
    sentences = [chosen.sentence] if chosen.sentence is not None and config.pooling == "auto" else []
    if pairs == SEPARATE and config.pairs == "auto":
        sentences.append(
            "the two texts of an example are encoded apart, because the model is a sentence encoder and there are few "
            "examples; --pairs joint makes one sequence of them"
        )
    return {"pooling": chosen.pooling, "pairs": pairs}, sentences
