"""mixout compared with its equation: the mixed weights, their mean, and the gradients of the true weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.func import functional_call
from transformers import Trainer, TrainerCallback, TrainingArguments

from attendrop import Engine, Mixout, Progress, RegularizedTrainer
from attendrop.methods import make_method
from helpers import zoo

CONV1D = ("c_attn.weight", "c_proj.weight", "c_fc.weight")  # GPT-2 stores these as [inputs, outputs]


def literal(u: Tensor, w: Tensor, m: Tensor, p: float) -> Tensor:
    return ((1 - m) * u + m * w - p * u) / (1 - p)


def mask_of(actual: Tensor, u: Tensor, w: Tensor, p: float) -> Tensor:
    """Recovers m from the mixed weight: each element must equal exactly one of the two possible values."""
    kept, dropped = ((actual - literal(u, w, torch.full_like(w, m), p)).abs() < 1e-12 for m in (1.0, 0.0))
    assert (kept ^ dropped).all()
    return kept.double()


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def first_step(model: Any, engine: Engine, batch: dict[str, Tensor]) -> None:
    """Takes a step with random updates, after which every weight differs from its initial value."""
    g = torch.Generator().manual_seed(8)
    with engine.micro_batch(batch) as inputs:
        engine.loss(model(**inputs)).backward()
    engine.before_optimizer()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=g))
    model.zero_grad()
    engine.after_optimizer()


@pytest.mark.parametrize(("kind", "pattern"), [("bert", "column"), ("gpt2", "column"), ("bart", "element")])
def test_weights_and_gradients_match_the_equation(kind: str, pattern: str) -> None:
    p = 0.6
    model, batch = zoo.make_model(kind, dropout=False).double().train(), zoo.make_batch(kind)
    start = weights_of(model)
    with Engine(model, [Mixout(p=p, pattern=pattern)], epochs=1, steps_per_epoch=2) as engine:
        first_step(model, engine, batch)
        true = weights_of(model)
        pointers = {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
        with engine.micro_batch(batch) as inputs:
            outputs = model(**inputs)
            engine.loss(outputs).backward()
            inside = weights_of(model)
            assert pointers == {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
        engine.before_optimizer()
        assert all(torch.equal(parameter, true[name]) for name, parameter in model.named_parameters())

    masks = {
        name: mask_of(actual, start[name], true[name], p)
        for name, actual in inside.items()
        if not torch.equal(actual, true[name])
    }
    for name, mask in masks.items():
        by_input = mask.T if name.endswith(CONV1D) else mask
        assert (by_input == by_input[0]).all() == (pattern == "column")
    base = {"bert": "bert.", "gpt2": "transformer.", "bart": "model."}[kind]
    assert set(masks) == {
        name
        for name, weight in model.named_parameters()
        if name.startswith(base) and weight.dim() == 2 and not any(e in name for e in ("embed", "shared", "wte", "wpe"))
    }

    leaves = {name: weight.clone().requires_grad_() for name, weight in true.items()}
    mixed = {n: literal(start[n], w, masks[n], p) if n in masks else w for n, w in leaves.items()}
    expected = functional_call(model, mixed, (), batch)
    torch.testing.assert_close(outputs.loss, expected.loss, rtol=1e-12, atol=1e-12)
    gradients = torch.autograd.grad(expected.loss, list(leaves.values()), allow_unused=True)
    for (name, parameter), gradient in zip(model.named_parameters(), gradients, strict=True):
        if gradient is None:
            assert parameter.grad is None
        else:
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-9, atol=1e-12, msg=name)
    assert any(gradient is not None and name in masks for name, gradient in zip(leaves, gradients, strict=True))


@pytest.mark.parametrize("pattern", ["column", "element"])
def test_mean_of_the_mixed_weights_is_the_true_weight(pattern: str) -> None:
    p, steps = 0.7, 150
    model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert")
    total: dict[str, Tensor] = {}
    dropped, drawn = 0, 0
    with Engine(model, [Mixout(p=p, pattern=pattern)], seed=5) as engine:
        first_step(model, engine, batch)
        start = engine.regularizers[0].state()[0]
        true = weights_of(model)
        for step in range(1, 1 + steps):
            engine.begin_step(Progress(step=step, total_steps=steps))
            for name in start:
                actual = model.get_parameter(name)
                total[name] = total.get(name, 0) + actual.double()
                dropped += int((actual == start[name]).sum())
                drawn += actual.numel()
    # Var[W̃] = (W − U)² p/(1−p)
    deviations = torch.cat(
        [
            ((total[name] / steps - true[name]) / ((true[name] - u).double() * (p / (1 - p) / steps) ** 0.5)).flatten()
            for name, u in start.items()
        ]
    )
    independent = len(deviations) if pattern == "element" else sum(weight.shape[1] for weight in start.values())
    assert deviations.abs().max() < 6
    assert abs(deviations.square().mean() - 1) < 5 * (2 / independent) ** 0.5
    assert abs(dropped / drawn - p) < 5 * (p * (1 - p) / (independent * steps)) ** 0.5


def test_micro_batches_and_processes_of_a_step_share_one_draw() -> None:
    batch = zoo.make_batch("llama")
    results = []
    for rank, world in ((0, 1), (1, 2)):
        model = zoo.make_model("llama").train()
        with Engine(model, [Mixout(p=0.5)], seed=3, rank=rank, world=world, steps_per_epoch=3) as engine:
            first_step(model, engine, batch)
            for _ in range(2):
                for _ in range(2):
                    with engine.micro_batch(batch):
                        results.append(weights_of(model))
                engine.before_optimizer()
                engine.after_optimizer()
    for name, weight in results[0].items():
        assert torch.equal(weight, results[1][name])
        assert torch.equal(weight, results[4][name])
        assert torch.equal(results[2][name], results[6][name])
        assert torch.equal(weight, results[2][name]) != name.endswith("proj.weight")


class Stops(TrainerCallback):
    """Interrupts training between the two micro-batches of the second step, where W differs from U."""

    def on_step_end(self, args: Any, state: Any, control: Any, model: nn.Module, **kwargs: Any) -> None:
        self.true = weights_of(model)

    def on_substep_end(self, args: Any, state: Any, control: Any, model: nn.Module, **kwargs: Any) -> None:
        if state.global_step == 1:
            self.mixed = weights_of(model)
            raise KeyboardInterrupt


def trainer_of(model: Any, regularizers: list, folder: Path, **arguments: Any) -> Trainer:
    batch = zoo.make_batch("bert", size=8)
    data = [{k: v[i] for k, v in batch.items()} for i in range(8)]
    args = TrainingArguments(
        folder, per_device_train_batch_size=4, use_cpu=True, report_to=[], disable_tqdm=True, learning_rate=1e-2,
        logging_steps=1, **{"num_train_epochs": 2, "save_strategy": "no", **arguments},
    )  # fmt: skip
    return RegularizedTrainer(model=model, args=args, train_dataset=data, eval_dataset=data, regularizers=regularizers)


def test_interrupted_step_restores_the_true_weights(tmp_path: Path) -> None:
    model, stops = zoo.make_model("bert"), Stops()
    trainer = trainer_of(model, [Mixout(p=0.5)], tmp_path, gradient_accumulation_steps=2)
    trainer.add_callback(stops)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert not all(torch.equal(weight, stops.true[name]) for name, weight in stops.mixed.items())
    assert all(torch.equal(parameter, stops.true[name]) for name, parameter in model.named_parameters())


def test_evaluation_between_steps_sees_the_true_weights(tmp_path: Path) -> None:
    model = zoo.make_model("bert", dropout=False)
    trainer = trainer_of(model, [Mixout(p=0.9)], tmp_path, eval_strategy="steps", eval_steps=1, save_strategy="steps",
                         save_steps=1)  # fmt: skip
    trainer.train()
    for step in (1, 2):
        saved = type(model).from_pretrained(tmp_path / f"checkpoint-{step}").eval()
        with torch.no_grad():
            loss = saved(**zoo.make_batch("bert", size=8)).loss.item()
        logged = next(e["eval_loss"] for e in trainer.state.log_history if "eval_loss" in e and e["step"] == step)
        assert logged == pytest.approx(loss, rel=1e-5)


def test_lora_mixes_the_merged_weight_with_the_pretrained_weight() -> None:
    peft = pytest.importorskip("peft")
    p = 0.5
    base = zoo.make_model("bert", dropout=False)
    config = peft.LoraConfig(r=2, lora_alpha=3, target_modules=["query", "dense"], init_lora_weights=False)
    model = peft.get_peft_model(base, config).double().train()

    def sums() -> dict[str, Tensor]:
        return {
            name: layer.base_layer.weight + layer.get_delta_weight("default").detach()
            for name, layer in model.named_modules()
            if hasattr(layer, "lora_A")
        }

    batch = zoo.make_batch("bert")
    with Engine(model, [Mixout(p=p)], steps_per_epoch=2) as engine:
        first_step(model, engine, batch)
        true = sums()
        with engine.micro_batch(batch):
            inside = sums()
        engine.before_optimizer()
        assert all(torch.equal(weight, true[name]) for name, weight in sums().items())
    masks = 0
    for name, actual in inside.items():
        u = model.get_submodule(name).base_layer.weight.detach()
        mask = mask_of(actual, u, true[name], p)
        assert (mask == mask[0]).all()
        masks += int((mask[0] == 0).sum())
    assert len(inside) == 9
    columns = sum(weight.shape[1] for weight in true.values())
    assert abs(masks / columns - p) < 5 * (0.25 / columns) ** 0.5
    with pytest.raises(ValueError, match=r"Mixout\.pattern is 'element', which the two factors of a LoRA adapter"):
        Engine(model, [Mixout(pattern="element")])


def test_weights_tied_to_an_embedding_are_not_changed() -> None:
    model = zoo.make_model("t5")  # its base model is itself, with the tied head in it
    before = weights_of(model)
    with Engine(model.train(), [make_method("dropconnect", {"p": 0.5})]) as engine:
        engine.begin_step()
        changed = {name for name, weight in model.named_parameters() if not torch.equal(weight, before[name])}
    assert len(changed) == 2 * 6 + 2 * 10
    assert not any("shared" in name or "lm_head" in name or "bias" in name for name in changed)


@pytest.mark.parametrize("pattern", ["column", "element"])
def test_first_step_equals_the_pretrained_model_exactly(pattern: str) -> None:
    """While W equals U, W̃ equals U for every draw."""
    model, batch = zoo.make_model("bert", dropout=False).train(), zoo.make_batch("bert")
    before = model(**batch).loss
    with Engine(model, [Mixout(p=0.7, pattern=pattern)]) as engine, engine.micro_batch(batch) as inputs:
        assert torch.equal(model(**inputs).loss, before)


def test_schedule_from_zero_mixes_with_the_initial_weights() -> None:
    model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert")
    start = weights_of(model)
    with Engine(model, [Mixout(p="0..0.9")], epochs=2, steps_per_epoch=1) as engine:
        with engine.micro_batch(batch):
            assert all(torch.equal(weight, start[name]) for name, weight in model.named_parameters())
        engine.before_optimizer()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1)
        engine.after_optimizer()
        with engine.micro_batch(batch):
            weight = model.get_parameter("bert.pooler.dense.weight")
            is_pretrained = (weight == start["bert.pooler.dense.weight"]).all(0)
    assert 0 < is_pretrained.sum() < 32


def test_resumed_run_mixes_with_the_initial_weights(tmp_path: Path) -> None:
    whole = trainer_of(zoo.make_model("bert"), [Mixout(p=0.5)], tmp_path, save_strategy="steps", save_steps=2)
    whole.train()
    resumed = trainer_of(zoo.make_model("bert"), [Mixout(p=0.5)], tmp_path)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))  # there is one of the end too
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True))
    saved, start = load_file(tmp_path / "checkpoint-2" / "mixout.safetensors"), zoo.make_model("bert")
    assert len(saved) == 13
    assert all(torch.equal(weight, start.get_parameter(name)) for name, weight in saved.items())


@pytest.fixture
def process_group() -> Iterator[None]:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("method", ["mixout", "dropconnect", "child_tuning", "noisytune", "supertickets"])
def test_sharded_weights_are_refused(method: str, process_group: None) -> None:
    from torch.distributed.fsdp import fully_shard

    fields = {"tickets": {"heads": [[0, 1]]}} if method == "supertickets" else {}
    model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert")
    sharded_later = Engine(model, [make_method(method, fields)])
    fully_shard(model)
    with (
        pytest.raises(ValueError, match="works on whole weights, and .* is sharded over the processes; use DDP"),
        sharded_later.micro_batch(batch),
    ):
        pass
    sharded_later.close()
    with pytest.raises(ValueError, match="works on whole weights"):
        Engine(model, [make_method(method, fields)])


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Mixout\.p is 1; it must be below 1"):
        Mixout(p=1)
    with pytest.raises(ValueError, match=r"Mixout\.p is '0\.\.1'; it must be below 1"):
        Mixout(p="0..1")
    with pytest.raises(ValueError, match=r"Mixout\.p is -0\.1; it must be from 0 to 1"):
        Mixout(p=-0.1)
    with pytest.raises(ValueError, match=r"Mixout\.pattern is 'row'; it must be one of 'column', 'element'"):
        Mixout(pattern="row")
    model = zoo.make_model("bert")
    with pytest.raises(ValueError, match="has Mixout and DropConnect, which both edit the weights"):
        Engine(model, [Mixout(), make_method("dropconnect", {})])
    for method in ("mixout", "child_tuning", "noisytune", "supertickets"):
        with pytest.raises(ValueError, match="changes weights or gradients of the model alone, and AttendOut"):
            Engine(model, [make_method("attendout", {}), make_method(method, {})])
    model.bert.requires_grad_(False)
    with pytest.raises(ValueError, match="no linear layer in its base model whose weights are trained, so Mixout"):
        Engine(model, [Mixout()])
