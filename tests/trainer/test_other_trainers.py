"""Trainers of TRL, sentence-transformers and setfit with regularisers: real training on tiny models."""

from __future__ import annotations

import importlib.metadata
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

from attendrop import (
    EMA,
    SAM,
    ADDrop,
    AttendOut,
    ChildTuning,
    ConfidencePenalty,
    DropHead,
    Engine,
    IntegrationRule,
    Loop,
    NEFTune,
    RDrop,
    RegularizedTrainer,
    StructureMask,
    attribute,
    regularized,
)  # fmt: skip
from attendrop.capture.step_capture import StepCapture
from attendrop.model.attribution import attribute_loop_loss, attributions
from helpers.data import SGD, largest_difference, make_arguments, same_bits, weights_of
from helpers.oracles import LiteralAttention
from helpers.precision import assert_same_numbers
from helpers.trainers import (
    KINDS,
    OneCallForEachText,
    bert,
    make_sentence_model,
    make_tokenizer,
    make_trainer,
    save,
    texts,
)  # fmt: skip
from helpers.zoo import make_model

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
ON = {"p": 0.5, "q": 0.5, "cross_tuning": False}


# ---- training --------------------------------------------------------------------------------------------------------


def trained(trainer: Any, **options: Any) -> dict[str, Tensor]:
    trainer.train(**options)
    return weights_of(trainer.model)


def forget(model: Any) -> None:
    """Sets all trained weights to zero, so that a run which does not load its checkpoint gives another result."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.zero_()


@pytest.mark.parametrize("kind", [pytest.param("sft", marks=pytest.mark.slow), *KINDS])
def test_training(kind: str, tmp_path: Path) -> None:
    """Zero strength is plain training bit for bit; AD-DROP acts, the loss falls; a resumed run is the same run."""
    options = {"max_steps": 8, "logging_strategy": "steps", "logging_steps": 2, "learning_rate": 1e-2}
    plain = trained(make_trainer(kind, tmp_path, **options))
    assert same_bits(plain, trained(make_trainer(kind, tmp_path, [ADDrop(q=0.0, cross_tuning=False)], **options)))

    saving = {**options, "save_strategy": "steps", "save_steps": 4}
    whole = make_trainer(kind, tmp_path / "whole", [ADDrop(**ON, layers="all")], **saving)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dropped = trained(whole)
    assert not [w for w in caught if "return_outputs" in str(w.message)]
    assert largest_difference(plain, dropped) > 1e-5
    lines = [line for line in whole.state.log_history if "loss" in line]
    rates = [rate for name, rate in lines[0].items() if name.startswith("addrop/drop_rate")]
    assert len(rates) >= 2
    assert all(0.05 < rate < 0.9 for rate in rates)
    assert lines[-1]["loss"] < lines[0]["loss"]

    half = make_trainer(kind, tmp_path / "whole", [ADDrop(**ON, layers="all")], **saving)
    forget(half.model)
    assert same_bits(dropped, trained(half, resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-4")))


@pytest.mark.parametrize("kind", ["sentence", "cross_encoder"])
def test_loader_of_steps_that_may_be_captured(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The collator that notes padding has the attributes that the library's own loader reads."""
    trainer = make_trainer(kind, tmp_path, [ADDrop(**ON)], max_steps=2)
    expected = next(iter(trainer.get_train_dataloader())).keys()
    monkeypatch.setattr(StepCapture, "may_capture", True)
    assert next(iter(trainer.get_train_dataloader())).keys() >= expected


