"""How many texts are longer than what a model reads."""

from __future__ import annotations

from typing import Any

from .describe import Description
from .findings import WARNING, Finding

_UNLIMITED = 1_000_000  # tokenizers without a limit have a far larger number


def examine_lengths(description: Description, model: str, config: Any, tokenizer: Any) -> list[Finding]:
    """Return a warning for each split with texts that are cut.

    Args:
        description: The statistics of the data, with lengths.
        model: The name or the folder of the model.
        config: Its configuration.
        tokenizer: Its tokenizer.
    """
    positions = getattr(config, "max_position_embeddings", None)
    limits = [n for n in (positions, tokenizer.model_max_length) if isinstance(n, int) and 0 < n < _UNLIMITED]
    most = min(limits, default=None)
    findings = []
    for split, lengths in description.lengths.items():
        if not lengths.truncated:
            continue
        takes = (
            f"; {model} takes {most:,} tokens, see --max-length"
            if most and most > (description.max_length or 0)
            else ""
        )
        text = f"{lengths.truncated:.1%} of the texts of {split} have more than {description.max_length} tokens"
        findings.append(Finding(WARNING, f"{text} and are cut (the longest has {lengths.longest:,}){takes}"))
    return findings
