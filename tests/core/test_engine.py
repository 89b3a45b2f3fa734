"""The engine, with toy methods that use hooks which AD-DROP does not: views, penalties, edits, gradients."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from transformers import Trainer

from attendrop import (
    ADDrop,
    AttendOut,
    ComparesViews,
    EditsWeights,
    Engine,
    Mixout,
    Plan,
    ReadsColumns,
    RegularizedTrainer,
    Regularizer,
)
from helpers import zoo
from helpers.data import SGD, largest_difference, make_arguments, make_examples, pad, same_bits, weights_of
from helpers.methods import TwoViews
from helpers.precision import assert_same_numbers
from helpers.traces import traces


@dataclass
class Halved(EditsWeights):
    """Halves all gradients and records which hooks are called."""

    def __post_init__(self) -> None:
        self.calls: list[str] = []

    def on_step_begin(self, step: Any) -> None:
        self.calls.append("begin")

    def plan(self, batch: Any) -> Plan:
        self.calls.append("plan")
        return Plan()

    def on_gradients(self, step: Any) -> None:
        self.calls.append("gradients")
        for parameter in step.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(0.5)

    def on_step_end(self, step: Any) -> None:
        self.calls.append("end")


@pytest.mark.usefixtures("float64")
def test_views_share_the_plan_and_the_penalty_is_added_to_the_loss() -> None:
    model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert")
    engine = Engine(model, [TwoViews(weight=2.0), ADDrop(p=0.5, q=0.5, cross_tuning=False)])
    with engine.micro_batch(batch) as inputs:
        assert inputs["input_ids"].shape == (6, 9)
        keep = engine.seams.plan.keep[0]
        assert keep.shape[0] == 6
        assert torch.equal(keep[:3], keep[3:])
        outputs = model(**inputs)
        first, second = outputs.logits.chunk(2)
        assert not torch.equal(first, second)  # ordinary dropout makes the views differ
        expected = outputs.loss + 2 * (first - second).square().mean()
        assert_same_numbers(engine.loss(outputs), expected)
    engine.close()


def test_hooks_are_called_in_order() -> None:
    model, batch = zoo.make_model("bert", dropout=False).train(), zoo.make_batch("bert")
    model(**batch).loss.backward()
    plain = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    method = Halved()
    engine = Engine(model, [method])
    for _ in range(2):
        with engine.micro_batch(batch) as inputs:
            engine.loss(model(**inputs)).backward()
    engine.before_optimizer()
    engine.after_optimizer()
    assert method.calls == ["begin", "plan", "plan", "gradients", "end"]
    for before, parameter in zip(plain, model.parameters(), strict=True):
        assert torch.equal(parameter.grad, before)  # two micro-batches, halved
    engine.close()


def test_two_methods_that_edit_weights_are_refused() -> None:
    with pytest.raises(ValueError, match="Halved and Mixout, which both edit the weights"):
        Engine(zoo.make_model("bert"), [Halved(), Mixout()])


def test_engine_counts_epochs_in_a_bare_loop() -> None:
    model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert")
    engine = Engine(model, [ADDrop(p=0.5, q=0.5)], epochs=3, steps_per_epoch=2)
    dropped = []
    for _ in range(6):
        with engine.micro_batch(batch) as inputs:
            dropped.append(bool(engine.seams.plan.keep))
            engine.loss(model(**inputs)).backward()
        engine.before_optimizer()
        engine.after_optimizer()
    assert dropped == [False, False, True, True, False, False]
    engine.close()


@dataclass
class SecondView(ComparesViews):
    """Like HiddenCut: one token of the second view is edited after the feed-forward of the first block."""

    strength: float = 1.0

    @property
    def views(self) -> int:
        return 2 if self.strength > 0 else 1

    def plan(self, batch: Any) -> Plan:
        self.seen = dict(batch.inputs)
        self.views_seen = batch.step.views
        if self.strength == 0:
            return Plan()

        def edit(x: torch.Tensor) -> torch.Tensor:
            first, second = x.chunk(2)
            second = second * torch.ones(x.shape[1]).index_fill(0, torch.tensor([1]), 1 - self.strength).view(1, -1, 1)
            return torch.cat([first, second])

        return Plan(ffn={0: (edit,)})


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "bart"])
def test_plan_can_edit_the_second_view_only(kind: str) -> None:
    model, batch = zoo.make_model(kind, dropout=False).train(), zoo.make_batch(kind)
    method = SecondView()
    with Engine(model, [method]) as engine, engine.micro_batch(batch) as inputs:
        outputs = model(**inputs)
        assert method.views_seen == 2
        assert method.seen.keys() == inputs.keys() == batch.keys()
        for name in batch:
            assert torch.equal(method.seen[name], torch.cat([batch[name]] * 2))
    assert traces(model) == []
    first, second = outputs.logits.chunk(2)
    assert_same_numbers(first, model(**batch).logits)
    last = [m for name, m in model.named_modules() if name.endswith((".0.output.dense", ".0.mlp.c_proj", ".0.fc2"))]
    last = last or [model.model.layers[0].mlp.down_proj]

    def zero_one_token(module: Any, args: Any, y: torch.Tensor) -> torch.Tensor:
        y = y.clone()
        y[:, 1] = 0
        return y

    last[0].register_forward_hook(zero_one_token)
    assert_same_numbers(second, model(**batch).logits)


@dataclass
class Reader(ReadsColumns):
    """Reads a column: the scale of each example's attention."""

    column: str = "how_much"

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def plan(self, batch: Any) -> Plan:
        assert set(batch.examples) == {"input_ids", "attention_mask", "labels", self.column}
        _, records = batch.probe().forward(Plan(record=frozenset({0})))
        assert 0 in records
        return Plan(scale={0: batch.examples[self.column].view(-1, 1, 1, 1)})