def test_setfit_trains_its_body_with_regularizers(tmp_path: Path) -> None:
    """As `test_training`; setfit's own Trainer cannot resume."""
    setfit = pytest.importorskip("setfit")
    from datasets import Dataset
    from sklearn.linear_model import LogisticRegression

    examples = texts(8)
    data = Dataset.from_list([{"text": text, "label": int(text.startswith("w0"))} for text in examples])

    def run(regularizers: Any, **options: Any) -> tuple[Any, dict[str, Tensor]]:
        body = make_sentence_model(tmp_path)
        if options:  # of a run that is resumed
            forget(body)
        args = setfit.TrainingArguments(
            str(tmp_path), batch_size=4, max_steps=8, report_to="none", logging_steps=2, body_learning_rate=1e-2,
            save_strategy="steps", save_steps=4, save_total_limit=2,
        )  # fmt: skip
        arguments = {"model": setfit.SetFitModel(body, LogisticRegression()), "args": args, "train_dataset": data}
        cls = setfit.Trainer if regularizers is None else regularized(setfit.Trainer)
        trainer = cls(**arguments, **({} if regularizers is None else {"regularizers": regularizers}))
        trainer.train(**options)
        return trainer, weights_of(body)

    _, plain = run(None)
    assert same_bits(plain, run([ADDrop(q=0.0, cross_tuning=False)])[1])
    trainer, dropped = run([ADDrop(**ON)])
    assert largest_difference(plain, dropped) > 1e-5
    assert trainer.model.predict(examples).shape == (8,)
    lines = [line for line in trainer.st_trainer.state.log_history if "embedding_loss" in line]
    assert 0.05 < lines[0]["addrop/drop_rate_layer_0"] < 0.9
    assert lines[-1]["embedding_loss"] < lines[0]["embedding_loss"]
    assert same_bits(dropped, run([ADDrop(**ON)], resume_from_checkpoint=str(tmp_path / "checkpoint-4"))[1])


@pytest.mark.parametrize(
    ("kind", "method"),
    [("sentence", SAM()), ("sentence", EMA()), ("sft_packed_lora", NEFTune()), ("sft_packed_lora", DropHead(0.5))],
    ids=lambda value: getattr(value, "name", value),
)
def test_every_family_of_methods_trains(kind: str, method: Any, tmp_path: Path) -> None:
    plain = trained(make_trainer(kind, tmp_path, max_steps=2))
    trainer = make_trainer(kind, tmp_path, [method], max_steps=2)
    assert largest_difference(plain, trained(trainer)) > 1e-6
    assert all(x.isfinite().all() for x in trainer.model.parameters())


# ---- penalties in SFTTrainer -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("accumulated", [1, 2])
def test_penalties_in_sft_trainer_are_those_of_the_trainer(accumulated: int, tmp_path: Path) -> None:
    """R-Drop with TRL's fused head equals R-Drop with the model's own loss: the weights after three steps agree."""
    options = {**SGD, "max_steps": 3, "gradient_accumulation_steps": accumulated, "per_device_train_batch_size": 4}

    def model() -> Any:
        made = make_model("llama").double()
        for layer in made.model.layers:
            layer.self_attn.attention_dropout = 0.3
        return made

    def method() -> list[Any]:
        return [RDrop(alpha=3.0), ConfidencePenalty(beta=0.5)]

    sft = make_trainer("sft", tmp_path, method(), model=model(), **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        actual = trained(sft)
    assert not [w for w in caught if "return_outputs" in str(w.message)]
    own = RegularizedTrainer(
        model=model(), args=make_arguments(tmp_path, **options), train_dataset=sft.train_dataset,
        data_collator=sft.data_collator, regularizers=method(),
    )  # fmt: skip
    assert largest_difference(actual, trained(own)) < 1e-9
    assert largest_difference(actual, trained(make_trainer("sft", tmp_path, model=model(), **options))) > 1e-3


def test_probes_do_not_change_logged_metrics(tmp_path: Path) -> None:
    """TRL counts tokens and accuracies in each computation of the loss, also in one that a probe asks for."""
    logged = []
    for regularizers in (None, [ADDrop(p=0.5, q=1e-9, cross_tuning=False)]):
        trainer = make_trainer("reward", tmp_path, regularizers, max_steps=2, logging_strategy="steps", logging_steps=1)
        trainer.train()
        names = ("num_tokens", "accuracy", "mean_reward", "loss")
        logged.append([[line[name] for name in names] for line in trainer.state.log_history if "num_tokens" in line])
    assert logged[0] == logged[1]
    assert len(logged[0]) == 2


# ---- packing ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("float64")
def test_attribution_of_packed_texts_is_that_of_each_text() -> None:
    """Packed texts are told apart by their positions: each has the attribution that it has by itself."""
    model = make_model("llama", dropout=False).double().eval()
    ids = [torch.tensor([[5, 9, 30, 7]]), torch.tensor([[8, 12, 40, 21, 6, 17]])]
    packed = {"input_ids": torch.cat(ids, 1), "position_ids": torch.tensor([[*range(4), *range(6)]])}
    labels = torch.cat(ids, 1)
    labels[0, 4] = -100  # the first token of a text is not predicted from the text before it
    both = attribute(model, {**packed, "labels": labels, "use_cache": False})
    for text, start in zip(ids, (0, 4), strict=True):
        alone = attribute(model, {"input_ids": text, "labels": text})
        end = start + text.shape[1]
        for layer, scores in alone.items():
            lower = torch.ones(text.shape[1], text.shape[1]).tril().bool()
            assert_same_numbers(both[layer][..., start:end, start:end][..., lower], scores[..., lower])


def test_noise_of_neftune_is_scaled_by_the_length_of_each_packed_text() -> None:
    model = make_model("llama", dropout=False).train()
    batch = {"input_ids": torch.tensor([[5, 9, 30, 7, 8, 12]]), "position_ids": torch.tensor([[0, 1, 0, 1, 2, 3]])}
    seen: list[Tensor] = []
    model.model.layers[0].self_attn.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["hidden_states"].detach()), with_kwargs=True
    )
    model.model.layers[0].input_layernorm = nn.Identity()
    with Engine(model, [NEFTune(alpha=8.0)]) as engine, engine.micro_batch(batch) as inputs:
        model(**inputs)
    noise = (seen[-1] - model.model.embed_tokens(batch["input_ids"])).abs().amax(-1)[0]
    width = model.config.hidden_size
    for positions, length in ((slice(0, 2), 2), (slice(2, 6), 4)):
        bound = 8.0 / math.sqrt(length * width)
        assert 0.7 * bound < noise[positions].max() <= bound * (1 + 1e-6)


