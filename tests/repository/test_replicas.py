"""The runs of `benchmarks/stacked.py`, against each run alone by the library's and torch's own parts."""

from __future__ import annotations

import copy
import csv
from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor

from attendrop import ADDrop, Engine
from benchmarks import replicas
from benchmarks.stacked import DropoutByReplica, StackedAdamW, StackedEngine, StackedLinear, StackedTraining, stack

SEEDS, STEPS, SIZE, LENGTH = (3, 11, 42), 50, 4, 7
MAX_NORM, DECAY = 2.2, 0.01  # so that replicas are clipped in some steps, and not in the same ones


def models() -> list[transformers.BertForSequenceClassification]:
    """Models with the same body and heads of their own."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    config = transformers.BertConfig(vocab_size=50, max_position_embeddings=16, attn_implementation="eager", **sizes)
    torch.manual_seed(0)
    first = transformers.BertForSequenceClassification(config).double().train()
    copies = [copy.deepcopy(first) for _ in SEEDS]
    for seed, model in zip(SEEDS, copies, strict=True):
        torch.manual_seed(seed)
        torch.nn.init.normal_(model.classifier.weight, std=0.5)
    return copies


def batches(seed: int) -> list[dict[str, Tensor]]:
    """Of a run, in an order of its own; some texts are padded."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 50, (STEPS, SIZE, LENGTH), generator=generator)
    lengths = torch.randint(3, LENGTH + 1, (STEPS, SIZE, 1), generator=generator)
    mask = (torch.arange(LENGTH) < lengths).long()
    labels = torch.randint(0, 2, (STEPS, SIZE), generator=generator)
    names = ("input_ids", "attention_mask", "labels")
    return [dict(zip(names, rows, strict=True)) for rows in zip(ids * mask, mask, labels, strict=True)]


def rate_of(step: int) -> float:
    return 1e-2 * (1 - step / STEPS)


def methods(name: str) -> list[ADDrop]:
    return [ADDrop(p=0.4, q=0.5, layers="all")] if name == "addrop" else []  # cross-tuning: on in every other epoch


def weights(model: torch.nn.Module, replica: int) -> dict[str, Tensor]:
    """Those of one replica of a stacked model."""
    linear = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, StackedLinear)}
    return {key: p[replica].mT if key in linear else p[replica] for key, p in model.named_parameters()}


def alone(model: torch.nn.Module, seed: int, name: str) -> list[float]:
    """Train one run, and return the norms of its gradients."""
    decayed = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1.0)
    engine = Engine(model, methods(name), epochs=5, steps_per_epoch=STEPS // 5, seed=seed)
    torch.manual_seed(seed)
    norms = []
    for number, batch in enumerate(batches(seed)):
        for group in optimizer.param_groups:
            group["lr"] = rate_of(number)
        with engine.micro_batch(batch) as inputs:
            engine.loss(model(**inputs)).backward()
        engine.before_optimizer()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)))
        optimizer.step()
        optimizer.zero_grad()
        engine.after_optimizer()
    engine.close()
    return norms


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", ["plain", "addrop"])
def test_weights_of_replicas_equal_those_of_the_runs_alone(name: str) -> None:
    singles = models()
    norms = [alone(model, seed, name) for model, seed in zip(singles, SEEDS, strict=True)]
    clipped = {tuple(norm > MAX_NORM for norm in of_step) for of_step in zip(*norms, strict=True)}
    assert any(0 < sum(of_step) < len(SEEDS) for of_step in clipped)

    model, dropout = stack(models()), DropoutByReplica(SEEDS)
    rows = [
        {key: torch.cat([batch[key] for batch in of_replicas]) for key in of_replicas[0]}
        for of_replicas in zip(*map(batches, SEEDS), strict=True)
    ]
    for batch in rows:
        batch["position_ids"] = torch.arange(LENGTH).expand_as(batch["input_ids"])
    engine = StackedEngine(model, methods(name), SEEDS, dropout, epochs=5, steps_per_epoch=STEPS // 5, example=rows[0])
    training = StackedTraining(engine, StackedAdamW(list(model.parameters()), MAX_NORM, DECAY))
    for number, batch in enumerate(rows):
        training.step(batch, rate_of(number), dropout)
    engine.close()

    starts = dict(models()[0].named_parameters())
    for replica, single in enumerate(singles):
        trained = weights(model, replica)
        for key, expected in single.named_parameters():
            torch.testing.assert_close(trained[key], expected, rtol=0, atol=1e-9, msg=key)
            if not key.endswith("key.bias"):  # on which the attention does not depend
                assert (expected - starts[key]).abs().max() > 1e-3


@pytest.mark.parametrize("method", replicas.METHODS)
def test_replicas_of_the_benchmark_train(method: str) -> None:
    """On a CPU without a graph; a GPU captures the same work."""
    trained = replicas.Replicas("tiny bert", method, 2, (4, 8), "cpu")
    before = [p.detach().clone() for p in trained.training.optimizer.parameters]
    trained.step()
    moved = [
        (p != start).flatten(1).any(1) for p, start in zip(trained.training.optimizer.parameters, before, strict=True)
    ]
    assert torch.stack(moved).all(1).float().mean() > 0.9  # all but the biases of keys, which have no effect
    row = trained.measured(seconds=0.01)
    assert row["steps a second"] == pytest.approx(2e3 / row["step ms"], rel=0.01)


def test_decision_compares_the_best_of_both_kinds() -> None:
    def row(kind: str, runs: int, rate: float) -> dict[str, object]:
        return {"model": "minilm", "kind": kind, "method": "plain", "runs": runs, "steps a second": rate}

    rows = [row("replicas", 8, 900.0), row("replicas", 16, 1250.0), row("processes", 14, 500.0)]
    assert replicas.decision(rows, "minilm") == [
        "minilm, plain: 16 replicas: 1250 steps a second; 14 processes: 500 steps a second; 2.50 x, wanted 2.5 x: "
        "runs side by side are worth building",
        "minilm, addrop: nothing to compare was measured, so nothing is decided",
    ]
    rows[1]["steps a second"] = 1240.0
    assert "2.48 x, wanted 2.5 x: stop here" in replicas.decision(rows, "minilm")[0]
    assert replicas.decision(rows[:2], "minilm")[0].endswith("so nothing is decided")


@pytest.mark.slow
def test_replica_benchmark_compares_with_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--models", "tiny bert", "--size", "4x8", "--replicas", "2", "--processes", "2", "--methods", "plain"]
    output = tmp_path / "rows.csv"
    assert replicas.main([*small, "--device", "cpu", "--seconds", "0.5", "--output", str(output)]) == 0
    with output.open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    assert [row["kind"] for row in rows if "compiled" not in row["kind"]] == ["replicas", "processes"]
    assert all(float(row["steps a second"]) > 0 for row in rows)
    assert "tiny bert, plain: 2 replicas" in capsys.readouterr().out
    failing = ["--models", "tiny", "--replicas", "2", "--processes", "1", "--methods", "plain", "--minutes", "0.01"]
    assert replicas.main([*failing, "--device", "cpu", "--output", str(output)]) == 1
