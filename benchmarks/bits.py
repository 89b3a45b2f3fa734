"""Time and memory of attention that reads its mask as bits, and of AD-DROP's mask in that form, against PyTorch's.

    python -m benchmarks.bits                           # 64x256 and 4x2048, 12 heads of width 64, bf16, dropout 0.1
    python -m benchmarks.bits --sizes 1x8192 --causal
    python -m benchmarks.bits --configs                 # other sizes of programs, for each of the three kernels
    python -m benchmarks.bits --only mask --padding 0.3 # AD-DROP's mask alone; 30 % of the tokens are padding

"flash" is PyTorch's flash attention with dropout and without a mask; "bias" is PyTorch's attention with a mask for each
position as a bias, which is what plans use below `SHORTEST` keys. "forward and backward" includes the gradients of
query, key and value. Memory is the peak that a call adds to its inputs, in MiB. Times are medians, as in
benchmarks/kernels.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from attendrop.kernels.attention_mask import mask_of
from attendrop.kernels.attribution_mask import DropRule, SelectedBits, bits_from_gradient, keep_from_gradient
from attendrop.kernels.attribution_mask.triton import _launch as launch
from attendrop.kernels.attribution_mask.triton import words_from_gradient
from attendrop.kernels.bitmask_attention import Dropout, attend
from attendrop.kernels.bitmask_attention import triton as kernels
from attendrop.kernels.mask_bits import Blocks, bits_of_valid

from .kernels import timings
from .records import RESULTS, append, conditions

Inputs = dict[str, Any]
Provider = Callable[[Inputs], Any]
RULE = (0.3, 0.3)  # p and q
CONFIGS = [
    *(
        {"M": m, "num_warps": warps, "num_stages": stages}
        for m, warps in ((32, 4), (64, 4), (128, 4), (128, 8))
        for stages in (2, 3, 4)
    ),
    *({"M": 64, "num_warps": 4, "num_stages": 2, "maxnreg": registers} for registers in (128, 168)),
]
MASK_CONFIGS = [
    {"N": n, "M": m, "num_warps": warps, "num_stages": stages}
    for n, m, warps, stages in (
        *((64, 64, 4, 3), (128, 64, 4, 2), (128, 64, 4, 3), (128, 128, 8, 3), (256, 64, 4, 1), (256, 64, 4, 2)),
        *((256, 64, 8, 2), (256, 128, 8, 2), (512, 32, 4, 2), (512, 64, 8, 2), (1024, 16, 4, 2), (1024, 32, 8, 2)),
        (2048, 16, 8, 2),
    )
]


def make_inputs(batch: int, length: int, options: argparse.Namespace) -> Inputs:
    dtype, device = getattr(torch, options.dtype), options.device
    shape = (batch, length, options.heads, options.width)
    query, key, value = (torch.randn(shape, device=device, dtype=dtype).transpose(1, 2) for _ in range(3))
    for x in (query, key, value):
        x.requires_grad_()
    x: Inputs = {"query": query, "key": key, "value": value, "gradient": torch.randn_like(query.transpose(1, 2))}
    x["scaling"], x["p"] = options.width**-0.5, options.dropout
    x["dropout"] = Dropout.of(options.dropout, torch.ones((), dtype=torch.int32, device=device))
    if options.causal:
        x["valid"] = torch.ones(1, 1, length, length, dtype=torch.bool, device=device).tril()
    else:
        lengths = length * (1 - options.padding * (2 * torch.arange(batch, device=device) + 1) / batch)
        x["valid"] = torch.arange(length, device=device) < lengths.view(batch, 1, 1, 1)
        x["gradient"] *= x["valid"].view(batch, length, 1, 1)
    is_full = not options.causal and not options.padding
    x["blocks"] = None if is_full else Blocks.of(x["valid"], length)
    x["valid bits"] = None if is_full else bits_of_valid(x["valid"])
    x["causal"] = options.causal
    key = torch.full((), 12345, dtype=torch.int32, device=device)  # in memory, as in captured steps
    x["rule"] = DropRule(*RULE, key, torch.arange(batch, device=device))
    with torch.no_grad():
        x["bits"] = bits_from_gradient(x["gradient"], value, x["valid"], x["valid bits"], x["blocks"], x["rule"]).bits()
        keep = keep_from_gradient(x["gradient"], value, x["valid"], x["rule"])
        x["bias"] = mask_of(keep, x["valid"], dtype).bias
    return x


def flash(x: Inputs) -> Tensor:
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION if x["query"].is_cuda else SDPBackend.MATH):
        return scaled_dot_product_attention(
            x["query"], x["key"], x["value"], dropout_p=x["p"], is_causal=x["causal"]
        ).transpose(1, 2)


def with_bias(x: Inputs) -> Tensor:
    return scaled_dot_product_attention(x["query"], x["key"], x["value"], x["bias"], dropout_p=x["p"]).transpose(1, 2)


def with_bits(mask: str) -> Provider:
    """The kernel with the bits of AD-DROP, or with the model's own alone."""
    return lambda x: attend(x["query"], x["key"], x["value"], x[mask], x["blocks"], x["scaling"], x["dropout"])


def and_backward(forward: Provider) -> Provider:
    def run(x: Inputs) -> Any:
        return torch.autograd.grad(forward(x), (x["query"], x["key"], x["value"]), x["gradient"])

    return run


def without_gradient(forward: Provider) -> Provider:
    def run(x: Inputs) -> Any:
        with torch.no_grad():
            return forward(x)

    return run


def mask_as_bias(x: Inputs) -> Any:
    return mask_of(keep_from_gradient(x["gradient"], x["value"], x["valid"], x["rule"]), x["valid"], x["query"].dtype)


