"""From attributions to the attention positions that AD-DROP keeps."""

from .api import DIRECTIONS, IMPLEMENTATIONS, keep_from_gradient, keep_from_scores
from .bits import SelectedBits, bits_from_gradient
from .reference import DropRule, candidates, keep_mask, scores

__all__ = [
    "DIRECTIONS",
    "IMPLEMENTATIONS",
    "DropRule",
    "SelectedBits",
    "bits_from_gradient",
    "candidates",
    "keep_from_gradient",
    "keep_from_scores",
    "keep_mask",
    "scores",
]
