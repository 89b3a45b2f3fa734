"""Super tickets: importance and the masked network compared with gates, and the whole search."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, TrainerCallback, TrainingArguments

from attendrop import Engine, Mixout, NoisyTune, RegularizedTrainer, SuperTickets, Tickets, find_supertickets
from attendrop.methods import make_method
from attendrop.methods.supertickets.tickets import Importance, importance
from helpers import zoo
from helpers.precision import assert_same_numbers
from helpers.training import same_parameters, train

TICKETS = Tickets(heads=[(0, 1), (0, 3), (1, 0)], feed_forwards=[1])


def places(model: Any, kind: str) -> tuple[list[nn.Module], list[nn.Module]]:
    """The output projections of attention and the last linear layers of the feed-forwards, in calling order."""
    if kind == "bert":
        layers = model.bert.encoder.layer
        return [x.attention.output.dense for x in layers], [x.output.dense for x in layers]
    if kind == "mpnet":
        layers = model.mpnet.encoder.layer
        return [x.attention.attn.o for x in layers], [x.output.dense for x in layers]
    if kind == "gpt2":
        layers = model.transformer.h
        return [x.attn.c_proj for x in layers], [x.mlp.c_proj for x in layers]
    if kind == "llama":
        layers = model.model.layers
        return [x.self_attn.o_proj for x in layers], [x.mlp.down_proj for x in layers]
    if kind == "t5":
        encoder, decoder = model.encoder.block, model.decoder.block
        attention = [x.layer[0].SelfAttention.o for x in encoder]
        attention += [o for x in decoder for o in (x.layer[0].SelfAttention.o, x.layer[1].EncDecAttention.o)]
        return attention, [x.layer[-1].DenseReluDense.wo for x in (*encoder, *decoder)]
    assert kind == "bart"
    encoder, decoder = model.model.encoder.layers, model.model.decoder.layers
    attention = [x.self_attn.out_proj for x in encoder]
    attention += [o for x in decoder for o in (x.self_attn.out_proj, x.encoder_attn.out_proj)]
    return attention, [x.fc2 for x in (*encoder, *decoder)]


@contextmanager
def gated(model: Any, kind: str, heads: dict[int, Tensor], feed_forwards: dict[int, Tensor]) -> Iterator[None]:
    """Multiplies the output of heads by gates [4] or [B, L, 4], and that of feed-forwards by [] or [B, L]."""

    def before(gate: Tensor) -> Callable[..., Any]:
        return lambda module, args: ((args[0].unflatten(-1, (4, -1)) * gate.unsqueeze(-1)).flatten(-2),)

    def after(gate: Tensor) -> Callable[..., Any]:
        return lambda module, args, result: result * gate.unsqueeze(-1)

    attention, ffn = places(model, kind)
    hooks = [attention[site].register_forward_pre_hook(before(gate)) for site, gate in heads.items()]
    hooks += [ffn[block].register_forward_hook(after(gate)) for block, gate in feed_forwards.items()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def gates_of(tickets: Tickets) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    heads = {site: torch.ones(4, dtype=torch.float64) for site, _ in tickets.heads}
    for site, head in tickets.heads:
        heads[site][head] = 0
    return heads, {block: torch.zeros((), dtype=torch.float64) for block in tickets.feed_forwards}


# ---- importance ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("kind", "per"), [("bert", "example"), ("bert", "token"), ("gpt2", "example"), ("bart", "example")]
)
def test_importance_is_the_gradient_of_a_gate(kind: str, per: str) -> None:
    model = zoo.make_model(kind).double().train()
    batches = [zoo.make_batch(kind, size=3, seed=2), zoo.make_batch(kind, size=2, seed=3)]
    if kind != "bert":  # the mean over tokens weighs examples by their length: one example in each batch
        batches = [{name: value[i : i + 1] for name, value in batches[0].items()} for i in range(3)]
    measured = importance(model, batches, per)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())

    model.eval()
    attention, ffn = places(model, kind)
    heads = torch.zeros(len(attention), 4, dtype=torch.float64)
    feed_forwards = torch.zeros(len(ffn), dtype=torch.float64)
    for batch in batches:
        for i in range(len(batch["input_ids"])):
            one = {name: value[i : i + 1] for name, value in batch.items()}
            shape = (1, one["input_ids"].shape[1]) if per == "token" else ()
            gates = {
                site: torch.ones(*shape, 4, dtype=torch.float64, requires_grad=True) for site in range(len(attention))
            }
            more = {block: torch.ones(shape, dtype=torch.float64, requires_grad=True) for block in range(len(ffn))}
            with gated(model, kind, gates, more):
                loss = model(**one).loss
            of_heads = torch.autograd.grad(loss, list(gates.values()), retain_graph=True)
            of_ffns = torch.autograd.grad(loss, list(more.values()))
            heads += torch.stack([g.abs().reshape(-1, 4).sum(0) for g in of_heads])
            feed_forwards += torch.stack([g.abs().sum() for g in of_ffns])
    assert_same_numbers(torch.stack(measured.heads), heads)
    assert_same_numbers(measured.feed_forwards, feed_forwards)
    assert heads.min() > 0


@pytest.mark.usefixtures("float64")
def test_importance_does_not_depend_on_the_batch_size() -> None:
    model, batch = zoo.make_model("bert"), zoo.make_batch("bert", size=5)
    whole = importance(model, [batch])
    parts = importance(model, [{k: v[:4] for k, v in batch.items()}, {k: v[4:] for k, v in batch.items()}])
    assert_same_numbers(torch.stack(whole.heads), torch.stack(parts.heads))
    assert_same_numbers(whole.feed_forwards, parts.feed_forwards)


def test_share_with_the_lowest_importance_is_masked() -> None:
    scores = Importance(
        # in units of the norm: .6 .8, then .28 .96, then 1 0: the second layer is large and not more important
        [torch.tensor([3.0, 4.0]), torch.tensor([280.0, 960.0]), torch.tensor([0.1, 0.0])],
        torch.tensor([5.0, 1.0, 3.0, 2.0]),
    )
    order = [(2, 1), (1, 0), (0, 0), (0, 1), (1, 1), (2, 0)]
    for share, heads, blocks in (
        (0, 0, 0),
        (0.16, 0, 0),
        (0.17, 1, 0),
        (0.3, 1, 1),
        (0.5, 3, 2),
        (0.99, 5, 3),
        (1, 6, 4),
    ):
        assert scores.lowest(share) == Tickets(order[:heads], [1, 3, 2, 0][:blocks])
    # as the published scripts: 14, 28 and 43 of 144 heads, 1, 2 and 3 of 12 feed-forwards
    large = Importance([torch.rand(12) for _ in range(12)], torch.rand(12))
    actual = [large.lowest(share) for share in (0.1, 0.2, 0.3)]
    assert [(len(t.heads), len(t.feed_forwards)) for t in actual] == [(14, 1), (28, 2), (43, 3)]
    nothing = Importance([torch.zeros(2)], torch.zeros(1))
    assert nothing.lowest(1) == Tickets([(0, 0), (0, 1)], [0])


# ---- the masked network ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "bart", "mpnet", "t5"])
def test_masked_model_matches_gates_in_outputs_and_gradients(kind: str) -> None:
    model, batch = zoo.make_model(kind, dropout=False).train(), zoo.make_batch(kind)
    with gated(model, kind, *gates_of(TICKETS)):
        outputs = model(**batch)
        outputs.loss.backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    plain = model(**batch).logits
    model.zero_grad()
    with Engine(model, [SuperTickets(TICKETS)]) as engine:
        with engine.micro_batch(batch) as inputs:
            actual = model(**inputs)
            engine.loss(actual).backward()
        engine.before_optimizer()
        assert_same_numbers(actual.logits, outputs.logits)
        assert not torch.allclose(actual.logits, plain, atol=1e-3)
        for name, p in model.named_parameters():
            if name in expected:
                assert_same_numbers(p.grad, expected[name], name)
    assert torch.equal(model(**batch).logits, actual.logits)  # it stays masked
    attention, ffn = places(model, kind)
    zeros = [int((linear.weight == 0).sum()) for linear in (attention[0], attention[1], ffn[1], attention[-1], ffn[0])]
    masked = [2 * 8 * 32, 8 * 32, 32 * ffn[1].weight.numel() // 32, 0, 0]
    if kind in ("bert", "gpt2", "llama", "mpnet"):
        masked[3] = masked[1]  # two sites: the last one is the second
    assert zeros == masked


@pytest.mark.parametrize("optimizer", ["adamw_torch", "sgd", "adafactor"])
def test_masked_weights_stay_zero_in_training_and_evaluation(optimizer: str, tmp_path: Path) -> None:
    model, _ = train(tmp_path, "bert", [SuperTickets(TICKETS)], weight_decay=0.1, optim=optimizer)
    heads, feed_forwards = gates_of(TICKETS)
    batch = zoo.make_batch("bert")
    with torch.no_grad():
        actual = model.double().eval()(**batch).logits
        with gated(model, "bert", heads, feed_forwards):
            assert torch.equal(actual, model(**batch).logits)
    attention, ffn = places(model, "bert")
    assert not attention[0].weight[:, 8:16].any()
    assert not ffn[1].weight.any()
    assert not ffn[1].bias.any()
    assert attention[0].weight[:, :8].all()
    model.save_pretrained(tmp_path / "saved")
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved").eval()
    with torch.no_grad():
        assert torch.equal(actual, loaded(**batch).logits)


def test_apply_masks_the_weights_permanently_and_changes_nothing_else() -> None:
    one, other = zoo.make_model("bert").train(), zoo.make_model("bert").train()
    TICKETS.apply(one)
    with Engine(other, [SuperTickets(TICKETS)]) as engine:
        engine.begin_step()
    assert same_parameters(one, other)
    assert type(one.bert.encoder.layer[0]).__mro__[1] is type(zoo.make_model("bert").bert.encoder.layer[0]).__mro__[1]
    with Engine(one, [SuperTickets(TICKETS)]):
        pass


def test_supertickets_compose_with_mixout_in_any_order(tmp_path: Path) -> None:
    methods = [SuperTickets(TICKETS), Mixout(p=0.5)]
    one, _ = train(tmp_path, "bert", methods, weight_decay=0.1)
    other, _ = train(tmp_path, "bert", methods[::-1], weight_decay=0.1)
    assert same_parameters(one, other)
    attention, _ = places(one, "bert")
    assert not attention[0].weight[:, 8:16].any()


def test_adapters_on_the_masked_projections_stay_masked(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["query", "dense"], init_lora_weights=False)
    base = zoo.make_model("bert")
    with pytest.raises(ValueError, match=r"masks weights in .*, which is frozen; call tickets\.apply\(model\) before"):
        Engine(peft.get_peft_model(zoo.make_model("bert"), config), [SuperTickets(TICKETS)])
    TICKETS.apply(base)
    model, _ = train(tmp_path, "bert", [SuperTickets(TICKETS)], model=peft.get_peft_model(base, config))
    merged = model.merge_and_unload()
    attention, ffn = places(merged, "bert")
    assert not attention[0].weight[:, 8:16].any()
    assert attention[0].weight[:, :8].all()
    assert not ffn[1].weight.any()


def test_tickets_are_saved_and_loaded(tmp_path: Path) -> None:
    TICKETS.save(tmp_path / "tickets.json")
    assert Tickets.load(tmp_path / "tickets.json") == TICKETS
    method = make_method("supertickets", {"tickets": str(tmp_path / "tickets.json")})
    assert method == SuperTickets(TICKETS)
    assert json.loads(json.dumps(method.to_dict())) == {
        "method": "supertickets",
        "tickets": {"heads": [[0, 1], [0, 3], [1, 0]], "feed_forwards": [1]},
    }


def test_bad_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"SuperTickets\.tickets is 3; it must be Tickets, a dictionary"):
        SuperTickets(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Tickets has heads .*they must be pairs"):
        SuperTickets({"heads": [1, 2]})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="does not exist; it must be a file that Tickets.save wrote"):
        SuperTickets(str(tmp_path / "none.json"))  # type: ignore[arg-type]
    model = zoo.make_model("bert")
    with pytest.raises(ValueError, match=r"SuperTickets\.tickets is empty, so nothing would be masked; it must name a"):
        Engine(model, [SuperTickets()])
    with pytest.raises(ValueError, match="tickets has head 4 of site 1; BertFor.* has sites 0 to 1 with heads 0 to 3"):
        Engine(model, [SuperTickets(Tickets([(1, 4)]))])
    with pytest.raises(ValueError, match="tickets has the feed-forward of block 2; BertFor.* has blocks 0 to 1"):
        Engine(model, [SuperTickets(Tickets(feed_forwards=[2]))])
    with pytest.raises(ValueError, match="tickets has head 0 of site 1, whose weights several layers share"):
        Engine(zoo.make_model("albert"), [SuperTickets(Tickets([(1, 0)]))])
    with pytest.raises(ValueError, match="tickets has the feed-forward of block 0, whose weights several layers share"):
        Engine(zoo.make_model("albert"), [SuperTickets(Tickets(feed_forwards=[0]))])
    with pytest.raises(ValueError, match="SuperTickets and NoisyTune, which both set the weights that training starts"):
        Engine(model, [SuperTickets(TICKETS), NoisyTune()])
    with pytest.raises(ValueError, match="per is 'head'; it must be one of 'example', 'token'"):
        importance(model, [], "head")
    with pytest.raises(ValueError, match=r"share is 1\.5; it must be a number from 0 to 1"):
        Importance([], torch.zeros(0)).lowest(1.5)


# ---- the search ------------------------------------------------------------------------------------------------------


class Notes(TrainerCallback):
    def __init__(self) -> None:
        self.starts: list[dict[str, Tensor]] = []
        self.ends: list[dict[str, Tensor]] = []

    def on_train_begin(self, *args: Any, model: nn.Module, **kwargs: Any) -> None:
        self.starts.append({name: value.clone() for name, value in model.state_dict().items()})

    def on_train_end(self, *args: Any, model: nn.Module, **kwargs: Any) -> None:
        self.ends.append({name: value.clone() for name, value in model.state_dict().items()})


@pytest.mark.parametrize(("one_model", "best"), [(True, 1), (False, 2)])
def test_search_rewinds_trains_each_share_and_keeps_the_best(one_model: bool, best: int, tmp_path: Path) -> None:
    batch = zoo.make_batch("bert", size=12, seed=4)
    data = [{k: v[i] for k, v in batch.items()} for i in range(12)]
    notes, made, model = Notes(), [], zoo.make_model("bert")

    def make_trainer(regularizers: list) -> Any:
        args = TrainingArguments(
            tmp_path, per_device_train_batch_size=4, per_device_eval_batch_size=5, num_train_epochs=1,
            learning_rate=1e-3, save_strategy="no", use_cpu=True, report_to=[], disable_tqdm=True,
            metric_for_best_model="distance", greater_is_better=False,
        )  # fmt: skip
        made.append(regularizers)
        run = len(made) - 1
        return RegularizedTrainer(
            model=model if one_model else zoo.make_model("bert", seed=run), args=args, train_dataset=data,
            eval_dataset=data, regularizers=regularizers, callbacks=[notes],
            compute_metrics=lambda _: {"distance": abs(run - best)},
        )  # fmt: skip

    search = find_supertickets(make_trainer, shares=(0.1, 0.3, 0.31, 0.6), batches=2)
    assert search.table == [  # of 8 heads and 2 blocks a share of 0.1 masks none, and 0.31 masks as many as 0.3
        {"share": 0.0, "heads": 0, "feed_forwards": 0, "eval_distance": best},
        {"share": 0.3, "heads": 2, "feed_forwards": 0, "eval_distance": abs(1 - best)},
        {"share": 0.6, "heads": 4, "feed_forwards": 1, "eval_distance": abs(2 - best)},
    ]
    assert [len(regularizers) for regularizers in made] == [0, 1, 1]
    for start in notes.starts[1:]:
        assert all(torch.equal(value, notes.starts[0][name]) for name, value in start.items())
    assert not all(torch.equal(value, notes.starts[0][name]) for name, value in notes.ends[0].items())
    assert (search.share, search.tickets) == (search.table[best]["share"], made[best][0].tickets)
    end = search.trainer.model.state_dict()
    assert all(torch.equal(value, notes.ends[best][name]) for name, value in end.items())
    for site, head in search.tickets.heads:
        assert not places(search.trainer.model, "bert")[0][site].weight[:, 8 * head : 8 * head + 8].any()
    # the scores were those of the fine-tuned model, over the first two batches
    tuned = zoo.make_model("bert")
    tuned.load_state_dict(notes.ends[0])
    scores = importance(tuned, [{k: v[i : i + 5] for k, v in batch.items()} for i in (0, 5)])
    assert scores.lowest(search.share) == search.tickets
