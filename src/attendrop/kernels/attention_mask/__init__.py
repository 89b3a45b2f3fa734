"""From a keep mask to the bias that the attention kernel adds to its scores."""

from .api import mask_of
from .reference import Mask, allowed_and_empty, as_keep

__all__ = ["Mask", "allowed_and_empty", "as_keep", "mask_of"]
