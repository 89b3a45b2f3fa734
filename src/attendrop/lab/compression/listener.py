"""Who hears what a compression does."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...prune import Stage


class Listener:
    """Receives what happens. The methods do nothing here; override those that you need."""

    def note(self, text: str) -> None:
        """Handle a sentence for the user."""

    def progress(self, what: str, done: int, total: int) -> None:
        """Handle a step of training."""

    def stage(self, stage: Stage) -> None:
        """Handle the end of a stage."""
