"""Keep masks with one bit for each position."""

from .api import bits_of_valid, combined, pack
from .reference import Bits, Blocks, PackedKeep

__all__ = ["Bits", "Blocks", "PackedKeep", "bits_of_valid", "combined", "pack"]