def mask_as_bits(x: Inputs) -> Any:
    return bits_from_gradient(x["gradient"], x["value"], x["valid"], x["valid bits"], x["blocks"], x["rule"])


def mask_again(x: Inputs) -> Any:
    """From the thresholds, which are computed before the first call."""
    if "selected" not in x:
        given = x["gradient"], x["value"], x["valid"]
        cut = words_from_gradient(*given, x["rule"], all_valid=x["valid bits"] is None)[1]
        x["selected"] = SelectedBits(*given, x["valid bits"], x["blocks"], x["rule"], cut)
    return x["selected"].bits()


ATTENTION: dict[str, Provider] = {
    "flash": flash,
    "bias": with_bias,
    "bits of AD-DROP": with_bits("bits"),
    "no bits but the model's": with_bits("valid bits"),
}
PROVIDERS: dict[str, Provider] = {
    **{f"forward, {name}": without_gradient(run) for name, run in ATTENTION.items()},
    **{f"forward and backward, {name}": and_backward(run) for name, run in ATTENTION.items()},
    "mask as a bias": without_gradient(mask_as_bias),
    "mask as bits": without_gradient(mask_as_bits),
    "mask as bits, again": without_gradient(mask_again),
}


def added_memory(run: Provider, x: Inputs) -> float | str:
    if not x["query"].is_cuda:
        return ""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = run(x)
    del result
    return round((torch.cuda.max_memory_allocated() - before) / 2**20, 1)


def rows_of_size(batch: int, length: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each provider; a time is compared with that of "flash" in the same group."""
    sets = [make_inputs(batch, length, options) for _ in range(2)]
    runs = {name: run for name, run in PROVIDERS.items() if name.startswith(options.only)}
    table, base = [], {}
    for name, taken in timings(runs, sets, options.device, options.calls).items():
        group = name.split(",")[0].split(" as ")[0]
        base.setdefault(group, taken.seconds)
        row = {
            "batch": batch,
            "length": length,
            "causal": options.causal,
            "provider": name,
            "microseconds": taken.microseconds,
            "spread": taken.spread,
            "x first": round(taken.seconds / base[group], 2),
            "added MiB": added_memory(runs[name], sets[0]),
        }
        values = " ".join(f"{row[title]:>10}" for title in ("microseconds", "spread", "x first", "added MiB"))
        print(f"{batch}x{length:<6} {name:<44} {values}", flush=True)
        table.append(row)
    return table


def try_configs(batch: int, length: int, options: argparse.Namespace) -> None:
    """Prints the time of each kernel with other sizes of its programs; nothing is recorded."""
    x = make_inputs(batch, length, options)
    given = [x[name].detach() for name in ("query", "key", "value")]
    mask = x["bits"], x["blocks"], x["scaling"], x["dropout"]
    output = kernels.forward(*given, *mask)
    small = {"M": 32, "num_warps": 4, "num_stages": 1}

    def forward(config: dict[str, int]) -> Provider:
        return lambda _: kernels.forward(*given, *mask, **config)

    def backward(config: dict[str, int], which: str) -> Provider:
        sizes = {"of_query": small, "of_key_value": small, which: config}
        return lambda _: kernels.backward(x["gradient"], *given, *output, *mask, **sizes)

    print(f"{batch}x{length}: microseconds; of a backward, both kernels, of which the other one has {small}")
    for config in CONFIGS:
        runs = forward(config), backward(config, "of_query"), backward(config, "of_key_value")
        times = [_microseconds(run, x, options) for run in runs]
        print(config, dict(zip(("forward", "query", "key and value"), times, strict=True)), flush=True)
    for config in MASK_CONFIGS:
        if config["N"] <= length:
            config = {**config, "TILES": -(-length // config["N"])}
            times = [_microseconds(selection(config, search), x, options) for search in (True, False)]
            print(config, dict(zip(("mask as bits", "again"), times, strict=True)), flush=True)


def selection(config: dict[str, int], search: bool) -> Provider:
    """The kernel of AD-DROP's mask with other sizes of its programs."""

    def run(x: Inputs) -> Any:
        shape = x["bits"].words.shape
        words = torch.empty(shape, dtype=torch.int16, device=x["gradient"].device)
        cut = torch.zeros((*shape[:3], 1), device=words.device)
        launch(
            x["gradient"].transpose(1, 2), x["value"].detach(), x["valid"], x["rule"], words, cut, x["blocks"],
            not x["causal"], search, **config,
        )  # fmt: skip
        return words

    return run


def _microseconds(run: Provider, x: Inputs, options: argparse.Namespace) -> float | str:
    try:
        return timings({"": run}, [x], options.device, options.calls)[""].microseconds
    except Exception as error:  # too much shared memory, say
        return type(error).__name__


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="*", default=["64x256", "4x2048"], help="batch x length")
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--padding", type=float, default=0.0, help="share of the tokens; nothing is recorded then")
    parser.add_argument("--only", default="", help="how the names of what is measured begin")
    parser.add_argument("--configs", action="store_true", help="try other sizes of programs")
    parser.add_argument("--calls", type=int, default=50)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="cpu: in Triton's interpreter")
    parser.add_argument("--output", type=Path, default=RESULTS / "bits-cuda.csv", help="CSV file to append to")
    options = parser.parse_args(arguments)
    shared = conditions(options.device, dtype=options.dtype, heads=options.heads, width=options.width)
    for size in options.sizes:
        batch, length = map(int, size.split("x"))
        if options.configs:
            try_configs(batch, length, options)
            continue
        table = rows_of_size(batch, length, options)
        if not options.padding:
            append(options.output, [{**shared, **row} for row in table])


if __name__ == "__main__":
    main()