@dataclass
class Plain(Regularizer):
    """Checks that it does not get the columns of other methods."""

    def plan(self, batch: Any) -> Plan:
        assert set(batch.examples) == {"input_ids", "attention_mask", "labels"}
        return Plan()


def without_column(module: Any, args: Any, kwargs: Any) -> None:
    """The model must not get the column; many models would accept it silently in their **kwargs."""
    assert "how_much" not in kwargs


@pytest.mark.usefixtures("float64")
def test_extra_columns_reach_the_method_and_not_the_model() -> None:
    model, batch = zoo.make_model("bert", dropout=False).train(), zoo.make_batch("bert")
    scale = torch.tensor([0.5, 1.0, 2.0])
    model.register_forward_pre_hook(without_column, with_kwargs=True)
    with Engine(model, [Plain(), Reader(), TwoViews()]) as engine:
        with engine.micro_batch({**batch, "how_much": scale}) as inputs:
            assert inputs.keys() == batch.keys()
            actual = model(**inputs).logits
        with engine.seams.applied(Plan(scale={0: scale.view(-1, 1, 1, 1)})):
            expected = model(**batch).logits
        assert_same_numbers(actual, torch.cat([expected] * 2))
        with pytest.raises(
            ValueError, match=r"Reader reads the column 'how_much', and the batch has only attention_mask"
        ):
            engine.micro_batch(batch).__enter__()


def with_column(examples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**example, "how_much": torch.tensor(0.5 + i / 16)} for i, example in enumerate(examples)]


@pytest.mark.parametrize("as_dataset", [False, True])
def test_trainer_keeps_extra_columns_for_training_only(tmp_path: Path, as_dataset: bool) -> None:
    def run(data: Any, regularizers: list[Regularizer], evaluated: Any = None) -> tuple[Any, Any]:
        if as_dataset:
            datasets = pytest.importorskip("datasets")
            data, evaluated = (
                None if d is None else datasets.Dataset.from_list([{k: v.tolist() for k, v in e.items()} for e in d])
                for d in (data, evaluated)
            )
        model = zoo.make_model("bert", dropout=False)
        model.register_forward_pre_hook(without_column, with_kwargs=True)
        trainer = RegularizedTrainer(
            model=model, args=make_arguments(tmp_path, max_steps=3, **SGD), train_dataset=data,
            eval_dataset=evaluated or data, regularizers=regularizers,
            data_collator=lambda rows: pad([{k: torch.as_tensor(v) for k, v in row.items()} for row in rows]),
        )  # fmt: skip
        trainer.train()
        return model, trainer

    examples = make_examples("bert", 16)
    read, trainer = run(with_column(examples), [Reader()])
    plain, _ = run(examples, [])
    assert largest_difference(weights_of(read), weights_of(plain)) > 1e-4
    scored = trainer.evaluate()["eval_loss"]  # with the column, which the model does not get
    assert scored == Trainer(model=read, args=trainer.args, data_collator=pad).evaluate(examples)["eval_loss"]
    assert trainer.predict(trainer.eval_dataset).predictions.shape == (16, 3)
    run(with_column(examples), [Reader()], evaluated=examples)
    with pytest.raises(ValueError, match=r"Reader reads the column 'how_much'.*add it to the training set"):
        RegularizedTrainer(
            model=zoo.make_model("bert"), args=make_arguments(tmp_path), train_dataset=examples, data_collator=pad,
            regularizers=[Reader()],
        )  # fmt: skip


