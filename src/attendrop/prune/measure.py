"""What a model costs: parameters, FLOPs counted from the shapes of its matrix products, and the time of a forward."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from ..model.dry_run import few_tokens
from ..model.modes import evaluating
from ..random import preserved
from .surgery import parameters_of


@dataclass(frozen=True)
class Cost:
    """Of one forward in eval mode, without gradients."""

    parameters: int
    flops: int  # two for each multiplication and addition of a matrix product
    milliseconds: float | None  # the median; None where it was not timed
    shape: str  # of the inputs


@dataclass(frozen=True)
class Comparison:
    """Two costs; prints as a table."""

    before: Cost
    after: Cost

    @property
    def speedup(self) -> float | None:
        if self.before.milliseconds is None or self.after.milliseconds is None:
            return None
        return self.before.milliseconds / self.after.milliseconds

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Name, before, after, before / after."""
        shape = self.after.shape
        found = [
            ("parameters", self.before.parameters / 1e6, self.after.parameters / 1e6, "M"),
            (f"FLOPs at {shape}", self.before.flops / 1e9, self.after.flops / 1e9, "G"),
        ]
        if self.before.milliseconds is not None and self.after.milliseconds is not None:
            found.append((f"time at {shape}", self.before.milliseconds, self.after.milliseconds, "ms"))
        return [(name, f"{b:,.2f} {unit}", f"{a:,.2f} {unit}", f"{b / a:.2f}×") for name, b, a, unit in found]

    def __str__(self) -> str:
        table = [("", "before", "after", "ratio"), *self.rows()]
        widths = [max(len(row[i]) for row in table) for i in range(4)]
        return "\n".join(
            "  ".join([row[0].ljust(widths[0]), *(row[i].rjust(widths[i]) for i in range(1, 4))]).rstrip()
            for row in table
        )


def cost_of(
    model: Any, batch: int = 8, length: int = 128, rounds: int = 5, inputs: Mapping[str, Tensor] | None = None
) -> Cost:
    """Parameters, FLOPs and the median time over `rounds` forwards (none: not timed).

    The inputs are `batch` texts of `length` tokens without padding, or `batch` images of the model's own size; or
    `inputs`, for models that need others.
    """
    given = dict(inputs) if inputs is not None else example(model, batch, length)
    with undisturbed(model):
        flops = _flops(model, given)
        seconds = [_seconds(model, given) for _ in range(rounds)]
    main = given.get(getattr(model, "main_input_name", "input_ids"), next(iter(given.values())))
    return Cost(
        parameters=parameters_of(model),
        flops=flops,
        milliseconds=statistics.median(seconds) * 1e3 if seconds else None,
        shape=" × ".join(map(str, main.shape)),
    )


def example(model: Any, batch: int, length: int) -> dict[str, Tensor]:
    """Inputs of the given size for a text or image model."""
    found = {}
    for name, tensor in few_tokens(model, model.config).items():
        if tensor.is_floating_point():  # an image, whose size the model fixes
            found[name] = tensor.expand(batch, *tensor.shape[1:])
        else:  # the last token is kept: some heads look for an end token
            body = tensor[..., :1].expand(*tensor.shape[:-1], length - 1)
            found[name] = torch.cat([body, tensor[..., -1:]], -1).expand(batch, *tensor.shape[1:-1], length)
    return {name: tensor.contiguous() for name, tensor in found.items()}


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Eval mode without gradients; modes and random state are put back."""
    with preserved(next(model.parameters()).device), evaluating(model), torch.no_grad():
        yield


def _attention_on_cpu(query: Any, key: Any, value: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    return sdpa_flop_count(query, key, value)


# torch's own table leaves out the fused attention of the CPU.
_ADDITIONS = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_on_cpu}


def _flops(model: Any, inputs: Mapping[str, Tensor]) -> int:
    with FlopCounterMode(display=False, custom_mapping=_ADDITIONS) as counter:
        model(**inputs)
    return counter.get_total_flops()


def _seconds(model: Any, inputs: Mapping[str, Tensor]) -> float:
    device = next(iter(inputs.values())).device
    _synchronize(device)
    start = time.perf_counter()
    model(**inputs)
    _synchronize(device)
    return time.perf_counter() - start


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
