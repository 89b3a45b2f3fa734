"""From attributions to the attention positions that AD-DROP keeps."""

from .api import DIRECTIONS, IMPLEMENTATIONS, keep_from_gradient, keep_from_scores
from .reference import DropRule, candidates, keep_mask, scores

__all__ = [
    "DIRECTIONS",
    "IMPLEMENTATIONS",
    "DropRule",
    "candidates",
    "keep_from_gradient",
    "keep_from_scores",
    "keep_mask",
    "scores",
]