@dataclass
class Mutator(Regularizer):
    """Like mixout: changes a weight from the beginning of a step until its gradients are ready."""

    def __post_init__(self) -> None:
        self.original: torch.Tensor | None = None
        self.closed = 0

    def on_step_begin(self, step: Any) -> None:
        self.weight = step.model.get_input_embeddings().weight
        self.original = self.weight.detach().clone()
        self.weight.data.mul_(2)

    def on_gradients(self, step: Any) -> None:
        self._put_back()

    def on_close(self) -> None:
        self.closed += 1
        self._put_back()

    def _put_back(self) -> None:
        if self.original is not None:
            self.weight.data.copy_(self.original)
            self.original = None


@dataclass
class Dying(Regularizer):
    """Raises KeyboardInterrupt in the second step, like Ctrl-C."""

    at: str = "plan"
    error: ClassVar[type[BaseException]] = KeyboardInterrupt

    def plan(self, batch: Any) -> Plan:
        if self.at == "plan" and batch.step.progress.step == 1:
            raise self.error
        return Plan()

    def penalty(self, outputs: Any, batch: Any) -> None:
        if self.at == "penalty" and batch.step.progress.step == 1:
            raise self.error

    def on_close(self) -> None:
        if self.at == "close":
            raise self.error


@pytest.mark.parametrize("at", ["plan", "penalty", "close"])
def test_every_method_restores_its_changes_when_a_run_fails(at: str, tmp_path: Path) -> None:
    model = zoo.make_model("bert")
    methods = [Dying(at), Mutator()]
    args = make_arguments(tmp_path, max_steps=3, learning_rate=0.0)
    before = weights_of(model)
    if at == "close":
        for closed, order in ((1, methods), (2, methods[::-1])):  # whichever of the two is asked first
            with pytest.raises(KeyboardInterrupt):
                Engine(model, order).close()
            assert methods[1].closed == closed
    else:
        trainer = RegularizedTrainer(
            model=model, args=args, train_dataset=make_examples("bert"), data_collator=pad, regularizers=methods
        )
        assert methods[1].closed == 1  # the engine that only checked the model
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
        assert methods[1].closed == 2
    assert same_bits(before, weights_of(model))
    assert traces(model) == []


def test_closing_an_engine_twice_closes_its_methods_once() -> None:
    method = Mutator()
    engine = Engine(zoo.make_model("bert"), [method])
    engine.close()
    engine.close()
    assert method.closed == 1


@dataclass
class Loner(Regularizer):
    def refuses(self, other: Regularizer) -> str | None:
        return "which also wants to be alone." if isinstance(other, TwoViews) else None


@pytest.mark.parametrize("order", [1, -1])
def test_methods_that_do_not_compose_are_refused_in_both_directions(order: int, tmp_path: Path) -> None:
    methods = [Loner(), TwoViews()][::order]
    with pytest.raises(ValueError, match="regularizers has Loner and TwoViews, which also wants to be alone."):
        Engine(zoo.make_model("bert"), methods)
    with pytest.raises(ValueError, match="regularizers has Loner and TwoViews"):
        RegularizedTrainer(model=zoo.make_model("bert"), args=make_arguments(tmp_path), regularizers=methods)
    Engine(zoo.make_model("bert"), [Loner(), ADDrop(cross_tuning=False)]).close()


def test_outputs_without_gradient_are_refused() -> None:
    model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert")
    with Engine(model, [TwoViews()]) as engine, engine.micro_batch(batch) as inputs:
        outputs = model(**inputs)
        outputs["logits"] = outputs.logits.detach()
        with pytest.raises(
            ValueError, match="TwoViews adds a penalty on the model's outputs, and .* carry no gradient"
        ):
            engine.loss(outputs)


