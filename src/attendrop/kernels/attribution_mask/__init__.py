"""From attributions to the attention positions that AD-DROP keeps."""

from .api import DIRECTIONS, IMPLEMENTATIONS, keep_from_gradient, keep_from_scores
from .reference import candidates, keep_mask, scores

__all__ = [
    "DIRECTIONS",
    "IMPLEMENTATIONS",
    "candidates",
    "keep_from_gradient",
    "keep_from_scores",
    "keep_mask",
    "scores",
]
