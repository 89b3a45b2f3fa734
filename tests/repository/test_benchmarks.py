"""The benchmarks run and write complete rows. Their timings are not checked."""

from __future__ import annotations

import csv
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from attendrop import RegularizedTrainer, parse_method, prune
from attendrop.prune import ConstantAttention
from benchmarks import all as every
from benchmarks import (
    compressed,
    cpu_steps,
    evaluation,
    host_batches,
    inference,
    kernels,
    padding,
    records,
    shapes,
    trainer_steps,
    weight_passes,
    whole_runs,
)
from benchmarks.floors import floor_of, weight_passes_of
from benchmarks.products import products_ms, products_of
from docs.tables import compression, timings
from helpers import zoo
from helpers.data import make_arguments

TINY = ["--layers", "2", "--width", "64", "--seconds", "0", "--sizes", "1x8", "3x12"]


def run(path: Path, *arguments: str) -> list[dict[str, str]]:
    inference.main([*TINY, *arguments, "--output", str(path)])
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_inference_benchmark_writes_a_row_for_each_size_and_backend(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    rows = run(tmp_path / "rows.csv", "--only", "onnx")
    sizes = [("1", "8"), ("3", "12")]
    assert [(row["batch"], row["length"], row["way"]) for row in rows] == [
        (*size, way) for size in sizes for way in ("eager", "sdpa", "onnx")
    ]
    sdpa = {row["batch"]: float(row["stock ms"]) for row in rows if row["way"] == "sdpa"}
    for row in rows:
        assert all(value for name, value in row.items() if name != "target"), row
        stock, pruned = float(row["stock ms"]), float(row["pruned ms"])
        assert stock > 0
        assert pruned > 0
        assert float(row["speed-up"]) == pytest.approx(stock / pruned, rel=0.01)
        assert float(row["against stock sdpa"]) == pytest.approx(sdpa[row["batch"]] / pruned, rel=0.01)
        assert int(row["rounds"]) >= 3
        assert (row["layers"], row["pruned"], row["width"]) == ("2", "1", "64")
        assert row["onnxruntime"] == runtime.__version__


def test_inference_benchmark_runs_stock_and_pruned_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def noting(options, model):
        pruned = sum(isinstance(module, ConstantAttention) for module in model.modules())
        seen.append((model.config._attn_implementation, pruned))
        return inference.direct(options, model)

    for way in ("eager", "sdpa"):
        monkeypatch.setitem(inference.WAYS, way, (way, noting))
    run(tmp_path / "rows.csv", "--only")
    assert seen == [("eager", 0), ("eager", 1), ("sdpa", 0), ("sdpa", 1)]


def test_ceiling_counts_matrix_products(tmp_path: Path) -> None:
    n, d = 12, 64
    row = run(tmp_path / "rows.csv", "--only")[-1]
    block, attention = 8 * d * d, 4 * d * d + 2 * n * d
    head = (d * d + 2 * d) / n  # of one token in n
    pruned = 2 * block + attention + d * d / n + head  # one vector is projected
    assert float(row["ceiling"]) == pytest.approx((2 * (block + attention) + head) / pruned, abs=6e-4)


def test_benchmark_of_compressed_models_writes_a_row_for_each_plan(tmp_path: Path) -> None:
    zoo.make_model("mpnet").save_pretrained(tmp_path / "model")
    small = ["--model", str(tmp_path / "model"), "--ways", "torch", "--seconds", "0", "--rounds", "2", "--sizes", "2x8"]
    plans = ["exact", "constant=1", "removed=1", "tail=1"]
    compressed.main([*small, "--plans", *plans, "--threads", "1", "--output", str(tmp_path / "rows.csv")])
    with (tmp_path / "rows.csv").open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    assert [row["plan"] for row in rows] == ["stock", *plans]
    assert all(float(row["fastest ms"]) <= float(row["ms"]) and row["rounds"] == "2" for row in rows)
    assert "| model (eager) | 2 × 8 | tail=1 | torch |" in compression.latencies(tmp_path / "rows.csv")


def test_plans_of_the_benchmark_share_the_weights_that_they_keep() -> None:
    model = zoo.make_model("mpnet").eval()
    of = {plan: compressed.compressed(model, plan) for plan in ("stock", "exact", "constant=1", "tail=1", "removed=1")}
    depth = model.config.num_hidden_layers
    assert prune.plan_of(of["tail=1"]) == prune.LayerPlan(tail=1)
    assert prune.plan_of(of["constant=1"]) == prune.LayerPlan(constant=(depth - 1,))
    assert prune.plan_of(of["removed=1"]) == prune.LayerPlan(removed=(depth - 1,))
    assert prune.head_reads(of["exact"]) == "first"
    own = {id(x) for x in model.parameters()}
    assert all(sum(id(x) not in own for x in each.parameters()) <= 2 for each in of.values())


def test_inference_benchmark_refuses_wrong_logits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        inference.WAYS, "sdpa", ("sdpa", lambda options, model: lambda batch: lambda: wrong(model, batch))
    )

    def wrong(model, batch):
        return model(batch["input_ids"].roll(1, -1)).logits

    with pytest.raises(ValueError, match=r"sdpa gives stock logits that are .* off eager's"):
        run(tmp_path / "rows.csv", "--only")
    assert not (tmp_path / "rows.csv").exists()