@pytest.mark.usefixtures("float64")
def test_penalty_is_averaged_over_the_micro_batches_of_a_step(tmp_path: Path) -> None:
    """Losses of language models are divided by the number of items in the whole step; a penalty is not."""

    @dataclass
    class Decay(Regularizer):
        def penalty(self, outputs: Any, batch: Any) -> torch.Tensor:
            return 5 * outputs["logits"].square().mean()

    def run(kind: str, size: int, accumulated: int, lr: float = 0.01) -> dict[str, torch.Tensor]:
        model = zoo.make_model(kind, dropout=False)
        batch = zoo.make_batch(kind, size=1)
        examples = [{k: v[0] for k, v in batch.items()}] * 8  # all alike, so that all ways of counting agree
        shape = {"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulated}
        args = make_arguments(tmp_path, max_steps=2, **{**SGD, "learning_rate": lr}, **shape)
        RegularizedTrainer(model=model, args=args, train_dataset=examples, regularizers=[Decay()]).train()
        return weights_of(model)

    assert largest_difference(run("gpt2", 4, 1), run("gpt2", 1, 4)) < 1e-9
    # BERT's loss does not look at the number of items, so that the Trainer adds up four means: loss and penalty alike.
    assert largest_difference(run("bert", 4, 1, lr=0.04), run("bert", 1, 4)) < 1e-9


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_defender_of_attendout_trains_on_the_batch_without_views(kind: str, tmp_path: Path) -> None:
    """The defender takes the step of plain fine-tuning, also when other methods add views."""
    examples = make_examples(kind, 16)
    options = {"max_steps": 2, **SGD}

    def run(regularizers: list[Regularizer] | None) -> Any:
        model = zoo.make_model(kind, dropout=False)
        extra = {} if regularizers is None else {"regularizers": regularizers}
        cls = Trainer if regularizers is None else RegularizedTrainer
        trainer = cls(
            model=model, args=make_arguments(tmp_path, **options), train_dataset=examples, data_collator=pad, **extra
        )
        trainer.train()
        return model

    plain = run(None)
    method = AttendOut(T=5, init_drop=0.3, reward_on="cached")
    attacked = run([method, TwoViews()])
    assert largest_difference(weights_of(method.defender), weights_of(plain)) < 1e-9
    assert largest_difference(weights_of(attacked), weights_of(plain)) > 1e-5


def test_zero_strength_needs_one_view() -> None:
    model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert")
    with Engine(model, [SecondView(strength=0.0)]) as engine, engine.micro_batch(batch) as inputs:
        assert inputs["input_ids"].shape == (3, 9)
        assert not engine.seams.plan


# ---- how methods may be given ----------------------------------------------------------------------------------------


def test_one_method_needs_no_list(tmp_path: Path) -> None:
    args = make_arguments(tmp_path)
    for given in (ADDrop(p=0.4), "addrop:p=0.4", ["addrop:p=0.4"], [ADDrop(p=0.4)]):
        trainer = RegularizedTrainer(model=zoo.make_model("bert"), args=args, regularizers=given)
        assert trainer.regularizers == [ADDrop(p=0.4)]
    with Engine(zoo.make_model("bert"), ADDrop(cross_tuning=False)) as engine:
        assert len(engine.regularizers) == 1


def test_method_twice_in_a_list_is_refused() -> None:
    methods = [ADDrop(p=0.4, cross_tuning=False), ADDrop(p=0.5, cross_tuning=False)]
    with pytest.raises(ValueError, match="regularizers has ADDrop 2 times; it must have each method once"):
        Engine(zoo.make_model("bert"), methods)


def test_object_in_use_by_an_open_engine_is_refused() -> None:
    method = ADDrop(cross_tuning=False)
    engine = Engine(zoo.make_model("bert"), method)
    other = zoo.make_model("bert")
    with pytest.raises(ValueError, match="this ADDrop object is in use by another engine"):
        Engine(other, method)
    assert traces(other) == []
    engine.close()
    Engine(other, method).close()


@pytest.mark.parametrize("attribution", ["ga", "iga", "aa", "rd"])
def test_probe_and_pass_skip_the_same_layers(attribution: str) -> None:
    """BART with `encoder_layerdrop`: a block that did not run has no attribution and gets no mask."""
    model, batch = zoo.make_model("bart").train(), zoo.make_batch("bart")
    model.model.encoder.layerdrop = model.model.decoder.layerdrop = 0.5
    options = {"ig_rule": "gauss", "ig_steps": 2} if attribution == "iga" else {}
    method = ADDrop(p=0.5, q=0.5, layers="all", attribution=attribution, cross_tuning=False, **options)
    masked = set()
    with Engine(model, method) as engine:
        for seed in range(6):
            torch.manual_seed(seed)
            with engine.micro_batch(batch) as inputs:
                masked.add(len(engine.seams.plan.keep))
                engine.loss(model(**inputs)).backward()
            engine.before_optimizer()
            engine.after_optimizer()
    assert attribution == "iga" or len(masked) > 1  # integrated gradients are taken in eval mode, which skips nothing