# ---- attribution of a loss -------------------------------------------------------------------------------------------


def columns_of(model: Any) -> list[dict[str, Tensor]]:
    columns = [texts(3, seed=seed, longest=longest) for seed, longest in ((1, 8), (2, 5), (3, 7))]
    return [{k: v for k, v in model.preprocess(column).items() if isinstance(v, Tensor)} for column in columns]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("method", ["ga", "iga"])
def test_attribution_of_a_contrastive_loss_is_its_gradient(method: str, tmp_path: Path) -> None:
    """−∂loss/∂A of each of the three calls of the model, against autograd through maps that are kept in the graph."""
    model, literal_model = (make_sentence_model(tmp_path, dropout=0.0).double() for _ in range(2))
    columns, rule = columns_of(model), IntegrationRule("sum", 3)
    literal = LiteralAttention()
    literal.attach(literal_model)
    loss = OneCallForEachText(literal_model)(columns)
    maps = literal.maps  # two layers of three calls
    if method == "ga":
        expected = [-torch.autograd.grad(loss, a, retain_graph=True)[0] for a in maps]
    else:
        expected = []
        for place, a in enumerate(maps):
            total = torch.zeros_like(a)
            for at, weight in rule.nodes():
                literal.maps, literal.scaled, literal.factor = [], place, at
                scaled = OneCallForEachText(literal_model)(columns)
                total -= weight * torch.autograd.grad(scaled, literal.maps[place])[0]
            expected.append(a.detach() * total)

    results = []

    class Reads(ADDrop):
        def on_batch(self, batch: Any) -> None:
            attribute_loop_loss(batch.probe(), [0, 1], method, "pseudo", rule)

        def plan(self, batch: Any) -> Any:
            for _, attribution in attributions(batch.probe(), [0, 1], method, "pseudo", rule):
                results.append((attribution.scores(), attribution.record.valid))
            return super().plan(batch)

    def compute() -> Tensor:
        return OneCallForEachText(model)(columns)

    with Engine(model.train(), [Reads(q=0.0, cross_tuning=False)], loop=Loop(calls_model=True)) as engine:
        with pytest.raises(ValueError, match="Loop.calls_model is True and loop_loss is None"):
            engine.begin_micro_batch(columns[0])
        with engine.micro_batch(columns[0], loop_loss=compute):
            compute().backward()
    assert len(results) == len(expected) == 6
    for (scores, valid), oracle in zip(results, expected, strict=True):
        assert scores is not None
        assert_same_numbers(scores.masked_fill(~valid, 0), oracle.masked_fill(~valid, 0))


