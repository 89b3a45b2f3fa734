"""The classes of the siege. Each is a function that yields its cases, in an order that is drawn, without an end.

A new class is a function of a module in this folder, and one line of `CLASSES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .bombs import bombs
from .cases import OUTCOMES, Case, Siege
from .damage import damage, swaps
from .disk import full, kills
from .inputs import files, flags
from .places import links, outputs
from .studies import studies
from .threads import threads

CLASSES: dict[str, Callable[[Siege], Iterator[Case]]] = {
    "damage": damage,
    "kills": kills,
    "full disk": full,
    "swaps": swaps,
    "files": files,
    "flags": flags,
    "outputs": outputs,
    "studies": studies,
    "links": links,
    "threads": threads,
    "bombs": bombs,
}

__all__ = ["CLASSES", "OUTCOMES", "Case", "Siege"]
