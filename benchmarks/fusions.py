"""What the field has against small kernels, tried inside of captured steps before any kernel of our own is written.

    python -m benchmarks.fusions                              # RoBERTa-base at 16 × 128 and 64 × 256, bf16, on a GPU
    python -m benchmarks.fusions --model minilm --sizes 25x64
    python -m benchmarks.fusions --only "norms by Liger" --parts steps

"steps" are plain captured steps inside `Trainer.train()`, with one change of the model each: regions that Inductor
compiles (bias, dropout, residual connection and norm; bias and GELU), and Liger's norm where `liger_kernel` is
installed. "× plain captured" is what the change gives. "error" is the error of the gradients against float64, without
dropout, in multiples of that of the unchanged model; up to 2 a change counts as exact.

"kernels" are single replacements: the GELU that cuBLASLt computes behind its product (its backward would need what it
does not store, so it could only serve predictions), sums for the gradients of biases as products with a row of ones,
and clipping by the optimizer's kernel. What fails is named and left out.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import types
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .floors import floor_of
from .kernels import timings
from .records import RESULTS, append, conditions
from .shapes import MODELS, RandomTexts, make_model
from .stacked import StackedAdamW
from .trainer_steps import PROVIDERS, Setting, measured, with_step
from .weight_passes import as_run

Change = Callable[[Any], None]  # of a model with the parts of BERT, in place


def norm_region(x: Tensor, bias: Tensor | None, residual: Tensor, norm: nn.LayerNorm, p: float) -> Tensor:
    """What follows the second product of a block: bias, dropout, residual connection and norm."""
    x = x if bias is None else x + bias
    return F.layer_norm(F.dropout(x, p) + residual, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


def gelu_region(x: Tensor, bias: Tensor) -> Tensor:
    """What follows the first product of a feed-forward: bias and GELU."""
    return F.gelu(x + bias)


def compiled(region: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The region as Inductor compiles it, hidden from the modes that watch a capture."""
    fast = torch.compile(region, dynamic=False)

    def call(*arguments: Any) -> Tensor:
        with torch._C.DisableTorchFunction():
            return fast(*arguments)

    return call


def _of_class(model: Any, *endings: str) -> Iterator[Any]:
    return (module for module in model.modules() if type(module).__name__.endswith(endings))


