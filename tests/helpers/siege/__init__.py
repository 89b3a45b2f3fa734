"""The classes of the siege. Each is a function that yields its cases, in an order that is drawn, without an end.

A new class is a function of a module in this folder, and one line of `CLASSES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .cases import OUTCOMES, Case, Siege
from .damage import damage
from .disk import full, kills

CLASSES: dict[str, Callable[[Siege], Iterator[Case]]] = {
    "damage": damage,
    "kills": kills,
    "full disk": full,
}

__all__ = ["CLASSES", "OUTCOMES", "Case", "Siege"]
