"""The length of a sound for a model: convolutions turn its samples into the frames that attention sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

Convolutions = tuple[tuple[int, int], ...]  # kernel and stride of each, in order
Length = TypeVar("Length", int, Tensor)

_FRAMES = 5  # of the example for a dry run


def convolutions_of(config: Any) -> Convolutions:
    """Return the convolutions before the first block, for wav2vec2 and its relatives; empty for other models."""
    kernels, strides = getattr(config, "conv_kernel", None), getattr(config, "conv_stride", None)
    if not isinstance(kernels, Sequence) or not isinstance(strides, Sequence):
        return ()
    return tuple(zip(kernels, strides, strict=True))


def frames_of(samples: Length, convolutions: Convolutions) -> Length:
    """Return the number of frames of a sound with this number of samples."""
    for kernel, stride in convolutions:
        samples = (samples - kernel) // stride + 1
    return samples


def few_samples(main: str, config: Any) -> dict[str, Tensor] | None:
    """Return the smallest sound on which every attention layer runs; None for a model whose inputs are not known.

    Args:
        main: the name of the model's main input.
        config: the configuration of the model.
    """
    convolutions, bins = convolutions_of(config), getattr(config, "num_mel_bins", None)
    if main == "input_values" and convolutions:  # wav2vec2: samples
        samples = _FRAMES
        for kernel, stride in reversed(convolutions):
            samples = (samples - 1) * stride + kernel
        return {main: torch.zeros(1, samples)}
    if main == "input_features" and bins and hasattr(config, "max_source_positions"):  # Whisper: always 30 seconds
        return {main: torch.zeros(1, bins, 2 * config.max_source_positions)}
    if main == "input_values" and bins and hasattr(config, "max_length"):  # the audio spectrogram transformer
        return {main: torch.zeros(1, config.max_length, bins)}
    return None
