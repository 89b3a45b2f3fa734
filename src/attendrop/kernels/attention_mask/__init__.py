"""From a keep mask to what the attention kernel adds to its scores."""

from .api import mask_of

__all__ = ["mask_of"]
