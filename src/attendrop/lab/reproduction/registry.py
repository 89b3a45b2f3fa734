"""All entries by name."""

from __future__ import annotations

import difflib

from ...errors import UserError
from .addrop import ENTRIES as OF_ADDROP
from .attendout import ENTRIES as OF_ATTENDOUT
from .entry import Entry

ENTRIES: dict[str, Entry] = {entry.name: entry for entry in (*OF_ADDROP, *OF_ATTENDOUT)}


def find_entry(name: str) -> Entry:
    """Return the entry of this name.

    Args:
        name: Such as `addrop/figure-6`, in any case, also `addrop/Figure 6`.
    """
    key = name.strip().lower().replace(" ", "-").replace("_", "-")
    if key in ENTRIES:
        return ENTRIES[key]
    near = difflib.get_close_matches(key, ENTRIES, n=3, cutoff=0.8)
    hint = f"did you mean {' or '.join(near)}? The entries are" if near else "it must be one of"
    raise UserError(f"entry is {name!r}; {hint} {', '.join(ENTRIES)}.")
