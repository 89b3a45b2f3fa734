"""Linear layers that read copies of their weights in half precision compute what they compute under autocast."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import TrainingArguments
from transformers.pytorch_utils import Conv1D

from attendrop import RegularizedTrainer
from attendrop.capture import half_weights
from attendrop.capture.graphs import Graphs
from attendrop.capture.half_weights import LinearCopies, Trial, write_gradients
from helpers import zoo
from helpers.captured import CAPTURED, make_methods
from helpers.recorded import recorded_steps  # noqa: F401
from helpers.settings import SETTINGS, bert_for


def autocast(dtype: torch.dtype = torch.bfloat16) -> Any:
    return torch.autocast("cpu", dtype=dtype)


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    """Takes them from the model."""
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return gradients


def trial_of(work: Callable[[], Any], trained: Iterable[nn.Parameter]) -> LinearCopies:
    """The copies that the work can use."""
    with Trial() as trial:
        work()
    return trial.usable(trained)


def names_of(parameters: Iterable[nn.Parameter], model: nn.Module) -> set[str]:
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {names[parameter] for parameter in parameters}


# kind of model -> how the names of those weights of linear layers begin that are left to autocast
LEFT_OUT = {
    "bert": (),
    "gpt2": (),  # its linear layers are Conv1D
    "masked": (),  # the weight of the last layer is tied to the embeddings, and named there
    "t5": (),  # some of its layers ask for the precision of a weight
    "albert": ("albert.encoder.albert_layer_groups",),  # one layer that is called three times
    # Below the first adapter nothing is kept for the backward.
    "llama_lora": tuple(
        f"base_model.model.model.layers.0.self_attn.{name}"
        for name in ("q_proj.base_layer", "k_proj", "v_proj.base_layer")
    ),
}


@pytest.mark.parametrize("kind", LEFT_OUT)
def test_copies_give_the_bits_of_autocast(kind: str) -> None:
    model, batch = zoo.make_model(kind).train(), zoo.make_batch(kind)

    def work() -> Tensor:
        torch.manual_seed(3)  # ordinary dropout
        with autocast():
            loss = model(**batch)["loss"]
        loss.backward()
        return loss.detach()

    copies = trial_of(work, [p for p in model.parameters() if p.requires_grad])
    model.zero_grad()
    with torch.no_grad():  # copies follow the weights
        for parameter in model.parameters():
            parameter.mul_(1.01)
    expected_loss, expected = work(), gradients_of(model)
    with copies:
        loss = work()
    actual = gradients_of(model)
    for parameter, gradient in copies.take_gradients().items():
        (name,) = names_of([parameter], model)
        assert gradient.dtype == torch.bfloat16
        assert name not in actual
        actual[name] = gradient.float()
    assert torch.equal(loss, expected_loss)
    assert actual.keys() == expected.keys()
    for name in expected:
        assert torch.equal(actual[name], expected[name]), name
    layers = {name for name, module in model.named_modules() if isinstance(module, (nn.Linear, Conv1D))}
    in_layers = {name for name, _ in model.named_parameters() if name.rpartition(".")[0] in layers}
    in_layers -= names_of([module.weight for module in model.modules() if isinstance(module, nn.Embedding)], model)
    starts = LEFT_OUT[kind]
    assert in_layers & names_of(copies.weights, model) == {
        n for n in in_layers if not starts or not n.startswith(starts)
    }


class Unseen(torch.autograd.Function):
    """Zero, with a gradient for a weight: a use that no trial sees."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient.expand(4, 4)


