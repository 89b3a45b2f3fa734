"""The classes of the siege. Each is a function that yields its cases, in an order that is drawn, without an end.

A new class is a function of a module in this folder, and one line of `CLASSES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .bombs import bombs
from .cases import GOOD, OUTCOMES, Case, Siege
from .configs import configs
from .damage import damage, swaps
from .disk import full, kills
from .inputs import files, flags
from .models import models
from .names import names, secrets
from .places import links, outputs
from .resumes import resumes
from .studies import studies
from .tables import labels, tables
from .threads import threads

CLASSES: dict[str, Callable[[Siege], Iterator[Case]]] = {
    "damage": damage,
    "kills": kills,
    "full disk": full,
    "resumes": resumes,
    "swaps": swaps,
    "models": models,
    "files": files,
    "flags": flags,
    "configs": configs,
    "labels": labels,
    "tables": tables,
    "names": names,
    "secrets": secrets,
    "outputs": outputs,
    "studies": studies,
    "links": links,
    "threads": threads,
    "bombs": bombs,
}

__all__ = ["CLASSES", "GOOD", "OUTCOMES", "Case", "Siege"]