def test_each_call_has_its_own_mask(tmp_path: Path) -> None:
    """Also where two calls get the same texts."""
    trainer = make_trainer("sentence", tmp_path, [ADDrop(**ON)], max_steps=1)
    data = [{"anchor": row["anchor"], "positive": row["anchor"]} for row in trainer.train_dataset]
    trainer.train_dataset = type(trainer.train_dataset).from_list(data)
    plans = []
    original = Engine.plan

    def seen(engine: Engine, batch: Any) -> Any:
        plans.append(original(engine, batch))
        return plans[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "plan", seen)
        trainer.train()
    one, two = (plan.keep[0] for plan in plans)
    assert one.shape == two.shape
    assert not torch.equal(one, two)


def test_loss_that_stores_outputs_between_calls_trains(tmp_path: Path) -> None:
    """MatryoshkaLoss computes embeddings once and reads them for each width: a probe in the middle would disturb it."""
    pytest.importorskip("sentence_transformers", minversion="6.2")
    from sentence_transformers.sentence_transformer import losses

    def loss(model: Any) -> Any:
        return losses.MatryoshkaLoss(model, losses.MultipleNegativesRankingLoss(model), [32, 16])

    plain = trained(make_trainer("sentence", tmp_path, loss=loss, max_steps=2))
    dropped = trained(make_trainer("sentence", tmp_path, [ADDrop(**ON), SAM()], loss=loss, max_steps=2))
    assert largest_difference(plain, dropped) > 1e-5


def test_gradient_checkpointing_repeats_the_plan_of_each_call(tmp_path: Path) -> None:
    runs = []
    for checkpointing in (False, True):
        methods = [ADDrop(**ON, layers="all"), DropHead(0.5), NEFTune()]
        options = {"gradient_checkpointing": checkpointing, "max_steps": 2}
        runs.append(trained(make_trainer("sentence", tmp_path, methods, **options)))
    assert same_bits(*runs)


@pytest.mark.parametrize("labels", [1, 2])
def test_cross_encoder_attributes_its_loss(labels: int, tmp_path: Path) -> None:
    """The logit of the predicted class, as in the paper; with one score the loss."""
    trainer = make_trainer("cross_encoder", tmp_path, [ADDrop(**ON)], num_labels=labels, max_steps=1)
    computed = []
    compute = trainer._loop_loss
    trainer._loop_loss = lambda *args: computed.append(1) or compute(*args)
    trainer.train()
    assert len(computed) == (1 if labels == 1 else 0)


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("DPOTrainer", "noise in them changes the preference itself"),
        ("GRPOTrainer", "noise in them changes the preference itself"),
        ("KTOTrainer", "noise in them changes the preference itself"),
        ("RLOOTrainer", "noise in them changes the preference itself"),
        ("DistillationTrainer", "log-probabilities with those of a teacher"),
    ],
)
def test_preference_trainers_are_refused(name: str, words: str) -> None:
    trl = pytest.importorskip("trl")
    with pytest.raises(ValueError, match=f"^{name} .*{words}"):
        regularized(getattr(trl, name))


def test_other_classes_are_refused() -> None:
    with pytest.raises(ValueError, match="Linear is not a subclass of transformers.Trainer"):
        regularized(nn.Linear)