class Two(nn.Module):
    """Two linear layers, and inputs for them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.other, self.x = nn.Linear(4, 4), nn.Linear(4, 4), torch.randn(3, 4)

    def forward(self) -> Tensor:
        with autocast():
            return self.other(self.one(self.x)).float().square().sum()


def _twice(m: Two) -> None:
    with autocast():
        m.other(m.one(m.one(m.x))).sum().backward()


def _two_backwards(m: Two) -> None:
    loss = m()
    loss.backward(retain_graph=True)
    loss.backward()


def _asked_for_gradient(m: Two) -> None:
    torch.autograd.grad(m(), [m.one.weight, m.one.bias], retain_graph=True)


def _edited(m: Two) -> None:
    with torch.no_grad():
        torch._foreach_mul_([m.one.weight, m.one.bias], 1.0)
    m().backward()


def _penalised(m: Two) -> None:
    (m() + m.one.weight.square().sum() + m.one.bias.square().sum()).backward()


def _in_float32(m: Two) -> None:
    with autocast():
        m.other(m.one(m.x)).sum().backward()
    m.one(m.x).sum().backward()


def _in_another_precision(m: Two) -> None:
    with autocast():
        y = m.other(m.x)
    with autocast(torch.float16):
        (m.one(m.x) + y).sum().backward()


def _checkpointed(m: Two) -> None:
    with autocast():
        m.other(checkpoint(m.one, m.x.clone().requires_grad_(), use_reentrant=False)).sum().backward()


def _without_gradient(m: Two) -> None:
    with autocast(), torch.no_grad():
        y = m.one(m.x)
    with autocast():
        m.other(y).sum().backward()


@pytest.mark.parametrize(
    "work",
    [
        _twice, _two_backwards, _asked_for_gradient, _edited, _penalised, _in_float32, _in_another_precision,
        _checkpointed, _without_gradient,
    ],
)  # fmt: skip
def test_weights_that_are_left_to_autocast(work: Callable[[Two], None]) -> None:
    model = Two()
    copies = trial_of(lambda: work(model), list(model.parameters()))
    others = set() if work is _two_backwards else {"other.weight", "other.bias"}
    assert names_of(copies.weights, model) == others


def test_parameters_that_are_more_than_weights_are_left_to_autocast() -> None:
    class Quantised(nn.Parameter):
        pass

    model = Two()
    model.one.weight = Quantised(model.one.weight.detach())
    model.one.bias.register_hook(lambda gradient: gradient)
    nn.utils.parametrizations.weight_norm(model.other)
    copies = trial_of(lambda: model().backward(), list(model.parameters()))
    assert names_of(copies.weights, model) == {"other.bias"}


def test_unread_gradients_stay_in_place() -> None:
    model = Two()
    copies = trial_of(lambda: model().backward(), list(model.other.parameters()))
    assert names_of(copies.weights, model) == {"other.weight", "other.bias"}


def test_reads_without_a_gradient_do_not_count() -> None:
    """Some methods look at the model's outputs once, in the first step."""
    model = Two()

    def work() -> None:
        with torch.no_grad():
            model()
        model().backward()

    copies = trial_of(work, list(model.parameters()))
    assert names_of(copies.weights, model) == {name for name, _ in model.named_parameters()}
    expected = gradients_of(model)
    with copies:
        work()
    for weight, gradient in copies.take_gradients().items():
        (name,) = names_of([weight], model)
        assert torch.equal(gradient.float(), expected.pop(name))
    assert not expected


def test_frozen_weights_may_be_read_often() -> None:
    model = Two().requires_grad_(False)
    model.x.requires_grad_()
    copies = trial_of(lambda: _twice(model), [])
    assert names_of(copies.weights, model) == {name for name, _ in model.named_parameters()}
    model.x.grad = None
    with copies:
        _twice(model)
    actual, model.x.grad = model.x.grad, None
    assert not copies.take_gradients()
    _twice(model)
    assert torch.equal(actual, model.x.grad)


def test_copies_are_freed_with_their_gradients() -> None:
    model = Two()
    copies = trial_of(lambda: model().backward(), list(model.parameters()))
    assert not any(p._post_accumulate_grad_hooks or p._backward_hooks for p in model.parameters())
    model.zero_grad()
    with copies:
        model().backward()
        made = [weakref.ref(copy) for copy in copies._copies.values()]
        assert all(copy().dtype == torch.bfloat16 for copy in made)
    gradients = copies.take_gradients()
    assert len(gradients) == len(made) == 4
    assert not any(copy() for copy in made)


def test_exception_restores_all_state() -> None:
    model = Two()
    copies = trial_of(lambda: model().backward(), list(model.parameters()))
    model.zero_grad()

    def failing() -> None:
        with copies:
            model().backward()
            assert model.one.weight.grad is None
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert not copies.take_gradients()
    model().backward()  # by autocast
    assert model.one.weight.grad.dtype == torch.float32


@pytest.mark.parametrize("adds", [False, True])
def test_gradients_in_half_precision_are_added_in_float32(adds: bool) -> None:
    weights = [nn.Parameter(torch.zeros(300)), nn.Parameter(torch.zeros(2, 3))]
    into = {weight: torch.full_like(weight, 1.0) for weight in weights}
    new = {weight: torch.full_like(weight, 1 / 512, dtype=torch.bfloat16) for weight in weights}
    write_gradients(into, new, adds)
    for gradient in into.values():
        assert torch.equal(gradient, torch.full_like(gradient, 1 / 512 + adds))  # in bfloat16 the sum would be 1


