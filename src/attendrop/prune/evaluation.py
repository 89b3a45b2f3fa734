"""Running a model for a measurement, without side effects."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from ..model.modes import evaluating
from ..random import preserved


@contextmanager
def isolated_eval(model: nn.Module) -> Iterator[None]:
    """Eval mode without gradients. The mode of each module and the random state are restored at the end."""
    with preserved(next(model.parameters()).device), evaluating(model), torch.no_grad():
        yield
