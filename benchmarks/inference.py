"""Speed-up at inference by pruning 11 of 12 attention layers, for five ways of running the model.

    python -m benchmarks.inference                              # RoBERTa-base shapes on the CPU
    python -m benchmarks.inference --device cuda --dtype bfloat16
    python -m benchmarks.inference --sizes 8x128 8x256 4x512    # the sizes that have a target

Weights and inputs are random; there is an attention mask, but no padding; eval mode, no gradients. Each way of running
is a candidate twice, with the stock and with the pruned model. In a round all candidates are timed one after the other,
so that a slow period of the machine affects all of them; times are medians over at least 3 rounds, until each candidate
has had about `--seconds`. A measurement is as many calls as begin within 50 ms. The first round compares the logits and
warms up; it counts only if its measurements took longer than `--seconds` on average. Compiling and exporting are not
timed. The ceiling is the ratio of the FLOPs of the matrix products.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from attendrop import prune
from attendrop.capture.graphs import Graphs

from .records import RESULTS, append, conditions

Batch = dict[str, Tensor]
Run = Callable[[], Tensor]  # one forward, to its logits
Name = tuple[str, bool]  # the way of running, and whether the model is pruned
Times = dict[Name, float]

SIZES = [(1, 128), (1, 256), (1, 512), (32, 128), (32, 256), (32, 512)]
MEASUREMENT = 0.05  # seconds
# The speed-ups that we aimed for on a CPU.
TARGETS = {(8, 128, "sdpa"): 1.35, (8, 256, "sdpa"): 1.45, (4, 512, "sdpa"): 1.55, (4, 512, "eager"): 1.85}
# Larger than rounding errors, smaller than the difference that pruning makes with these weights.
TOLERANCE = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1.5e-1}


class MissingError(Exception):
    """Something that a way of running needs is not installed."""


def make_model(options: argparse.Namespace, attention: str, pruned: bool) -> Any:
    """A model with the shapes of RoBERTa-base."""
    torch.manual_seed(0)
    # With the usual initializer_range of 0.02, attention is nearly uniform, and pruning would change hardly anything.
    config = transformers.RobertaConfig(
        vocab_size=50265, max_position_embeddings=2 + max(512, *(length for _, length in options.sizes)),
        type_vocab_size=1, layer_norm_eps=1e-5, num_hidden_layers=options.layers, hidden_size=options.width,
        intermediate_size=4 * options.width, num_attention_heads=max(1, options.width // 64),
        initializer_range=0.05, attn_implementation=attention,
    )  # fmt: skip
    model = transformers.RobertaForSequenceClassification(config).eval()
    if pruned:
        prune.prune(model, range(1, options.layers))
    return model.to(options.device, getattr(torch, options.dtype))


def random_batch(options: argparse.Namespace, size: int, length: int) -> Batch:
    g = torch.Generator().manual_seed(1)
    ids = torch.randint(1000, 50000, (size, length), generator=g)
    return {"input_ids": ids.to(options.device), "attention_mask": torch.ones_like(ids).to(options.device)}


def direct(options: argparse.Namespace, model: Any) -> Callable[[Batch], Run]:
    """The model as it is."""
    return lambda batch: lambda: model(**batch).logits


def compiled(options: argparse.Namespace, model: Any) -> Callable[[Batch], Run]:
    """The model under torch.compile, compiled for each shape."""
    try:
        torch.compile(lambda x: x + 1)(torch.ones(1, device=options.device))
    except Exception as error:
        raise MissingError(f"torch.compile does not work here ({str(error).strip().splitlines()[0]})") from error

    def for_shape(batch: Batch) -> Run:
        run = direct(options, torch.compile(model, dynamic=False, fullgraph=True))(batch)
        run()
        return run

    return for_shape


def captured(options: argparse.Namespace, model: Any) -> Callable[[Batch], Run]:
    """The model as a CUDA graph for each shape, as `attendrop predict` runs it."""
    if options.device != "cuda":
        raise MissingError("CUDA graphs need a GPU")
    graphs = Graphs(torch.device(options.device))

    def for_shape(batch: Batch) -> Run:
        static, key = graphs.static_batch(batch)

        def run() -> Tensor:
            logits = graphs.run(key, lambda: model(**static).logits, forward_of=model)
            if graphs.failure is not None:
                raise RuntimeError(f"the model was not captured: {graphs.failure}")
            return logits

        return run

    return for_shape


def in_onnxruntime(options: argparse.Namespace, model: Any) -> Callable[[Batch], Run]:
    """The model exported to ONNX."""
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise MissingError(f"{' and '.join(missing)} cannot be imported; pip install 'attendrop[onnx]'")
    if options.dtype == "bfloat16":
        raise MissingError("its results are numpy arrays, which have no bfloat16")
    runtime = import_module("onnxruntime")
    provider = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}[options.device]
    if provider not in runtime.get_available_providers():
        raise MissingError(f"onnxruntime {runtime.__version__} has no {provider}")
    settings = runtime.SessionOptions()
    settings.intra_op_num_threads = torch.get_num_threads()
    settings.add_session_config_entry(
        "session.force_spinning_stop", "1"
    )  # idle threads must not slow the next candidate
    with tempfile.TemporaryDirectory() as folder:
        path = prune.export_onnx(model, Path(folder) / "model.onnx", random_batch(options, 2, 16))
        session = runtime.InferenceSession(str(path), settings, providers=[provider])
    if provider not in session.get_providers():
        raise MissingError(f"onnxruntime {runtime.__version__} could not load its {provider}")

    def for_shape(batch: Batch) -> Run:
        arrays = {name: value.cpu().numpy() for name, value in batch.items()}
        return lambda: torch.from_numpy(session.run(["logits"], arrays)[0])

    return for_shape


# way of running -> (attention implementation of the model, how to run it)
WAYS = {
    "eager": ("eager", direct), "sdpa": ("sdpa", direct), "captured": ("sdpa", captured),
    "compile": ("sdpa", compiled), "onnx": ("sdpa", in_onnxruntime),
}  # fmt: skip


def measure(options: argparse.Namespace, run: Run) -> tuple[float, Tensor]:
    """Seconds of a forward, and its logits."""
    wait = torch.cuda.synchronize if options.device == "cuda" else (lambda: None)
    wait()
    calls, start = 0, time.perf_counter()
    while not calls or time.perf_counter() - start < MEASUREMENT:
        logits = run()
        calls += 1
    wait()
    return (time.perf_counter() - start) / calls, logits.float().cpu()


def rounds_of(options: argparse.Namespace, runs: dict[Name, Run]) -> list[Times]:
    """Seconds of every candidate in each round, after a check that all have the same logits as eager attention."""
    start, budget = time.perf_counter(), options.seconds * len(runs)
    first = {name: measure(options, run) for name, run in runs.items()}
    for (way, pruned), (_, logits) in first.items():
        off = (logits - first["eager", pruned][1]).abs().max().item()
        if not off <= TOLERANCE[options.dtype]:
            raise ValueError(f"{way} gives {'pruned' if pruned else 'stock'} logits that are {off:.2g} off eager's.")
    is_slow = time.perf_counter() - start > budget
    rounds = [{name: seconds for name, (seconds, _) in first.items()}] if is_slow else []
    while len(rounds) < 3 or time.perf_counter() - start < budget:
        rounds.append({name: measure(options, run)[0] for name, run in runs.items()})
    return rounds


def rows_of(size: tuple[int, int], rounds: list[Times], ceiling: float) -> list[dict]:
    """One row of results for each way of running."""
    ms = {name: 1e3 * statistics.median(times[name] for times in rounds) for name in rounds[0]}
    return [
        {
            "batch": size[0],
            "length": size[1],
            "way": way,
            "rounds": len(rounds),
            "spread": round(max(100 * _spread([times[way, p] for times in rounds]) for p in (False, True)), 1),
            "stock ms": round(ms[way, False], 3),
            "pruned ms": round(ms[way, True], 3),
            "speed-up": round(ms[way, False] / ms[way, True], 3),
            "against stock sdpa": round(ms["sdpa", False] / ms[way, True], 3),
            "ceiling": round(ceiling, 3),
            "target": TARGETS.get((*size, way), ""),
        }
        for way, pruned in ms
        if pruned
    ]


def _spread(values: list[float]) -> float:
    """The difference between the third and the first quartile, as a share of the median."""
    first, median, third = statistics.quantiles(values, n=4)
    return (third - first) / median


def as_size(text: str) -> tuple[int, int]:
    batch, length = map(int, text.split("x"))
    return batch, length


@torch.no_grad()
def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32", choices=list(TOLERANCE))
    parser.add_argument("--sizes", nargs="+", type=as_size, default=SIZES, help="batch x length, as in 8x128")
    parser.add_argument("--only", nargs="*", default=list(WAYS), choices=list(WAYS), help="eager and sdpa always run")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--seconds", type=float, default=4, help="for each candidate and size (default: 4)")
    parser.add_argument(
        "--output", type=Path, default=None, help="CSV file to append to (default: in benchmarks/results)"
    )
    options = parser.parse_args(arguments)
    kinds = list(itertools.product(("eager", "sdpa"), (False, True)))
    models = {(attention, pruned): make_model(options, attention, pruned) for attention, pruned in kinds}
    candidates = {}
    for way, (attention, make) in WAYS.items():
        if way in ("eager", "sdpa", *options.only):
            try:
                candidates |= {(way, pruned): make(options, models[attention, pruned]) for pruned in (False, True)}
            except MissingError as error:
                print(f"{way} is left out: {error}.")
    versions = {"onnxruntime": import_module("onnxruntime").__version__ if ("onnx", True) in candidates else ""}
    shapes = {"layers": options.layers, "pruned": options.layers - 1, "width": options.width}
    shared = conditions(options.device, dtype=options.dtype, **shapes) | versions
    print("size     way       stock ms  pruned ms  speed-up  × stock sdpa  ceiling  target")
    for size in options.sizes:
        torch.compiler.reset()  # torch.compile stops recompiling after a few shapes
        batch = random_batch(options, *size)
        rounds = rounds_of(options, {name: for_shape(batch) for name, for_shape in candidates.items()})
        flops = [prune.cost_of(models["eager", pruned], 1, size[1], rounds=0).flops for pruned in (False, True)]
        rows = rows_of(size, rounds, flops[0] / flops[1])
        for row in rows:
            print(
                f"{size[0]:>2} × {size[1]:<3} {row['way']:<8}  {row['stock ms']:>8.2f}  {row['pruned ms']:>9.2f}"
                f"  {row['speed-up']:>7.2f}×  {row['against stock sdpa']:>11.2f}×  {row['ceiling']:>6.2f}×"
                f"  {row['target']:>6}"
            )
        append(options.output or RESULTS / f"inference-{options.device}.csv", [{**shared, **row} for row in rows])


if __name__ == "__main__":
    main()
