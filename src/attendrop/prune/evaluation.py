"""Running a model for a measurement: without side effects on it, and the size of its batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..model.modes import evaluating
from ..random import preserved


@contextmanager
def isolated_eval(model: nn.Module) -> Iterator[None]:
    """Eval mode without gradients. The mode of each module and the random state are restored at the end."""
    with preserved(next(model.parameters()).device), evaluating(model), torch.no_grad():
        yield


def batch_size(batch: Mapping[str, Any]) -> int:
    """The number of examples in a batch."""
    return next(value for value in batch.values() if isinstance(value, Tensor) and value.dim()).shape[0]