def train(folder: Any, kind: str, name: str, text: str, **options: Any) -> dict[str, Tensor]:
    """The weights after a few captured steps with autocast."""
    usual = {
        "per_device_train_batch_size": 4, "max_steps": 6, "logging_steps": 2, "save_strategy": "no", "report_to": [],
        "disable_tqdm": True, "learning_rate": 1e-3, "seed": 3, "bf16": True,
    }  # fmt: skip
    batch = zoo.make_batch(kind, size=16, length=16, seed=4)
    batch |= SETTINGS[name].columns(batch, "usual") if name else {}
    trainer = RegularizedTrainer(
        model=zoo.make_model(kind),
        args=TrainingArguments(folder, **usual | options),
        train_dataset=[{k: v[i] for k, v in batch.items()} for i in range(16)],
        regularizers=make_methods(text) if name else [],
        capture="captured",
    )
    trainer.train()
    assert trainer.capture.gave_up is None
    return {name: value.detach().cpu().clone() for name, value in trainer.model.state_dict().items()}


def assert_same_with_and_without(folder: Any, monkeypatch: pytest.MonkeyPatch, *setting: str, **options: Any) -> None:
    """Captured steps with copies and without give the same bits; and there are copies."""
    counts: list[int] = []
    take = LinearCopies.take_gradients
    monkeypatch.setattr(LinearCopies, "take_gradients", lambda self: counts.append(len(self.weights)) or take(self))
    actual = train(folder, *setting, **options)
    assert max(counts) > 5
    monkeypatch.setattr(half_weights, "LINEAR_FUNCTIONS", ())
    counts.clear()
    expected = train(folder, *setting, **options)
    assert max(counts) == 0
    for name, weight in expected.items():
        assert torch.equal(actual[name], weight), name


# A step of each form: alone, with a plan in a graph of its own, with weights that the plan changes, with another
# network, with several passes, with several forwards in one pass.
FORMS = ("", "addrop", "sam", "attendout", "freelb", "scal")
CASES = [("bert", name) for name in FORMS] + [("llama_lora", "addrop")]
OTHERS = [(bert_for(name), name) for name in CAPTURED if name not in FORMS]


def _text(name: str) -> str:
    return CAPTURED[name][0] if name else ""


@pytest.mark.usefixtures("recorded_steps")
@pytest.mark.parametrize(("kind", "name"), [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in OTHERS)])
def test_recorded_steps_with_copies_have_the_bits_of_autocast(
    kind: str, name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"use_cpu": True, "gradient_accumulation_steps": 2 if name in ("", "attendout") else 1}
    assert_same_with_and_without(tmp_path, monkeypatch, kind, name, _text(name), **options)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize(
    ("kind", "name"),
    [*CASES, ("bert", "rdrop"), *((kind, "") for kind in ("gpt2", "albert", "llama_lora", "deberta_v2", "t5"))],
)
def test_captured_steps_with_copies_have_the_bits_of_autocast(
    kind: str, name: str, precision: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if precision == "fp16" and name in ("sam", "freelb", "attendout", "scal"):
        pytest.skip("one precision is enough for methods, and some refuse a scaled loss")
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        options = {"bf16": precision == "bf16", "fp16": precision == "fp16", "max_steps": 12, "logging_steps": 12}
        accumulation = 2 if name in ("", "attendout") else 1
        assert_same_with_and_without(
            tmp_path, monkeypatch, kind, name, _text(name), gradient_accumulation_steps=accumulation, **options
        )
    finally:
        torch.use_deterministic_algorithms(False)


def test_use_outside_the_trial_adds_to_the_gradient() -> None:
    graphs, model = Graphs(torch.device("cpu")), Two()

    def work() -> None:
        (model() + Unseen.apply(model.one.weight)).backward()

    work()
    expected = gradients_of(model)
    copies = graphs._run_before_capture(work, model)
    assert names_of(copies.weights, model) == expected.keys()
    with copies:
        work()
    actual = graphs._write_gradients(model, copies, adds=False)
    assert names_of([parameter for parameter, _ in actual], model) == expected.keys()
    for parameter, gradient in actual:
        (name,) = names_of([parameter], model)
        assert torch.equal(gradient, expected[name]), name
