"""Which attention calls are causal."""

from __future__ import annotations

from torch import nn

from ...model.sites import Site


def is_causal(model: nn.Module, site: Site) -> bool:
    """Return whether a query of the site attends only to keys at or before its own position."""
    return bool(getattr(model.get_submodule(site.name), "is_causal", False))
