"""Memory: a rough estimate before training, and a one-line error when it runs out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ...errors import UserError

_ADAM = ("adamw_torch", "adamw_torch_fused", "adamw_apex_fused", "adamw_anyprecision")
# Numbers that a transformer block keeps for its backward, for each token and unit of its width: inputs of the linear
# layers and norms, the attention's query, key, value and output, the feed-forward's inner values, dropout masks.
_KEPT = 17
_GB = 1e9


@dataclass(frozen=True)
class MemoryEstimate:
    """An estimate of the memory that training needs, in bytes.

    Attributes:
        parameters: The weights.
        gradients: Their gradients.
        optimizer: The state of the optimizer.
        activations: What the longest batch keeps for its backward pass.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer + self.activations

    def __str__(self) -> str:
        parts = ", ".join(
            f"{name} {getattr(self, name) / _GB:.2f}"
            for name in ("parameters", "gradients", "optimizer", "activations")
        )
        return f"training needs about {self.total / _GB:.2f} GB of memory, as a rough estimate ({parts} GB)"


def estimate_memory(model: Any, arguments: Any, tokens: int) -> MemoryEstimate:
    """Estimate the memory of plain training. Methods with further forward passes need more.

    Args:
        model: The model, with adapters if it has any.
        arguments: The training arguments.
        tokens: The length of the longest text, in tokens.
    """
    parameters = list(model.parameters())
    trained = sum(p.numel() * p.element_size() for p in parameters if p.requires_grad)
    name = str(getattr(arguments.optim, "value", arguments.optim))
    return MemoryEstimate(
        parameters=sum(p.numel() * p.element_size() for p in parameters),
        gradients=trained,
        optimizer=2 * trained if name in _ADAM else trained,
        activations=_activations(model.config, arguments, tokens),
    )


def _activations(config: Any, arguments: Any, tokens: int) -> int:
    text = config.get_text_config()
    width, layers = getattr(text, "hidden_size", 0), getattr(text, "num_hidden_layers", 0)
    if getattr(config, "is_encoder_decoder", False):
        layers += getattr(text, "decoder_layers", None) or getattr(text, "num_decoder_layers", None) or layers
    inner = getattr(text, "intermediate_size", None) or 4 * width
    size = 2 if arguments.bf16 or arguments.fp16 else 4
    kept = (_KEPT - 8) * width + 2 * inner  # for each token of a block; _KEPT counts an inner width of 4 × width
    numbers = layers * width + kept if arguments.gradient_checkpointing else layers * kept
    return int(arguments.per_device_train_batch_size * tokens * numbers * size)


@contextmanager
def out_of_memory_explained(arguments: Any) -> Iterator[None]:
    """Turn an out-of-memory error into a `UserError` that names the flags that help.

    Args:
        arguments: The training arguments.
    """
    try:
        yield
    except (torch.OutOfMemoryError, RuntimeError, MemoryError) as error:
        is_cpu = isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error)
        if not is_cpu and not isinstance(error, torch.OutOfMemoryError):
            raise
        size = arguments.per_device_train_batch_size
        half = max(1, size // 2)
        raise UserError(
            f"{'the machine' if is_cpu else 'the GPU'} has not enough memory for per_device_train_batch_size {size}; "
            f"try --per-device-train-batch-size {half} --gradient-accumulation-steps "
            f"{2 * arguments.gradient_accumulation_steps}, --gradient-checkpointing, --bf16, a smaller --max-length, "
            "or --lora."
        ) from None
