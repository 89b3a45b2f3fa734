"""The maximum length of texts in tokens: the limit of the model, that of a saved run, and cut texts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...errors import UserError
from ...model.pooled_config import LENGTH_FIELD, pooling_of
from .catalogue import Task
from .describe import Description
from .findings import WARNING, Finding
from .kinds import kind_of

OWN_LENGTH_FIELD = "attendrop_own_max_length"  # in the configuration of a saved tokenizer
_UNLIMITED = 1_000_000  # tokenizers without a limit have a far larger number
_RESERVED = 8  # a model may use a few of its positions for itself: RoBERTa and BART begin at 2


def check_length(model: Any, tokenizer: Any, max_length: int | None, task: Task, notes: list[str]) -> int:
    """Return the maximum length in tokens. One that the user set must not exceed the positions of the model.

    Args:
        model: The model with its head.
        tokenizer: Its tokenizer.
        max_length: The length that the user set; None = that of the task, reduced to what the model takes.
        task: The task.
        notes: A list to which a sentence is added if the length of the task is reduced.
    """
    wanted = task.max_length if max_length is None else max_length
    length = min(wanted, tokenizer.model_max_length)
    most = _most_tokens(model, tokenizer, task, length)
    if length <= most:
        return wanted
    if max_length is not None:
        raise UserError(f"max_length is {max_length}; this model has positions for at most {most} tokens.")
    notes.append(f"texts are truncated to {most} tokens, because the model has no more positions")
    return most


def note_length(model: Any, max_length: int) -> None:
    """Write the maximum length into the configuration of a model whose folder says it to other libraries.

    Args:
        model: The model; adapters may wrap it.
        max_length: The length in tokens.
    """
    if pooling_of(model.config) is not None:
        setattr(model.config, LENGTH_FIELD, max_length)


@contextmanager
def saved_with_length(tokenizer: Any, max_length: int, task: Task) -> Iterator[None]:
    """Save a tokenizer with the maximum length of the run as its own, so that other libraries truncate as we do.

    Its own limit is saved beside it, for further training (`load_tokenizer`).

    Args:
        tokenizer: The tokenizer; image processors and feature extractors are saved as they are.
        max_length: The maximum length in tokens.
        task: The task of the run.
    """
    if not hasattr(tokenizer, "model_max_length") or not kind_of(task).has_answers:
        yield
        return
    own = tokenizer.model_max_length
    tokenizer.init_kwargs.setdefault(OWN_LENGTH_FIELD, own)
    tokenizer.model_max_length = min(max_length, own)
    try:
        yield
    finally:
        tokenizer.model_max_length = own


def own_length(tokenizer: Any) -> int:
    """Return the limit of a tokenizer itself, which a finished run may have saved with a smaller one."""
    return int(tokenizer.init_kwargs.get(OWN_LENGTH_FIELD, tokenizer.model_max_length))


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


def _most_tokens(model: Any, tokenizer: Any, task: Task, length: int) -> int:
    """Return `length` if the model accepts it, otherwise the largest accepted number of tokens.

    The configuration is not conclusive, so close to the limit one example is run through the model.
    """
    positions = getattr(model.config, "max_position_embeddings", None)
    if not isinstance(positions, int) or length <= positions - _RESERVED:
        return length
    is_training = model.training
    model.eval()
    try:
        candidates = [length, *range(min(positions, length - 1), max(positions - _RESERVED, 1) - 1, -1)]
        return next((n for n in candidates if _takes(model, tokenizer, task, n)), length)
    finally:
        model.train(is_training)


def _takes(model: Any, tokenizer: Any, task: Task, length: int) -> bool:
    import torch

    word = next(i for i in range(len(tokenizer)) if i not in tokenizer.all_special_ids)
    ids = torch.full((1, length), word)
    if tokenizer.eos_token_id is not None:
        ids[:, -1] = tokenizer.eos_token_id  # BART classifies at the end of the text
    inputs = kind_of(task).example_inputs(ids)
    try:
        with torch.no_grad():
            model(**{name: value.to(model.device) for name, value in inputs.items()})
    except (IndexError, RuntimeError, TypeError, ValueError):
        return False
    return True