def test_inference_benchmark_skips_missing_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    rows = run(tmp_path / "rows.csv", "--only", "onnx")
    assert {row["way"] for row in rows} == {"eager", "sdpa"}
    assert "onnx is left out: onnxruntime cannot be imported; pip install 'attendrop[onnx]'." in capsys.readouterr().out


@pytest.mark.slow
def test_step_and_run_benchmarks_write_complete_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, where nothing is captured; on a GPU the same code measures captured steps."""
    monkeypatch.setattr(trainer_steps, "ROUND", (1, 1, 1))
    names = ["stock plain", "plain captured"]
    common = ["--device", "cpu", "--rounds", "2", "--output"]
    trainer_steps.main(["--model", "tiny", "--sizes", "2x8", "--only", *names, *common, str(tmp_path / "steps.csv")])
    runs = ["plain eager", "plain captured"]
    small = ["--models", "tiny", "--sizes", "16", "--epochs", "1", "--runs", *runs]
    whole_runs.main([*small, *common, str(tmp_path / "runs.csv")])
    for file, column, wanted in (("steps.csv", "provider", names), ("runs.csv", "run", runs)):
        with (tmp_path / file).open(encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines))
        assert [row[column] for row in rows] == wanted
        assert all(row["rounds"] == "2" and float(row["spread"]) >= 0 for row in rows)
    assert float(rows[1]["x eager"]) > 0


def test_evaluation_benchmark_writes_complete_rows(tmp_path: Path) -> None:
    small = ["--models", "tiny", "--texts", "40", "70", "--rounds", "1", "--device", "cpu"]
    evaluation.main([*small, "--output", str(tmp_path / "rows.csv")])
    with (tmp_path / "rows.csv").open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    assert [(row["what"], row["texts"]) for row in rows] == [("evaluate", "40"), ("predict", "70")]
    assert all(float(row["x bare"]) > 0 and row["seconds"] and row["bare seconds"] for row in rows)


def test_padding_is_counted_in_the_batches_of_training() -> None:
    lengths = [3, 9, 5, 9]
    assert list(padding.batches(lengths, 2, "grouped", 1)) in ([[9, 9], [5, 3]], [[5, 3], [9, 9]])
    exact, rounded = padding.shares(lengths, 2, "grouped", epochs=10)
    assert exact == pytest.approx(1 - 26 / 28)
    assert rounded == pytest.approx(1 - 26 / 64)  # both lengths are rounded up to 16
    assert padding.shares([7] * 8, 2, "random", epochs=1) == (0.0, 0.0)  # too few batches to be captured


def test_weight_pass_benchmark_writes_complete_rows(tmp_path: Path) -> None:
    weight_passes.main(["--model", "tiny", "--device", "cpu", "--calls", "1", "--output", str(tmp_path / "passes.csv")])
    with (tmp_path / "passes.csv").open(encoding="utf-8") as lines:
        rows = {row["provider"]: row for row in csv.DictReader(lines)}
    assert all(float(row["microseconds"]) > 0 for row in rows.values())
    passes = {name: int(row["passes"]) for name, row in rows.items()}
    assert passes["average"] == weight_passes_of("ema") == weight_passes_of("swa:start=0")
    assert passes["pull"] == weight_passes_of("l2_sp")
    assert passes["ascent of SAM"] + passes["restore"] == weight_passes_of("sam")
    assert passes["ascent of ASAM"] + passes["restore"] == weight_passes_of("asam")


class Products(TorchDispatchMode):
    """Counts the operations of all matrix products."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        count = flop_registry.get(function._overloadpacket)
        if count is not None:
            self.count += count(*args, **(kwargs or {}), out_val=result)
        return result


