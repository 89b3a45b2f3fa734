"""The cost of a model: parameters, FLOPs counted from the shapes of its matrix products, and the time of a forward."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from ..model.dry_run import few_tokens
from .evaluation import isolated_eval
from .surgery import parameters_of


@dataclass(frozen=True)
class Cost:
    """The cost of one forward in eval mode, without gradients.

    Args:
        parameters: The number of parameters.
        flops: Two for each multiply-add of a matrix product.
        milliseconds: The median time; None if it was not measured.
        shape: The shape of the inputs.
    """

    parameters: int
    flops: int
    milliseconds: float | None
    shape: str


@dataclass(frozen=True)
class Comparison:
    """The costs of a model before and after a change. Print it for a table."""

    before: Cost
    after: Cost

    @property
    def speedup(self) -> float | None:
        """The time before divided by the time after; None if one was not measured."""
        if self.before.milliseconds is None or self.after.milliseconds is None:
            return None
        return self.before.milliseconds / self.after.milliseconds

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Return the lines of the table: name, before, after, before / after."""
        shape = self.after.shape
        figures = [
            ("parameters", self.before.parameters / 1e6, self.after.parameters / 1e6, "M"),
            (f"FLOPs at {shape}", self.before.flops / 1e9, self.after.flops / 1e9, "G"),
        ]
        if self.before.milliseconds is not None and self.after.milliseconds is not None:
            figures.append((f"time at {shape}", self.before.milliseconds, self.after.milliseconds, "ms"))
        return [(name, f"{b:,.2f} {unit}", f"{a:,.2f} {unit}", f"{b / a:.2f}×") for name, b, a, unit in figures]

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
    """Measure the cost of a forward. The model runs in eval mode and is not changed.

    Args:
        model: A transformers model.
        batch: How many texts or images to run on. Images have the size that the model expects.
        length: The length of the texts, in tokens, without padding.
        rounds: How many forwards to time; 0 to measure no time.
        inputs: The inputs to run on instead, for models that need others.
    """
    given = dict(inputs) if inputs is not None else example(model, batch, length)
    with isolated_eval(model):
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
    """Return inputs for a model of texts or images.

    Args:
        model: A transformers model.
        batch: The number of examples.
        length: The length of a text, in tokens.
    """
    inputs = {}
    for name, tensor in few_tokens(model, model.config).items():
        if tensor.is_floating_point():  # an image, whose size is given by the model
            inputs[name] = tensor.expand(batch, *tensor.shape[1:])
        else:  # the last token stays, because some heads look for an end token
            body = tensor[..., :1].expand(*tensor.shape[:-1], length - 1)
            inputs[name] = torch.cat([body, tensor[..., -1:]], -1).expand(batch, *tensor.shape[1:-1], length)
    return {name: tensor.contiguous() for name, tensor in inputs.items()}


def _count_attention(query: Any, key: Any, value: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    return sdpa_flop_count(query, key, value)


# torch does not count the fused attention of the CPU.
_ATTENTION_ON_CPU = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _count_attention}


def _flops(model: Any, inputs: Mapping[str, Tensor]) -> int:
    # The counter fails on a parameter that is the input of a module, as DeBERTa's embeddings of distances are.
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        with FlopCounterMode(display=False, custom_mapping=_ATTENTION_ON_CPU) as counter:
            model(**inputs)
    finally:
        for parameter in trained:
            parameter.requires_grad_()
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


def time_in_turns(models: Mapping[str, Any], inputs: Mapping[str, Tensor], rounds: int = 9) -> dict[str, float]:
    """Return the median time of a forward of each model, in milliseconds.

    The models take turns, so that what else the machine does disturbs all of them alike.

    Args:
        models: Name -> model, in eval mode.
        inputs: The inputs, on the device of the models.
        rounds: How many forwards of each are timed, after one that is not.
    """
    seconds: dict[str, list[float]] = {name: [] for name in models}
    with torch.inference_mode():
        for number in range(rounds + 1):
            for name, model in models.items():
                duration = _seconds(model, inputs)
                if number:
                    seconds[name].append(duration)
    return {name: statistics.median(of) * 1e3 for name, of in seconds.items()}
