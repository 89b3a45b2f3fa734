"""The specification: hidden states of examples that are mixed in pairs, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def mixed_rows(x: Tensor, others: Tensor, given: Tensor, taken: Tensor) -> Tensor:
    """y_i = x_i − given_i · x_i + taken_i · x_others(i), in float32 at least, rounded once."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    kept = torch.addcmul(wide, wide, given.to(wide.dtype), value=-1)
    return torch.addcmul(kept, wide.index_select(0, others), taken.to(wide.dtype)).to(x.dtype)
