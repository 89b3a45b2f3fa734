"""The head of a language model, called for a part of the tokens.

The logits of all tokens are often the largest tensor of a training step.

A head is the part of a model behind its trunk (`base_model_prefix`: "model" in Llama, "bert" in BERT). It is called
with the model itself, whose trunk returns given hidden states instead of running. So scales, softcaps and biases of the
logits, LoRA and autocast are those of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import ModelOutput

from ..random import preserved
from .dry_run import few_tokens
from .modes import evaluating, is_sharded
from .sites import unwrapped

# Logits in memory at once: 512 MiB in float32.
LOGITS_AT_ONCE = 2**27


class TokenHead:
    """The head of one model. `TokenHead.find` checks whether it can be called separately.

    Args:
        model: the model, with its wrappers.
        trunk: the part of it that computes the hidden states.
        width: the number of logits of a token.
    """

    def __init__(self, model: nn.Module, trunk: nn.Module, width: int = 0) -> None:
        self._model, self._trunk, self.width = model, trunk, width
        self._output_type: Any = ModelOutput  # of the trunk

    @classmethod
    def find(cls, model: nn.Module) -> TokenHead | None:
        """Return the head of `model`; None where its logits cannot be computed for some tokens at a time.

        This is tested on a few tokens: the logits must be the same, and the head must not draw random numbers, which
        would differ from those for all tokens at once.
        """
        inner = unwrapped(model)
        trunk = getattr(inner, getattr(inner, "base_model_prefix", "") or " ", None)
        if not isinstance(trunk, nn.Module) or trunk is inner or hasattr(model, "_orig_mod") or is_sharded(model):
            return None
        head, device = cls(model, trunk), next(model.parameters()).device
        try:
            with preserved(device), torch.no_grad():
                return head if head._agrees_with_model(few_tokens(inner, inner.config)) else None
        except Exception:  # the model can still compute all logits
            return None

    def _agrees_with_model(self, inputs: Mapping[str, Any]) -> bool:
        with evaluating(self._model):
            whole = self._model(**inputs)["logits"]
            hidden = self.hidden_states(inputs)
            by_token = torch.cat([self.logits(token, inputs) for token in hidden.split(1, dim=1)], dim=1)
        before = _random_state(whole.device)
        self.logits(hidden, inputs)
        if not torch.equal(before, _random_state(whole.device)) or by_token.shape != whole.shape:
            return False
        self.width = whole.shape[-1]
        # Another head would give quite different logits; in bfloat16 the same one differs by about 1e-2.
        return bool((by_token - whole).abs().max() <= 0.05 * whole.abs().max().clamp(min=1e-3))

    def hidden_states(self, inputs: Mapping[str, Any]) -> Tensor:
        """Return the output of the trunk, [B, T, d]. The head runs on the first token only."""
        states: list[Tensor] = []

        def first_token(module: nn.Module, args: Any, output: Any) -> ModelOutput:
            states.append(output["last_hidden_state"])
            self._output_type = type(output)
            return self._output_type(**{**output, "last_hidden_state": states[0][:, :1]})

        hook = self._trunk.register_forward_hook(first_token)
        try:
            self._model(**inputs)
        finally:
            hook.remove()
        return states[0]

    def logits(self, hidden: Tensor, inputs: Mapping[str, Any]) -> Tensor:
        """Return the logits of these tokens, [B, t, V].

        Args:
            hidden: their hidden states, [B, t, d].
            inputs: what the model gets, without labels.
        """
        with _returning(self._trunk, lambda *args, **kwargs: self._output_type(last_hidden_state=hidden)):
            return self._model(**inputs)["logits"]

    def parts(self, hidden: Tensor) -> Iterator[slice]:
        """Divide the tokens into parts whose logits may be in memory at once."""
        size = max(1, LOGITS_AT_ONCE // (hidden.shape[0] * self.width))
        for start in range(0, hidden.shape[1], size):
            yield slice(start, min(start + size, hidden.shape[1]))


def _random_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


@contextmanager
def _returning(module: nn.Module, function: Callable[..., Any]) -> Iterator[None]:
    """Use `function` as the forward of the module in the block."""
    own = vars(module).get("forward")
    module.forward = function
    try:
        yield
    finally:
        if own is None:
            del module.forward
        else:
            module.forward = own