def products(method: str | None, model: str, folder: Path) -> int:
    """Of two training steps. The model has two blocks."""
    trainer = RegularizedTrainer(
        shapes.make_model(model, 16, "cpu"), make_arguments(folder, max_steps=2),
        train_dataset=shapes.RandomTexts(8, 16, model), regularizers=[parse_method(method)] if method else [],
    )  # fmt: skip
    with Products() as counted:
        trainer.train()
    return counted.count


COUNTED = ("ema", "deni:models=3,ensemble=0", "freeze", "sam", "freelb:steps=3", "smart", "cutoff", "hiddenkey")


@pytest.mark.parametrize(
    "names",
    [COUNTED, pytest.param([name for name in trainer_steps.AIMS if name not in COUNTED], marks=pytest.mark.slow)],
    ids=["some", "others"],
)
def test_floors_equal_the_matrix_products_of_a_step(names: Sequence[str], tmp_path: Path) -> None:
    plain = {model: products(None, model, tmp_path) for model in ("tiny", "tiny lora")}
    for name in names:
        if name.startswith(("lp_ft", "headmask")):
            continue  # LP-FT has two kinds of steps (test_lp_ft.py); a tiny model has too few heads for HeadMask
        model = "tiny lora" if name in trainer_steps.WITH_LORA else "tiny"
        counted = products(name, model, tmp_path) / plain[model]
        assert counted == pytest.approx(floor_of(parse_method(name), layers=2), rel=0.08), name


def test_every_benchmark_part_is_a_valid_command(capsys: pytest.CaptureFixture[str]) -> None:
    for device, parts in every.PARTS.items():
        for command, _ in parts.values():
            module = __import__(command[0], fromlist=["main"])
            with pytest.raises(SystemExit) as end:
                module.main([*command[1:], "--help"])
            assert end.value.code == 0, (device, command)
    with pytest.raises(SystemExit):
        every.main(["--device", "cuda", "--parts", "nothing"])
    assert "--parts has nothing; on cuda it may have sizes, family" in capsys.readouterr().err


