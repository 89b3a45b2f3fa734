"""Patches for forwards with operations that a CUDA graph cannot have, while they are captured.

MPNet and DeBERTa-v2 copy numbers from the CPU, and DeBERTa's head for classification looks for labels that are not
negative; gradient checkpointing reads the state of the random generator. A batch without padding goes without a mask.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from transformers import masking_utils

# The contexts of the two forwards of a block under gradient checkpointing; called before each first one.
Contexts = Callable[[], tuple[AbstractContextManager[None], AbstractContextManager[None]]]


@contextmanager
def capturable(model: nn.Module, contexts: Contexts | None = None) -> Iterator[None]:
    """Keep the forward of `model` from reading on the CPU or from the device, where a patch can avoid that.

    Args:
        model: the model.
        contexts: to which gradient checkpointing leaves the random generator; None: it reads its state.
    """
    with ExitStack() as stack:
        stack.enter_context(_masks_left_out())
        for module in model.modules():
            patch = _PATCHES.get((type(module).__module__, type(module).__qualname__))
            if patch is not None:
                stack.enter_context(patch(module))
            if contexts is not None and isinstance(getattr(module, "_gradient_checkpointing_func", None), partial):
                stack.enter_context(_random_state_not_read(module, contexts))
        yield


def _masks_left_out() -> AbstractContextManager[None]:
    """Let transformers make whole masks: during a capture it does not look at the values of a padding mask.

    Before version 5.18 it does so where there is no padding mask, too, and in a form for which PyTorch has no fast
    attention. Inside, nothing counts as traced where there is nothing to read.
    """
    is_tracing = masking_utils.is_tracing
    return _replaced(masking_utils, "is_tracing", lambda tensor=None: tensor is not None and is_tracing(tensor))


def _random_state_not_read(module: Any, contexts: Contexts) -> AbstractContextManager[None]:
    function = module._gradient_checkpointing_func
    changed = partial(function, use_reentrant=False, preserve_rng_state=False, context_fn=contexts)
    return _replaced(module, "_gradient_checkpointing_func", changed)


# Relative positions of an encoder, by lengths and device. They stay in memory, where graphs read them.
_positions: WeakKeyDictionary[nn.Module, dict[Any, Tensor]] = WeakKeyDictionary()


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute of `owner` for the duration of the block."""
    missing = object()
    before = vars(owner).get(name, missing)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def _deberta_positions_kept(encoder: Any) -> AbstractContextManager[None]:
    """Compute the relative positions of DeBERTa-v2 once for each length, before a step is captured."""
    compute, kept = encoder.get_rel_pos, _positions.setdefault(encoder, {})

    def get_rel_pos(hidden_states: Tensor, query_states: Any = None, relative_pos: Any = None) -> Any:
        if query_states is not None or relative_pos is not None:
            return compute(hidden_states, query_states, relative_pos)
        key = hidden_states.size(-2), hidden_states.device
        if key not in kept:
            kept[key] = compute(hidden_states)
        return kept[key]

    return _replaced(encoder, "get_rel_pos", get_rel_pos)


def _mpnet_positions_kept(encoder: Any) -> AbstractContextManager[None]:
    """Return the same for MPNet: some versions of transformers compute its relative positions on the CPU."""
    compute, kept = encoder.relative_position_bucket, _positions.setdefault(encoder, {})
    device = next(encoder.parameters()).device

    def relative_position_bucket(relative_position: Tensor, **options: Any) -> Tensor:
        key = (*relative_position.shape, device, *sorted(options.items()))
        if key not in kept:
            kept[key] = compute(relative_position, **options).to(device)
        return kept[key]

    return _replaced(encoder, "relative_position_bucket", relative_position_bucket)


class _CrossEntropy(nn.CrossEntropyLoss):
    """Return it in float32, as DeBERTa does."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return super().forward(logits.float(), labels)


@contextmanager
def _deberta_labels_all_counted(head: Any) -> Iterator[None]:
    """Set a problem type, with which DeBERTa's loss ignores labels of -100 instead of searching for negative ones."""
    if head.config.problem_type is not None or head.num_labels == 1:
        yield
        return
    with (
        _replaced(head.config, "problem_type", "single_label_classification"),
        _replaced(sys.modules[type(head).__module__], "CrossEntropyLoss", _CrossEntropy),
    ):
        yield


_DEBERTA = "transformers.models.deberta_v2.modeling_deberta_v2"
_PATCHES: dict[tuple[str, str], Callable[[Any], AbstractContextManager[None]]] = {
    (_DEBERTA, "DebertaV2Encoder"): _deberta_positions_kept,
    (_DEBERTA, "DebertaV2ForSequenceClassification"): _deberta_labels_all_counted,
    ("transformers.models.mpnet.modeling_mpnet", "MPNetEncoder"): _mpnet_positions_kept,
}