@pytest.mark.parametrize(("package", "oldest"), [("trl", "1.16"), ("sentence-transformers", "6.2"), ("setfit", "1.2")])
def test_old_versions_are_refused(package: str, oldest: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library = pytest.importorskip(package.replace("-", "_"))
    names = {"trl": "RewardTrainer", "setfit": "Trainer", "sentence-transformers": "SparseEncoderTrainer"}
    regularized.cache_clear()  # type: ignore[attr-defined]
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.9.1" if name == package else "99.0")
    with pytest.raises(ValueError, match=f"{package} 0.9.1 is installed, and .* from {oldest} on"):
        regularized(getattr(library, names[package]))


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (RDrop(), "RDrop adds a penalty on the prediction of each example"),
        (ConfidencePenalty(), "ConfidencePenalty adds a penalty on the prediction of each example"),
        (AttendOut(), "AttendOut trains a second network .* the loss calls the model by itself"),
        (ChildTuning(variant="D"), "ChildTuning.variant is 'D'.* the loss calls the model by itself"),
        (StructureMask(column="tree"), "StructureMask reads the column 'tree'"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_contrastive_loss_refuses_unsupported_methods(method: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        make_trainer("sentence", tmp_path, [method])


def test_unsupported_losses_and_arguments_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers", minversion="6.2")
    from sentence_transformers.sentence_transformer import losses

    cached = losses.CachedMultipleNegativesRankingLoss
    with pytest.raises(ValueError, match="CachedMultiple.* runs the model twice .* use MultipleNegativesRankingLoss"):
        make_trainer("sentence", tmp_path, [ADDrop(**ON)], loss=cached)
    with pytest.raises(ValueError, match="CachedMultiple"):
        make_trainer("sentence", tmp_path, [DropHead()], loss=lambda m: losses.MatryoshkaLoss(m, cached(m), [32, 16]))
    plain = trained(make_trainer("sentence", tmp_path, loss=cached, max_steps=2))
    averaged = trained(make_trainer("sentence", tmp_path, [EMA()], loss=cached, max_steps=2))  # changes no pass
    assert largest_difference(plain, averaged) > 0
    with pytest.raises(ValueError, match="args.neftune_noise_alpha is 5"):
        make_trainer("sft", tmp_path, [NEFTune()], neftune_noise_alpha=5.0)
    liger = make_arguments(tmp_path, use_liger_kernel=True)
    with pytest.raises(ValueError, match="use_liger_kernel is True, .* no predictions in training, and RDrop reads"):
        RegularizedTrainer(make_model("llama"), liger, regularizers=[DropHead(), RDrop()])
    with pytest.raises(ValueError, match="AttendOut trains a second network .* rows hold several examples"):
        make_trainer("sft_packed_lora", tmp_path, [AttendOut()])


def test_a_model_without_a_prediction_is_refused(tmp_path: Path) -> None:
    """A Trainer whose own subclass computes a loss from embeddings: nothing says what is predicted."""

    class Contrastive(hf.Trainer):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            raise AssertionError("not before the check")

    with pytest.raises(ValueError, match="BertModel has no head whose prediction is known"):
        regularized(Contrastive)(
            model=bert(hf.BertModel), args=make_arguments(tmp_path), regularizers=[ADDrop(**ON)], train_dataset=[{}]
        )


def test_several_models_in_one_pipeline_are_refused(tmp_path: Path) -> None:
    st = pytest.importorskip("sentence_transformers", minversion="6.2")
    from sentence_transformers.sentence_transformer.modules import Pooling, Router, Transformer

    path = save(tmp_path, bert(hf.BertModel))
    parts = [[Transformer(path), Pooling(32, "mean")] for _ in range(2)]
    model = st.SentenceTransformer(modules=[Router.for_query_document(*parts)], device="cpu")
    with pytest.raises(ValueError, match="SentenceTransformer holds 2 transformers models, and one is needed"):
        make_trainer(
            "sentence",
            tmp_path,
            [ADDrop(**ON)],
            model=model,
            router_mapping={"anchor": "query", "positive": "document"},
        )


def test_reward_trainer_warns_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from attendrop.trainer import foreign

    pytest.importorskip("trl")
    foreign.logger.warning_once.cache_clear()
    monkey = pytest.MonkeyPatch()
    monkey.setattr(foreign.logger, "propagate", True)
    monkey.setattr(hf.utils.logging.get_logger("attendrop"), "propagate", True)
    make_trainer("reward", tmp_path, [DropHead()], max_steps=1).train()
    monkey.undo()
    assert len([r for r in caplog.records if "regulariser adds noise to both scores" in r.getMessage()]) == 1


def test_tokenizer_of_these_tests_knows_its_words() -> None:
    assert make_tokenizer()("w0 w55")["input_ids"] == [4, 59]
