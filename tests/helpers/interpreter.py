"""Triton's interpreter with a NumPy that converts only arrays without dimensions to Python's numbers."""

from __future__ import annotations

from typing import Any


def allow_ranges() -> None:
    """Lets kernels loop over ranges that they compute: Triton 3.6 keeps such a number in an array of one element."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor
    if getattr(patch, "allows_ranges", False):
        return

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())  # `scope` restores it after the kernel

    patched.allows_ranges = True  # type: ignore[attr-defined]
    interpreter._patch_lang_tensor = patched