def test_failed_part_is_reported_and_the_others_still_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    passes = ["benchmarks.weight_passes", "--model", "tiny", "--device", "cpu", "--calls", "1"]
    parts = {
        "first": ([*passes, "--tiles", "a"], 1.0),  # argparse ends the process
        "second": (["benchmarks.no_such_module"], 1.0),
        "third": ([*passes, "--output", str(tmp_path / "a.csv")], 1.0),
    }
    monkeypatch.setitem(every.PARTS, "cpu", parts)
    assert every.main(["--device", "cpu", "--no-tables"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "failed: first, second"
    assert (tmp_path / "a.csv").exists()


def test_parts_on_request_run_only_when_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(every.ON_REQUEST) < set(every.PARTS["cuda"])
    assert every.main(["--device", "cuda", "--list"]) == 0
    marked = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.endswith("(on request)")]
    assert marked == list(every.ON_REQUEST)
    minutes = [minutes for name, (_, minutes) in every.PARTS["cuda"].items() if name not in every.ON_REQUEST]
    assert sum(minutes) < 10


def test_timings_alternate_between_functions_in_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    seconds = iter([*(1.0, 1.0), *(2.0, 2.0), *(1.0, 3.0), *(2.0, 2.0), *(5.0, 3.0), *(2.0, 2.0)])
    monkeypatch.setattr(kernels, "_time_on_cpu", lambda run, x: (run(x), next(seconds))[1])
    runs = {name: (lambda x, name=name: calls.append(f"{name}{x}")) for name in "ab"}
    actual = kernels.timings(runs, [0, 1], "cpu", 6)
    assert calls == ["a0"] * 3 + ["b0"] * 3 + ["a0", "a1", "b0", "b1"] * 3
    assert actual["a"] == (2.0, 150.0)  # medians of the rounds: 1, 2 and 4
    assert actual["b"] == (2.0, 0.0)


def test_append_adds_new_columns_to_an_existing_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    records.append(path, [{"a": 1, "b": 2}])
    records.append(path, [{"a": 3, "b": 4}])
    records.append(path, [{"a": 5, "c": 6}])
    with path.open(encoding="utf-8") as lines:
        assert [list(row.values()) for row in csv.DictReader(lines)] == [["1", "2", ""], ["3", "4", ""], ["5", "", "6"]]


def test_products_alone_are_those_of_a_plain_step(tmp_path: Path) -> None:
    noted = products_of("tiny", 4, 16, "cpu").calls
    assert sum(inputs[1][0] == (64, 32) for name, inputs in noted if name == "addmm") >= 2 * 4  # tokens × width
    plain = products(None, "tiny", tmp_path) / 2  # of two steps of four texts
    operations = 0
    for _, inputs in noted:
        (*rows, inner), (*_, columns) = (inputs[-2][0], inputs[-1][0])
        operations += 2 * math.prod(rows) * inner * columns
    assert operations == pytest.approx(plain, rel=0.08)
    assert products_ms("tiny", 4, 16, "cpu") > 0


def test_table_of_peers_has_nothing_before_it_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timings, "RESULTS", tmp_path)
    assert timings.peers() == ""
    row = {"model": "roberta-base", "batch": 16, "length": 128, "x captured": 2.0, "floor": 1.0, "peak MiB": 100}
    names = trainer_steps.PEERS[:2]
    rows = [
        {**row, "provider": name, "train ms": ms, "products ms": 2.5} for name, ms in zip(names, (50, 40), strict=True)
    ]
    records.append(tmp_path / "trainer-steps-peers-cuda.csv", rows, is_quiet=True)
    assert "| stock compiled | 40 | 2.00 | 16.00 | 1.00 | 100 |" in timings.peers()


def test_compiled_peers_leave_no_settings_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}

    def make(setting: trainer_steps.Setting, args: Any, **arguments: Any) -> Any:
        seen.update(compiles=args.torch_compile, mode=args.torch_compile_mode)
        raise ValueError("only the arguments")

    name = "stock compiled, reduce-overhead"
    monkeypatch.setitem(trainer_steps.PROVIDERS, name, (make, 1.0))
    before = dict(os.environ)
    with pytest.raises(ValueError, match="only the arguments"):
        trainer_steps.trained(name, trainer_steps.Setting("tiny", 2, 8, "cpu"), trainer_steps.StepTimer(1, 1, 1))
    assert seen == {"compiles": True, "mode": "reduce-overhead"}
    assert dict(os.environ) == before


def test_host_batches_benchmark_makes_kept_batches_once(tmp_path: Path) -> None:
    small = ["--texts", "70", "--evaluations", "3", "--output", str(tmp_path / "rows.csv")]
    host_batches.main(small)
    with (tmp_path / "rows.csv").open(encoding="utf-8") as lines:
        made, kept = csv.DictReader(lines)
    assert [made["batches are"], kept["batches are"]] == ["made each time", "kept"]
    assert float(kept["later ms"]) < float(kept["first ms"])


@pytest.mark.slow
def test_cpu_steps_benchmark_writes_complete_rows(tmp_path: Path) -> None:
    small = ["--layers", "1", "--batch", "1", "--length", "8", "--rounds", "1", "--steps", "plain", "addrop", "sam"]
    cpu_steps.main([*small, "--only", "bfloat16", "--output", str(tmp_path / "rows.csv")])
    with (tmp_path / "rows.csv").open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    assert [(row["step"], row["way"]) for row in rows] == [
        (step, way) for step in cpu_steps.STEPS for way in ("float32", "bfloat16")
    ]
    assert all(float(row["processor ms"]) > 0 and float(row["matrix products %"]) > 0 for row in rows)
