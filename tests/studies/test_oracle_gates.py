"""The oracle of gates: its gradient against differences of whole steps, its masks, and a tiny run from start to end."""

from __future__ import annotations

import copy
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from attendrop import Engine
from helpers import zoo
from helpers.cli_tools import save_encoder, sentences
from helpers.precision import assert_same_numbers
from studies import oracle_gates
from studies.oracle_gates import Gated, first_theta, gate_gradient, gate_numbers, longest, loss_with, permuted, trained


def thetas(model: torch.nn.Module, kind: str) -> torch.Tensor:
    theta = first_theta(model, kind, 12)
    return theta + torch.randn(theta.shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["position", "distance"])
def test_gradient_of_the_gates_is_that_of_a_whole_step(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Central differences over θ of the reward after a step of gradient descent, with the dropout of the step."""
    monkeypatch.setattr(oracle_gates, "DIFFERENCE", 1e-6)
    model, rate = zoo.make_model("bert").train(), 0.1
    batch, reward = zoo.make_batch("bert", seed=1), zoo.make_batch("bert", seed=2)
    theta, first = thetas(model, kind).requires_grad_(), copy.deepcopy(model.state_dict())

    def after_step(values: torch.Tensor) -> torch.Tensor:
        model.load_state_dict(first)
        model.train()
        gradients = torch.autograd.grad(loss_with(model, values, kind, batch, 5), trained(model), allow_unused=True)
        with torch.no_grad():
            for weight, gradient in zip(trained(model), gradients, strict=True):
                if gradient is not None:
                    weight.sub_(rate * gradient)
        return model.eval()(**reward).loss

    slope = torch.autograd.grad(after_step(theta), trained(model), allow_unused=True)
    direction = [torch.zeros_like(w) if v is None else rate * v for w, v in zip(trained(model), slope, strict=True)]
    model.load_state_dict(first)
    model.train()
    weights = [weight.detach().clone() for weight in trained(model)]
    ours = gate_gradient(model, theta, kind, batch, 5, direction, weights)
    assert all(torch.equal(a, b) for a, b in zip(trained(model), weights, strict=True))
    flat = theta.detach().flatten()
    largest = ours.flatten().abs().topk(5).indices
    for number in largest.tolist():
        step = torch.zeros_like(flat)
        step[number] = 1e-4
        both = [after_step((flat + sign * step).view_as(theta)).item() for sign in (1, -1)]
        expected = (both[0] - both[1]) / 2e-4
        assert ours.flatten()[number].item() == pytest.approx(expected, rel=1e-3)


@pytest.mark.usefixtures("float64")
def test_gated_attention_is_the_softmax_of_scores_plus_log_gates() -> None:
    model, batch = zoo.make_model("bert", dropout=False).train(), zoo.make_batch("bert")
    theta = thetas(model, "position")
    length = batch["input_ids"].shape[1]
    with Engine(model, Gated(theta)) as engine, engine.micro_batch(batch):
        (edit,) = engine.seams.plan.maps[1]
        scores = torch.randn(2, 4, length, length, generator=torch.Generator().manual_seed(1))
        gates = theta[1].sigmoid().view(4, 12, 12)[:, :length, :length]
        expected = (scores + gates.log()).softmax(-1)
        assert_same_numbers(edit(scores.softmax(-1), torch.ones(1)), expected)


def test_gates_are_numbered_by_position_or_distance_and_permuted_within_heads() -> None:
    assert gate_numbers("position", 2, 3).tolist() == [[0, 1], [3, 4]]
    assert gate_numbers("distance", 3, 4).tolist() == [[3, 4, 5], [2, 3, 4], [1, 2, 3]]
    model = zoo.make_model("bert")
    for kind in ("position", "distance"):
        theta = thetas(model, kind)
        assert longest(theta, kind) == 12
        moved = permuted(theta)
        assert not torch.equal(moved, theta)
        assert torch.equal(moved.sort(-1).values, theta.sort(-1).values)


def test_a_tiny_oracle_runs_resumes_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "arena/subj"
    folder.mkdir(parents=True)
    texts: list[str] = []
    for part, count in (("train", 60), ("test", 30)):
        made = sentences(count, seed=count)
        texts += [text for text, _ in made]
        pq.write_table(
            pa.table({"text": [t for t, _ in made], "label": [y for _, y in made]}), folder / f"{part}.parquet"
        )
    save_encoder(tmp_path / "model", texts)
    flags = [
        "--data", tmp_path, "--model", tmp_path / "model", "--output", tmp_path / "out", "--n", 12, "--epochs", 1,
        "--batch-size", 6, "--length", 16, "--learn", 1, "--reward", 8, "--device", "cpu", "--rate", 1e-3,
    ]  # fmt: skip
    oracle_gates.main([*map(str, flags), "--seeds", "4"])
    file = tmp_path / "out/oracle-subj-position.csv"
    before = file.read_text(encoding="utf-8")
    assert before.count("\n") == 1 + 4 * 4
    oracle_gates.main([*map(str, flags), "--seeds", "5"])
    after = file.read_text(encoding="utf-8")
    assert after.startswith(before)
    assert after.count("\n") == 1 + 5 * 4
    printed = capsys.readouterr().out
    assert "accuracy: gates: " in printed
    assert "loss: permuted: " in printed
