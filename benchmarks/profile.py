"""Where the time of a training step goes: the kernels of a few steps inside `Trainer.train()`, by kind.

    python -m benchmarks.profile                        # plain steps, stock and captured, RoBERTa-base, 16x128, bf16
    python -m benchmarks.profile --only "plain captured" mixout --size 16x128 --kernels 30

A step is timed first without the profiler (as "train ms" in benchmarks/trainer_steps.py), then torch.profiler records a
few more. "gaps" is the time of a step in which no kernel runs: the first time minus that of all kernels. "spread" is
the difference of the longest and the shortest window of steps, in percent. Kinds are found by the names of kernels. On
a CPU, operations take the place of kernels.
"""

from __future__ import annotations

import argparse
import re
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from .records import RESULTS, append, conditions, spread_of
from .shapes import MODELS
from .trainer_steps import BY_LAYER, PROVIDERS, Setting, StepTimer, trained

STEPS = 5  # that are profiled
PROFILED = ["stock plain", f"plain captured, {BY_LAYER}", "plain captured"]
_ON_GPU = ProfilerActivity.CUDA
_RANGES = ("Optimizer.", "ProfilerStep")  # names of ranges, which contain kernels and are none

# The first pattern that a kernel's name has decides its kind.
KINDS: dict[str, str] = {
    "passes over all weights": r"(average|pull|squares|ascend|restore)_kernel",
    "attention": r"fmha|flash|sdpa|attention|(forward|query_gradient|key_value_gradient)_kernel",
    "optimizer": r"adam|sgd_",
    "clipping of gradients": r"lpnorm|l2norm|norm_cleanup|BinaryOpScalarTensor|clip",
    "copies of gradients and weights": r"multi_tensor_apply.*(Copy|copy)|_foreach_copy",
    "matrix products": r"gemm|nvjet|cutlass|xmma|splitk|cublas|addmm|aten::mm\b|aten::bmm|cudnn",
    "masks of AD-DROP": r"attribution_mask|pack_kernel|combine_kernel|mask_of",
    "draws of methods": r"draws_kernel|uniform_kernel|\brows_kernel|mix_kernel|gradient_factor",
    "LayerNorm": r"layer_?norm|GammaBeta",
    "GELU": r"gelu",
    "dropout": r"dropout|masked_scale|bernoulli",
    "embeddings": r"embedding|indexSelect|gatherTopK|sort|radix",
    "loss and softmax": r"softmax|nll_loss|cross_entropy",
    "casts": r"bfloat16_copy|half_copy|direct_copy|LoadWithCast|aten::_to_copy|aten::copy_",
    "copies and fills": r"memcpy|memset|fillfunctor|fill_|aten::clone|cat(Array|_)|aten::zero_",
    "reductions (gradients of biases)": r"reduce|aten::sum|aten::mean",
    "other multi-tensor kernels": r"multi_tensor|_foreach",
    "elementwise": r"elementwise|aten::(add|mul|div|sub|where|tanh)",
}


class Kernel(NamedTuple):
    """All calls of one kernel in a step."""

    name: str
    milliseconds: float
    calls: float


def kind_of(kernel: str) -> str:
    """The kind of a kernel, by its name."""
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, kernel, re.IGNORECASE)), "other")


class Profiler(StepTimer):
    """Times windows of steps, and then profiles a few steps.

    Args:
        windows: how many windows of steps to time.
    """

    def __init__(self, windows: int) -> None:
        super().__init__(single=0, length=STEPS, windows=windows)
        self.first, self.steps = self.steps, self.steps + STEPS
        self.profiler = profile(activities=[_ON_GPU if torch.cuda.is_available() else ProfilerActivity.CPU])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step <= self.first:
            super().on_step_end(args, state, control, **kwargs)
        if state.global_step == self.first:
            self.profiler.start()
        elif state.global_step == self.steps:
            self.now()
            self.profiler.stop()


def kernels_of(profiler: profile, steps: int) -> list[Kernel]:
    """The kernels of a step, those that take longest first.

    Args:
        profiler: has profiled some steps.
        steps: how many.
    """
    wanted = DeviceType.CUDA if torch.cuda.is_available() else DeviceType.CPU
    measured = []
    for event in profiler.key_averages():
        is_range = getattr(event, "is_user_annotation", False) or event.key.startswith(_RANGES)
        taken = event.self_device_time_total if wanted == DeviceType.CUDA else event.self_cpu_time_total
        if event.device_type == wanted and not is_range and taken:
            measured.append(Kernel(event.key, taken / 1e3 / steps, event.count / steps))
    return sorted(measured, key=lambda kernel: -kernel.milliseconds)


def by_kind(kernels: list[Kernel], step: float) -> list[Kernel]:
    """Time and number of the kernels of each kind, and the gaps in a step of `step` milliseconds."""
    time: defaultdict[str, float] = defaultdict(float)
    calls: defaultdict[str, float] = defaultdict(float)
    for kernel in kernels:
        time[kind_of(kernel.name)] += kernel.milliseconds
        calls[kind_of(kernel.name)] += kernel.calls
    kinds = sorted((Kernel(kind, time[kind], calls[kind]) for kind in time), key=lambda kind: -kind.milliseconds)
    return [*kinds, Kernel("gaps", step - sum(time.values()), 0)]


def rows_of(name: str, setting: Setting, windows: int, kernels: int) -> list[dict[str, Any]]:
    """Prints the profile of a provider and returns its rows: first the kinds, then single kernels."""
    timer = Profiler(windows)
    trained(name, setting, timer)
    step = statistics.median(timer.window[1:]) * 1e3
    spread = spread_of(timer.window[1:])
    kernels_of_step = kernels_of(timer.profiler, STEPS)
    print(f"{name}, {setting.model}, {setting.batch}x{setting.length}: {step:.2f} ms, spread {spread:.0f} %")
    rows = []
    for what, part in (("kind", by_kind(kernels_of_step, step)), ("kernel", kernels_of_step[:kernels])):
        for one in part:
            share = one.milliseconds / step
            print(f"  {one.milliseconds:8.3f} ms {share:7.1%} {one.calls:7.1f} calls  {one.name[:150]}")
            rows.append(
                {
                    "provider": name,
                    "step ms": round(step, 3),
                    "spread": spread,
                    "what": what,
                    "name": one.name if what == "kind" else f"{kind_of(one.name)}: {one.name[:200]}",
                    "ms": round(one.milliseconds, 4),
                    "share": round(share, 4),
                    "calls": round(one.calls, 1),
                }
            )
    return rows


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(PROVIDERS), default=PROFILED)
    parser.add_argument("--model", choices=list(MODELS), default="roberta-base")
    parser.add_argument("--size", default="16x128", help="batch x length")
    parser.add_argument("--windows", type=int, default=5, help=f"of {STEPS} steps, that are timed without the profiler")
    parser.add_argument("--kernels", type=int, default=25, help="how many single kernels to show")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--output", type=Path, default=RESULTS / "profile-cuda.csv", help="CSV file to append to")
    options = parser.parse_args(arguments)
    batch, length = map(int, options.size.split("x"))
    setting = Setting(options.model, batch, length, options.device)
    shared = conditions(options.device, dtype="bfloat16", model=options.model, batch=batch, length=length)
    for name in options.only:
        rows = rows_of(name, setting, options.windows, options.kernels)
        append(options.output, [{**shared, **row} for row in rows])


if __name__ == "__main__":
    main()
