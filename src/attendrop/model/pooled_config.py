"""The settings of a head in the configuration of a model: its pooling, and whether pairs are encoded apart.

It is known without torch, for the parts of the package that must be imported quickly.
"""

from __future__ import annotations

from typing import Any

POOLINGS = ("mean", "cls")
FIELD = "attendrop_pooling"  # which pooling the head reads
PAIRS_FIELD = "attendrop_pairs"  # "separate" where two texts are encoded apart
LENGTH_FIELD = "attendrop_max_length"  # the maximum length in training, in tokens
SEPARATE = "separate"
SCALES = ("output_scale", "output_shift")  # buffers of a regression, which are in no pretrained weights


def pooling_of(config: Any) -> str | None:
    """Return the pooling that a configuration asks for; None for a model with the head of its own class.

    Args:
        config: The configuration of a model.
    """
    return getattr(config, FIELD, None)


def encodes_apart(config: Any) -> bool:
    """Return whether the two texts of an example are encoded apart, so that inputs are `[B, 2, L]`.

    Args:
        config: The configuration of a model.
    """
    return pooling_of(config) is not None and getattr(config, PAIRS_FIELD, None) == SEPARATE