def fuse_norms(model: Any, compiler: Any = compiled, with_bias: bool = True) -> None:
    """Let a region follow the last product of each attention and each feed-forward.

    Args:
        model: the model.
        compiler: makes the region fast.
        with_bias: whether the bias is added there, so that its gradient is summed there.
    """
    region = compiler(norm_region)

    def forward(self: Any, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        p, bias = self.dropout.p if self.training else 0.0, self.dense.bias
        x = F.linear(hidden_states, self.dense.weight, None if with_bias else bias)
        return region(x, bias if with_bias else None, input_tensor, self.LayerNorm, p)

    for module in _of_class(model, "SelfOutput", "Output"):
        if hasattr(module, "LayerNorm"):  # not an output of transformers, which is a mapping
            module.forward = types.MethodType(forward, module)


def fuse_gelu(model: Any, compiler: Any = compiled) -> None:
    """Let a region with bias and GELU follow the first product of each feed-forward.

    Args:
        model: the model.
        compiler: makes the region fast.
    """
    region = compiler(gelu_region)

    def forward(self: Any, hidden_states: Tensor) -> Tensor:
        return region(F.linear(hidden_states, self.dense.weight), self.dense.bias)

    for module in _of_class(model, "Intermediate"):
        module.forward = types.MethodType(forward, module)


def fuse_both(model: Any, compiler: Any = compiled) -> None:
    """Both regions."""
    fuse_norms(model, compiler)
    fuse_gelu(model, compiler)


def use_liger(model: Any) -> None:
    """Liger's norm in place of torch's."""
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    def forward(self: nn.LayerNorm, x: Tensor) -> Tensor:
        return LigerLayerNormFunction.apply(x.float(), self.weight, self.bias, self.eps)

    for module in model.modules():
        if type(module) is nn.LayerNorm:
            module.forward = types.MethodType(forward, module)


CHANGES: dict[str, Change] = {
    "norms compiled": partial(fuse_norms, with_bias=False),
    "norms and biases compiled": fuse_norms,
    "GELU compiled": fuse_gelu,
    "norms, biases and GELU compiled": fuse_both,
    "norms by Liger": use_liger,
}


def gradients(model: Any, batch: dict[str, Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The gradients of a batch without dropout, in float64."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    kind = batch["input_ids"].device.type
    with torch.autocast(kind, dtype, enabled=dtype != torch.float64):
        loss = model(**batch).loss
    return [g.double() for g in torch.autograd.grad(loss, list(model.parameters()))]


def error_of(change: Change, setting: Setting) -> float:
    """The error of the gradients with a change, in multiples of that without it; truth is float64."""
    model = make_model(setting.model, setting.length, setting.device).train()
    texts = RandomTexts(4, setting.length, setting.model)
    batch = {name: torch.tensor([text[name] for text in texts], device=setting.device) for name in texts[0]}
    truth = gradients(copy.deepcopy(model).double(), batch, torch.float64)
    changed = copy.deepcopy(model)
    change(changed)
    errors = []
    for network in (changed, model):
        of_all = zip(gradients(network, batch, torch.bfloat16), truth, strict=True)
        errors.append(sum(float((g - true).square().sum()) for g, true in of_all) ** 0.5)
    return errors[0] / errors[1]


def of_steps(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Times of captured steps with each change."""
    rows = []
    for size in options.sizes:
        setting = Setting(options.model, *map(int, size.split("x")), options.device)
        plain = with_step("captured")

        def changed(setting: Setting, change: Change, make: Any = plain, **arguments: Any) -> Any:
            trainer = make(setting, **arguments)
            change(trainer.model)
            return trainer

        providers = {name: (partial(changed, change=CHANGES[name]), floor_of()) for name in options.only}
        with patch.dict(PROVIDERS, providers):
            table = measured(["plain captured", *providers], setting, options.rounds)
        for row in table:
            name = row["provider"]
            exactness = {"error": round(error_of(CHANGES[name], setting), 2)} if name in CHANGES else {}
            kept = {title: row[title] for title in ("train ms", "spread", "x captured", "products ms", "peak MiB")}
            rows.append({"part": "steps", "size": size, "what": name, **kept, **exactness})
            print("  ".join(f"{title}: {value}" for title, value in rows[-1].items()), flush=True)
    return rows


def kernels_of(options: argparse.Namespace) -> Iterator[tuple[str, str, dict[str, Callable[[], Any]]]]:
    """What single kernels can replace: title, size, and the ways to compute it, of which the first one is ours now."""
    model, device = make_model(options.model, 128, options.device), options.device
    width, inner = model.config.hidden_size, model.config.intermediate_size
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    for size in options.sizes:
        batch, length = map(int, size.split("x"))
        x, wide = (torch.randn(batch * length, n, device=device, dtype=dtype) for n in (width, inner))
        weight, bias = (
            torch.randn(inner, width, device=device, dtype=dtype),
            torch.randn(inner, device=device, dtype=dtype),
        )
        ones = torch.ones(1, batch * length, device=device, dtype=dtype)
        yield (
            "first product and GELU",
            size,
            {
                "apart": partial(lambda x, w, b: F.gelu(torch.addmm(b, x, w.t())), x, weight, bias),
                "in the epilogue": partial(
                    lambda x, w, b: torch._addmm_activation(b, x, w.t(), use_gelu=True), x, weight, bias
                ),
            },
        )
        for rows in (x, wide):
            ways = {"sum": partial(rows.sum, 0), "product with ones": partial(torch.mm, ones, rows)}
            yield f"gradient of a bias of {rows.shape[1]}", size, ways
    parameters = [nn.Parameter(p.detach().unsqueeze(0)) for p in model.parameters()]
    of_parameters = [torch.randn_like(p) for p in parameters]
    for parameter, gradient in zip(parameters, of_parameters, strict=True):
        parameter.grad = gradient
    now = torch.optim.AdamW(parameters, lr=1e-5, fused=True, capturable=device == "cuda")
    stacked = StackedAdamW(parameters)

    def clip_and_step() -> None:
        nn.utils.clip_grad_norm_(parameters, 1.0)
        now.step()

    ways = {"apart": clip_and_step, "in the optimizer": lambda: stacked.step(of_parameters)}
    yield "clipping and AdamW", "", ways


def of_kernels(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Times of single replacements."""
    rows = []
    for title, size, ways in kernels_of(options):
        try:
            runs = {name: as_run(work, options.device) for name, work in ways.items()}
            taken = timings(runs, [None], options.device, options.calls)
        except (RuntimeError, AttributeError) as error:
            print(f"{title} is left out: {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
            continue
        first = next(iter(taken.values())).seconds
        for name, timing in taken.items():
            row = {"part": "kernels", "size": size, "what": f"{title}, {name}", "microseconds": timing.microseconds}
            rows.append({**row, "spread": timing.spread, "x first": round(timing.seconds / first, 2)})
            print("  ".join(f"{key}: {value}" for key, value in rows[-1].items()), flush=True)
    return rows


PARTS = {"steps": of_steps, "kernels": of_kernels}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(MODELS), default="roberta-base")
    parser.add_argument("--sizes", nargs="+", default=["16x128", "64x256"], help="batch x length")
    parser.add_argument("--only", nargs="+", choices=list(CHANGES), default=list(CHANGES))
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--calls", type=int, default=30, help="of a kernel")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--output", type=Path, default=None, help="CSV file to append to")
    options = parser.parse_args(arguments)
    if importlib.util.find_spec("liger_kernel") is None and "norms by Liger" in options.only:
        print("norms by Liger are left out: liger_kernel is not installed; pip install --no-deps liger-kernel")
        options.only = [name for name in options.only if name != "norms by Liger"]
    rows = [row for part in options.parts for row in PARTS[part](options)]
    shared = conditions(options.device, model=options.model)
    for part in options.parts:  # files with the same columns in all rows
        of_part = [{**shared, **row} for row in rows if row["part"] == part]
        append(options.output or RESULTS / f"fusions-{part}-{options.device}.csv", of_part)


if __name__ == "__main__":
    main()
