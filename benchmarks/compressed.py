"""Time of a forward of compressed models beside that of the stock one, in PyTorch and in onnxruntime, fp32 and int8.

    python -m benchmarks.compressed --model sentence-transformers/all-mpnet-base-v2
    python -m benchmarks.compressed --model roberta             # the shapes of RoBERTa-base, random weights
    python -m benchmarks.compressed --model M --plans tail=6 constant=6 --ways torch --sizes 16x128
    python -m benchmarks.compressed --model M --device cuda --ways captured --sizes 32x128    # bf16, as CUDA graphs

The plans compress the last blocks: `exact` (the last block on what the head reads), `constant=k` (attention is 1/n),
`tail=k` (they run on a summary), `removed=k`. Heads are new and texts random, without padding: times are measured, no
scores. PyTorch runs SDPA where the model has it; in transformers, MPNet has eager attention alone. In a round all
candidates take turns, so that what else the machine does affects all of them; times are medians over the rounds,
`fastest ms` is what other work disturbed least, and `slow` and `fast` are the quartiles of the ratios to stock PyTorch
within a round.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from attendrop import prune
from attendrop.capture.graphs import Graphs

from .inference import Batch, Run, as_size
from .records import RESULTS, append, conditions

STOCK = "stock"
PLANS = (STOCK, "exact", "constant=6", "constant=11", "removed=6", "tail=4", "tail=6", "tail=8", "tail=10")
WAYS = ("torch", "onnx", "onnx-int8", "captured")
SIZES = ((1, 128), (16, 128))
Name = tuple[str, str]  # the plan, and the way of running


def load(path: str) -> Any:
    """The encoder with a new head of two classes, in eval mode."""
    torch.manual_seed(0)
    if path == "roberta":
        shapes = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1, "initializer_range": 0.05}
        return transformers.RobertaForSequenceClassification(transformers.RobertaConfig(**shapes)).eval()
    cls: Any = transformers.AutoModelForSequenceClassification
    return cls.from_pretrained(path, num_labels=2, ignore_mismatched_sizes=True).eval()


def compressed(model: Any, plan: str) -> Any:
    """A copy that shares its weights with the model, compressed as a plan says."""
    new = copy.deepcopy(model, {id(x): x for x in model.parameters()})
    if plan == STOCK:
        return new
    way, _, count = plan.partition("=")
    layers = range(model.config.num_hidden_layers)[-int(count or 0) :]
    plans = {
        "exact": lambda: prune.LayerPlan(), "tail": lambda: prune.LayerPlan(tail=int(count)),
        "constant": lambda: prune.LayerPlan(constant=tuple(layers)),
        "removed": lambda: prune.LayerPlan(removed=tuple(layers)),
    }  # fmt: skip
    prune.apply_plan(new, plans[way]())
    return new.eval()


def session_of(path: Path) -> Any:
    runtime = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.force_spinning_stop", "1")  # idle threads must not slow the next one
    return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def runs_of(model: Any, plan: str, ways: list[str], vocabulary: int, folder: Path) -> dict[str, Any]:
    """For each way, a function of a batch that returns the logits. ONNX files that are in the folder are used again."""
    runs: dict[str, Any] = {}
    if "torch" in ways:
        runs["torch"] = lambda batch: model(**batch).logits
    if {"onnx", "onnx-int8"} & set(ways):
        path, small = (folder / f"{plan}.{kind}.onnx" for kind in ("fp32", "int8"))
        if not small.is_file():
            prune.quantize_onnx(prune.export_onnx(model, path, texts(2, 16, vocabulary)), small)
        runs |= {
            way: _of_session(session_of(file)) for way, file in (("onnx", path), ("onnx-int8", small)) if way in ways
        }
    if "captured" in ways:
        graphs = Graphs(model.device)
        runs["captured"] = lambda batch: _replayed(graphs, model, batch)
    print(f"{plan} is ready", flush=True)
    return runs


def _replayed(graphs: Graphs, model: Any, batch: Batch) -> Tensor:
    static, key = graphs.static_batch(batch)
    logits = graphs.run(key, lambda: model(**static).logits, forward_of=model)
    if graphs.failure is not None:
        raise RuntimeError(f"the model was not captured: {graphs.failure}")
    return logits.clone()


def _of_session(session: Any) -> Any:
    names = [value.name for value in session.get_inputs()]
    return lambda batch: torch.from_numpy(session.run(["logits"], {n: batch[n].numpy() for n in names})[0])


def texts(size: int, length: int, vocabulary: int) -> Batch:
    ids = torch.randint(vocabulary // 20, vocabulary, (size, length), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def measured(candidates: dict[Name, Any], batch: Batch, seconds: float, least: int) -> dict[Name, list[float]]:
    """Milliseconds of each candidate in each round, after one that is not counted."""
    times: dict[Name, list[float]] = {name: [] for name in candidates}
    rounds, end = -1, time.perf_counter() + seconds
    while rounds < least or time.perf_counter() < end:
        for name, run in candidates.items():
            _wait(batch)
            start = time.perf_counter()
            run(batch)
            _wait(batch)
            if rounds >= 0:
                times[name].append(1e3 * (time.perf_counter() - start))
        rounds += 1
    return times


def _wait(batch: Batch) -> None:
    if batch["input_ids"].is_cuda:
        torch.cuda.synchronize()


def rows_of(size: tuple[int, int], times: dict[Name, list[float]], errors: dict[Name, float]) -> list[dict[str, Any]]:
    stock = times[STOCK, "torch"]
    rows = []
    for (plan, way), of in times.items():
        same = times.get((STOCK, way), stock)
        ratios = statistics.quantiles([a / b for a, b in zip(stock, of, strict=True)], n=4)
        rows.append(
            {
                "batch": size[0], "length": size[1], "plan": plan, "way": way, "rounds": len(of),
                "ms": round(statistics.median(of), 3),
                "fastest ms": round(min(of), 3),
                "against stock torch": round(statistics.median(stock) / statistics.median(of), 3),
                "slow": round(ratios[0], 3), "fast": round(ratios[2], 3),
                "against stock, same way": round(statistics.median(same) / statistics.median(of), 3),
                "largest difference": f"{errors[plan, way]:.2g}",
            }
        )  # fmt: skip
    return rows


def differences(candidates: dict[Name, Any], batch: Batch) -> dict[Name, float]:
    """How far the logits of each way are from those of PyTorch, with the same plan."""
    logits: dict[Name, Tensor] = {name: run(batch).float() for name, run in candidates.items()}
    return {(plan, way): float((x - logits[plan, "torch"]).abs().max()) for (plan, way), x in logits.items()}


@torch.inference_mode()
def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="an encoder: a name on the Hub, or a folder")
    parser.add_argument("--name", help="its name in the results (default: the last part of --model)")
    parser.add_argument("--plans", nargs="+", default=list(PLANS))
    parser.add_argument("--ways", nargs="+", default=list(WAYS[:3]), choices=WAYS, help="torch always runs")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="cuda: in bf16, without onnx")
    parser.add_argument("--sizes", nargs="+", type=as_size, default=list(SIZES), help="batch x length, as in 1x128")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=120, help="for each size (default: 120)")
    parser.add_argument("--rounds", type=int, default=5, help="at least (default: 5)")
    parser.add_argument("--output", type=Path, help="CSV file to append to (default: in benchmarks/results)")
    parser.add_argument("--onnx", type=Path, help="folder in which ONNX files are kept for a later call")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        (options.onnx or Path(folder)).mkdir(parents=True, exist_ok=True)
        measure(options, options.onnx or Path(folder))


def measure(options: argparse.Namespace, folder: Path) -> None:
    """Measure all sizes, and append the rows."""
    torch.set_num_threads(options.threads)
    model = load(options.model)
    if options.device == "cuda":
        model.to("cuda", torch.bfloat16)
    vocabulary, ways = model.config.vocab_size, list(dict.fromkeys(["torch", *options.ways]))
    candidates: dict[Name, Run] = {}
    with torch.inference_mode(False), torch.no_grad():
        for plan in dict.fromkeys([STOCK, *options.plans]):
            runs = runs_of(compressed(model, plan), plan, ways, vocabulary, folder)
            candidates |= {(plan, way): run for way, run in runs.items()}
    runtime = import_module("onnxruntime").__version__ if "onnx" in ways or "onnx-int8" in ways else ""
    name = options.name or Path(options.model).name
    shared = conditions(options.device, model=name, attention=model.config._attn_implementation, onnxruntime=runtime)
    for size in options.sizes:
        batch = {name: x.to(options.device) for name, x in texts(size[0], size[1], vocabulary).items()}
        errors = differences(candidates, batch)
        rows = rows_of(size, measured(candidates, batch, options.seconds, max(2, options.rounds)), errors)
        for row in rows:
            print(
                f"{size[0]:>2} × {size[1]:<3} {row['plan']:<12} {row['way']:<9} {row['ms']:>9.1f} ms, "
                f"{row['against stock torch']:.2f}× stock torch, {row['against stock, same way']:.2f}× stock, same "
                f"way, off {row['largest difference']}",
                flush=True,
            )
        append(options.output or RESULTS / f"compressed-{options.device}.csv", [{**shared, **row} for row in rows])


if __name__ == "__main__":
    main()
