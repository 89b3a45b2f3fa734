"""From a keep mask to the bias that the attention kernel adds to its scores."""

from .api import mask_of
from .reference import KeepForm, Mask, allowed_and_empty, as_keep, tensors_of

__all__ = ["KeepForm", "Mask", "allowed_and_empty", "as_keep", "mask_of", "tensors_of"]
