"""AttendOut: the policy gradient, a task with a known solution, and the two networks of a round."""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import Wav2Vec2ForSequenceClassification

from attendrop import (
    DENI,
    AttendOut,
    ConcreteDropout,
    Cutoff,
    Engine,
    Loop,
    Progress,
    RegularizedTrainer,
    Schedule,
    ScheduledDropout,
    fit_schedule,
)  # fmt: skip
from attendrop.capture.graphs import Graphs
from attendrop.core.step import MicroBatch, Step
from attendrop.lab.report.attendout_figure import plot_run
from attendrop.methods import make_method
from attendrop.methods.attendout import policy_gradient as module
from attendrop.methods.attendout.generator import (
    GENERATOR_FILE,
    Generator,
    ids_and_mask,
    load_generator,
    pairs,
    save_weights,
)  # fmt: skip
from attendrop.methods.attendout.policy_gradient import CachedBatch, actions, likelihood_gradient, reinforce
from attendrop.methods.attendout.rewards import Rewards, attacker_probability, rewards_of_steps
from helpers import data, zoo
from helpers.media import wav2vec2_config
from helpers.precision import assert_same_numbers
from helpers.settings import SETTINGS, bert_for
from helpers.training import same_parameters
from helpers.training import train as fine_tune


def tiny_generator(layers: int = 2, width: int = 6, **options: Any) -> Generator:
    torch.manual_seed(0)
    return Generator(torch.randn(10, width), torch.randn(8, width), layers, **options)


def literal_attention(g: Generator, h: torch.Tensor) -> torch.Tensor:
    """The attention of the generator over the states of one example, one head at a time."""
    width = h.shape[1] // g.heads
    parts = [slice(head * width, (head + 1) * width) for head in range(g.heads)]
    of_heads = [(g.q(h)[:, part] @ g.k(h)[:, part].T / width**0.5).softmax(-1) @ g.v(h)[:, part] for part in parts]
    return torch.cat(of_heads, 1)


def literal_logits(g: Generator, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The equations of the generator, one example and one layer at a time."""
    logits = torch.zeros(g.layers, *mask.shape, mask.shape[1], dtype=g.norm.weight.dtype)
    for b in range(len(ids)):
        n = int(mask[b].sum())
        is_image = ids.ndim == 4
        h = g.norm(g.patches(ids[b : b + 1])[0] if is_image else g.tokens[ids[b, :n]] + g.positions[:n])
        for layer in range(g.layers):
            s = (g.q(h) @ g.k(h).T) / h.shape[1] ** 0.5
            logits[layer, b, :n, :n] = s / g.temperature + g.offsets[layer]
            h = g.norm(h + g.o(literal_attention(g, h)))
            if g.inner:
                first, second, norm = g.inner
                h = norm(h + second(nn.functional.gelu(first(h))))
    return logits


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("options", [{}, {"heads": 3}, {"feed_forward": 5}, {"heads": 2, "feed_forward": 8}], ids=str)
def test_generator_matches_its_equations(options: dict[str, int]) -> None:
    g = tiny_generator(3, init_drop=0.3, temperature=2.0, **options)
    ids = torch.randint(0, 10, (4, 7), generator=torch.Generator().manual_seed(1))
    mask = torch.ones(4, 7, dtype=torch.long)
    mask[1, 5:], mask[2, 2:] = 0, 0
    valid = pairs(mask)
    assert_same_numbers(g(ids, mask) * valid, literal_logits(g, ids, mask) * valid)
    p = g.drop_probabilities({"input_ids": ids, "attention_mask": mask})
    assert p.shape == (3,)
    assert ((p - 0.3).abs() < 0.15).all()


@pytest.mark.parametrize("baseline", [0.0, 0.7])
def test_policy_gradient_matches_enumeration_of_all_actions(baseline: float) -> None:
    """Two tokens, two layers: E[(r − b) ∇ log P(d)] over all 2^8 actions, and its average over draws."""
    g = tiny_generator()
    ids, mask = torch.tensor([[3, 4]]), torch.ones(1, 2, dtype=torch.long)
    weights = torch.randn(2, 1, 2, 2, generator=torch.Generator().manual_seed(5))

    def reward(drop: torch.Tensor) -> float:
        return float((weights * drop).sum() + drop[0].all())

    # The exact gradient of the expected reward, by enumeration.
    p = g(ids, mask).sigmoid()
    expected = torch.zeros(())
    for bits in itertools.product([0.0, 1.0], repeat=8):
        drop = torch.tensor(bits).view(2, 1, 2, 2)
        expected = expected + torch.where(drop.bool(), p, 1 - p).prod() * reward(drop)
    parameters = [g.q.weight, g.k.weight, g.tokens]
    exact = [x / 8 for x in torch.autograd.grad(expected, parameters)]  # Eq. 5 divides by layers · n²

    # Eq. 5, averaged over draws. Every distinct action is differentiated once and weighted by how often it was drawn.
    logits = g(ids, mask)
    p = logits.detach().sigmoid()
    count = 40_000
    draws = torch.rand(count, 2, 1, 2, 2, generator=torch.Generator().manual_seed(6))
    taken, times = torch.unique(draws < p, dim=0, return_counts=True)
    total = [torch.zeros_like(x) for x in parameters]
    squares = [torch.zeros_like(x) for x in parameters]
    for action, n in zip(taken, times.tolist(), strict=True):
        # 1/(layers · n²), with n = 2
        gradient = (reward(action.float()) - baseline) * likelihood_gradient(p, action, pairs(mask)) / 8
        for i, grad in enumerate(torch.autograd.grad(logits, parameters, gradient, retain_graph=True)):
            total[i] += n * grad
            squares[i] += n * grad**2
    for i, x in enumerate(exact):
        mean = total[i] / count
        error = ((squares[i] / count - mean**2) / count).clamp(min=0).sqrt()
        assert ((mean - x).abs() <= 5 * error + 1e-7).all()
        assert (mean - x).norm() < 0.2 * x.norm()


REWARDS = torch.tensor([[0.5, -1.0, 2.0, 0.25, -0.125, 1.5, 0.75], [-1.0, 0.5, 1.0, -0.5, -2.0, 1.25, 0.1]])


class Kept(AttendOut):
    """Stores ids, mask and dropped positions of each site for each micro-batch, and gives fixed rewards."""

    def plan(self, batch: Any) -> Any:
        plan = super().plan(batch)
        given = batch.examples
        if "pixel_values" in given:  # 16 patches and the token that the model adds
            ids, mask = given["pixel_values"], torch.ones(len(given["pixel_values"]), 17, dtype=torch.long)
        else:
            ids, mask = (x.reshape(-1, x.shape[-1]) for x in (given["input_ids"], given["attention_mask"]))
        drop = {site: ~keep.squeeze(1) for site, keep in plan.keep.items()}
        self.seen = [*getattr(self, "seen", []), (batch.step.progress.step, ids.clone(), mask.clone(), drop)]
        return plan

    def _rewards(self, step: Any) -> Rewards:
        self.before = copy.deepcopy(self.generator).double()
        rewards = REWARDS[self._rounds]
        return Rewards(rewards, rewards.mean(), rewards.mean())


def play(method: AttendOut, kind: str, steps: int, graphs: Any = None) -> list[dict[str, torch.Tensor]]:
    """Trains with two micro-batches of different shapes per step; returns the gradients of each generator update."""
    model = zoo.make_model(kind, dropout=False).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loop = Loop(optimizer=optimizer, graphs=graphs)
    gradients: list[dict[str, torch.Tensor]] = []

    def note(*_: Any) -> None:
        gradients.append(
            {name: p.grad.clone() for name, p in method.generator.named_parameters() if p.grad is not None}
        )

    with Engine(model, [method], loop=loop, seed=5, batch_size=4) as engine:
        for step in range(steps):
            for micro in range(2):
                batch = zoo.make_batch(kind, size=(4, 3)[micro], length=(9, 6, 11)[(step + micro) % 3], seed=step)
                with engine.micro_batch(batch) as inputs:
                    (model(**inputs).loss / 2).backward()
                if step == micro == 0:
                    method._optimizer.register_step_pre_hook(note)
            engine.before_optimizer()
            optimizer.step()
            optimizer.zero_grad()
            engine.after_optimizer()
    return gradients


def literal_round(
    g: Generator,
    advantages: list[float],
    seen: list[Any],
    monte_carlo: int,
    causal: bool = False,
    shifts: list[float] | None = None,
) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Eq. 5, one position at a time: the gradients of minus the objective, and the mean P(drop) of each layer."""
    loss = torch.zeros((), dtype=torch.float64)
    means = []

    def positions(n: int) -> list[tuple[int, int]]:
        return [(i, j) for i in range(n) for j in range(i + 1 if causal else n)]

    steps = [at for at, *_ in seen]
    for at, ids, mask, drop in seen:
        logits = literal_logits(g, ids, mask)
        p = (logits + torch.tensor(shifts).view(-1, 1, 1, 1)).sigmoid() if shifts else logits.sigmoid()
        advantage = advantages[sorted(set(steps)).index(at)]
        likelihood = torch.zeros((), dtype=torch.float64)
        for example, n in enumerate(mask.sum(1).tolist()):
            for layer, dropped in drop.items():
                for i, j in positions(n):
                    q = p[layer, example, i, j]
                    chosen = q if dropped[example, i, j] else 1 - q
                    likelihood = likelihood + chosen.log() / (len(drop) * len(positions(n)))
        loss = loss - advantage * likelihood / len(ids) / steps.count(at) / monte_carlo
        p = logits.sigmoid()
        valid = [(b, i, j) for b, n in enumerate(mask.sum(1).tolist()) for i, j in positions(n)]
        means.append([sum(p[layer, b, i, j].item() for b, i, j in valid) / len(valid) for layer in range(g.layers)])
    loss.backward()
    gradients = {name: p.grad.float() for name, p in g.named_parameters() if p.grad is not None}
    return gradients, torch.tensor(means).mean(0).tolist()


WAYS = {
    "all at once": (1 << 11, 1 << 22), "two rows at a time": (22, 1 << 22), "few maps at a time": (1 << 11, 3 * 150),
}  # fmt: skip


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "fixed shapes"])
@pytest.mark.parametrize("limits", WAYS)
def test_generator_update_matches_a_slow_reference(limits: str, graphs: bool, monkeypatch) -> None:
    """Computed for the actions that were taken. Chunks of fixed shape, as for graphs, are padded with empty rows."""
    monkeypatch.setattr(module, "_OTHER_CHUNK_LIMITS", WAYS[limits])
    check_the_dropout_step("albert", Graphs(torch.device("cpu")) if graphs else None, credit="paired", active=0.67)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "fixed shapes"])
@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("choice", {"credit": "paired", "normalize": False}),
        ("bert", {"monte_carlo": 2, "layer_offsets": False}),
        ("bert", {"monte_carlo": 2, "explore": 0.7}),
        ("bert", {"heads": 4, "feed_forward": 12}),
        ("vit", {"reward_on": "held_out"}),
    ],
)
def test_generator_update_matches_a_slow_reference_for_other_inputs_and_fields(
    kind: str, fields: dict, graphs: bool
) -> None:
    check_the_dropout_step(kind, Graphs(torch.device("cpu")) if graphs else None, **fields)


def check_the_dropout_step(kind: str, graphs: Any, **fields: Any) -> None:
    method = Kept(T=3, init_drop=0.3, select="attacker", **{"reward_on": "noisy", **fields})
    (actual,) = play(method, kind, 3 * method.monte_carlo, graphs)
    wanted = {name: torch.zeros_like(x) for name, x in actual.items()}
    baseline, size = 0.0, 0.0
    for turn, rewards in enumerate(REWARDS[: method.monte_carlo].tolist()):
        groups = [sum(rewards) / 7] * 3
        if method.credit == "paired":
            groups = [sum(rewards[:3]) / 3, sum(rewards[3:6]) / 3, rewards[6]]
        advantages = [r - baseline for r in groups]
        now = (sum(a * a for a in advantages) / 3) ** 0.5
        size = now if turn == 0 else 0.9 * size + 0.1 * now
        baseline = sum(groups) / 3 if turn == 0 else 0.9 * baseline + 0.1 * sum(groups) / 3
        advantages = [a / size for a in advantages] if method.normalize else advantages
        method.before.zero_grad()
        seen = method.seen[6 * turn : 6 * turn + 6]
        shifts = method.history[turn].get("shifts")
        gradients, means = literal_round(method.before, advantages, seen, method.monte_carlo, kind == "gpt2", shifts)
        for name, x in gradients.items():
            wanted[name] += x
        if shifts:  # log N(c + ε; c, σ²) = −ε²/(2σ²) + …, whose derivative by c is ε/σ²
            wanted["offsets"] -= torch.tensor(shifts) * sum(advantages) / 3 / method.monte_carlo / method.explore**2
        assert method.history[turn]["drop_probability"] == pytest.approx(means, abs=5.1e-6)  # five decimals
        assert method.history[turn]["baseline"] == pytest.approx(baseline, rel=1e-9)
    assert all(0 < drop.float().mean() < 0.6 for *_, drops in method.seen for drop in drops.values())
    for name, x in wanted.items():
        assert_same_numbers(actual[name], x, name)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "fixed shapes"])
def test_micro_batches_in_one_chunk_give_the_same_gradients_as_alone(graphs: bool) -> None:
    """Also for sequences longer than the position table, and for rows without a valid token."""
    g = tiny_generator(3, init_drop=0.4, layer_offsets=True)  # eight positions
    draws = torch.Generator().manual_seed(2)
    whole: list[CachedBatch] = []
    keys, weights = {}, {}
    for at, (rows, length) in enumerate([(2, 7), (3, 12), (2, 4), (1, 8), (2, 17)]):
        mask = torch.ones(rows, length, dtype=torch.long)
        mask[-1, length // 2 :] = 0
        whole.append(CachedBatch(at, 5 * at, torch.randint(0, 10, (rows, length), generator=draws), mask))
        batch = MicroBatch(Step(None, None, Progress(step=at), seed=1))  # type: ignore[arg-type]
        keys[at], weights[at] = batch.keys(range(3), "attendout", torch.device("cpu")), [0.5 - at, 0.0, 1.0 + at]
    whole[1].mask[0] = 0

    def gradients(rounds: list[list[CachedBatch]]) -> tuple[list[torch.Tensor], torch.Tensor]:
        g.zero_grad()
        given = Graphs(torch.device("cpu")) if graphs and len(rounds) == 1 else None
        p = torch.stack([reinforce(g, some, keys, weights, given) for some in rounds]).mean(0)
        return [parameter.grad.clone() for parameter in g.parameters()], p

    together = gradients([whole])
    alone = gradients([[batch] for batch in whole])
    for actual, expected in zip([*together[0], together[1]], [*alone[0], alone[1]], strict=True):
        assert_same_numbers(actual, expected)
    assert all(x.isfinite().all() and x.abs().max() > 0 for x in together[0])


def test_chunks_respect_their_size_limit_and_graphs_get_few_shapes(monkeypatch) -> None:
    g = tiny_generator(3, layer_offsets=True)
    shapes: list[tuple[int, int]] = []
    g.register_forward_pre_hook(lambda _, args: shapes.append(tuple(args[0].shape)))

    def run(lengths: list[int], rows: int, limits: tuple[int, int], graphs: Any = None) -> list[tuple[int, int]]:
        monkeypatch.setattr(module, "_OTHER_CHUNK_LIMITS", limits)
        shapes.clear()
        ids = [torch.ones(rows, length, dtype=torch.long) for length in lengths]
        keys = dict.fromkeys(range(len(ids)), torch.zeros(3, 1, dtype=torch.int32))
        cache = [CachedBatch(at, 0, x, x) for at, x in enumerate(ids)]
        reinforce(g, cache, keys, dict.fromkeys(keys, [1.0] * 3), graphs)
        return list(shapes)

    assert run([5, 7, 6, 3], 4, (40, 10**6)) == [(5, 7), (6, 6), (5, 5)]  # the longest first, rows · length <= 40
    assert run([5, 7, 6, 3], 4, (10**6, 500)) == [(3, 7), (3, 7), (4, 6), (6, 5)]  # 3 · rows · length² <= 500
    assert run([7], 3, (1, 1)) == [(1, 7)] * 3
    graphs = Graphs(torch.device("cpu"))
    first = run([20, 30, 25, 20, 9], 40, (4096, 10**6), graphs)
    assert first == [(128, 32), (80, 32)]
    assert run([9, 31, 25, 20, 17], 39, (4096, 10**6), graphs) == first


@pytest.mark.parametrize("at_once", [1 << 20, 100])
def test_actions_drawn_for_all_layers_match_those_drawn_per_layer(at_once: int, monkeypatch) -> None:
    monkeypatch.setattr(module, "_CPU_DRAWS", at_once)
    device = torch.device("cpu")
    p = torch.rand(3, 4, 7, 7, generator=torch.Generator().manual_seed(3))
    batch = MicroBatch(Step(None, None, Progress(step=6), seed=9), first_position=8, size=2)  # type: ignore[arg-type]

    def draws(batch: MicroBatch) -> torch.Tensor:
        return torch.stack([batch.uniform(layer, (4, 7, 7), device, "x") for layer in range(3)])

    keys, places = batch.keys(range(3), "x", device), batch.positions(4, device)
    assert torch.equal(actions(p, keys, places), draws(batch) < p)
    # a row with keys and a place of its own draws what it drew in its own step
    other = MicroBatch(Step(None, None, Progress(step=7), seed=9), first_position=2, size=4)  # type: ignore[arg-type]
    keys = torch.cat([keys.expand(3, 3), other.keys(range(3), "x", device)], 1)
    places = torch.cat([places[:3], other.positions(4, device)[3:]])
    assert torch.equal(actions(p, keys, places), torch.cat([draws(batch)[:, :3], draws(other)[:, 3:]], 1) < p)


class Planted(AttendOut):
    """The reward is minus the share of kept positions in one layer, so only dropping in that layer helps."""

    layer = 1

    def on_batch(self, batch: Any) -> None:
        super().on_batch(batch)
        self.batch = batch

    def _rewards(self, step: Any) -> Rewards:
        ids, mask = self._round[-1].ids, self._round[-1].mask
        with torch.no_grad():
            drop = self._actions(self.generator(ids, mask), self.batch)[self.layer]
        valid = pairs(mask)
        reward = -((~drop) & valid).sum() / valid.sum()
        return Rewards(reward.view(1), reward, reward)


def run_planted(game: type[AttendOut] = Planted, rounds: int = 500, **fields: Any) -> list[list[float]]:
    model = zoo.make_model("albert", dropout=False).train()  # three layers
    method = game(T=1, init_drop=0.3, select="better", **fields)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    engine = Engine(model, [method], loop=Loop(optimizer=optimizer))
    batch = zoo.make_batch("albert", size=8)
    for step in range(rounds):
        engine.begin_step(Progress(step=step, total_steps=rounds))
        with engine.micro_batch(batch) as inputs:
            model(**inputs).loss.backward()
        engine.before_optimizer()
        optimizer.step()
        optimizer.zero_grad()
        engine.after_optimizer()
    engine.close()
    return [entry["drop_probability"] for entry in method.history]


def test_generator_learns_which_layer_to_drop() -> None:
    curve = run_planted()
    first = next(i for i, p in enumerate(curve) if p[1] > 0.9)
    assert first < 500
    late = torch.tensor(curve[-50:]).mean(0)
    assert late[1] > 0.9
    assert late[1] - max(late[0], late[2]) > 0.3


class Shares(AttendOut):
    """The reward is the share of positions that are dropped in layer 1 minus that in layer 2, and much noise."""

    def plan(self, batch: Any) -> Any:
        plan = super().plan(batch)
        self.shares = [(~plan.keep[site]).float().mean() for site in (1, 2)]
        return plan

    def _rewards(self, step: Any) -> Rewards:
        noise = 0.1 * torch.randn((), generator=step.shared_generator("noise"))
        reward = self.shares[0] - self.shares[1] + noise
        return Rewards(reward.view(1), reward, reward)


def test_exploring_finds_in_few_rounds_which_layers_to_drop() -> None:
    """The noise is several times what the share of dropped positions varies by without shifts, in 648 positions."""

    def learned(**fields: Any) -> list[float]:
        return run_planted(Shares, rounds=150, offset_lr=0.05, **fields)[-1]

    explored, without = learned(explore=1.0), learned()
    assert explored[1] - explored[2] > 0.5
    assert explored[1] - explored[2] > without[1] - without[2] + 0.3


@pytest.mark.slow
def test_without_layer_offsets_layers_are_hardly_distinguished() -> None:
    """The reason for `layer_offsets`: without them the other layers are dropped too."""
    late = torch.tensor(run_planted(layer_offsets=False, generator_lr=3e-3)[-50:]).mean(0)
    assert late[1] > 0.6
    assert late[1] - late[2] < 0.3


def trained(tmp_path, method: AttendOut, steps: int = 12, kind: str = "bert", **options: Any) -> RegularizedTrainer:
    arguments = {"max_steps": steps, "logging_strategy": "steps", "logging_steps": 1, **options}
    trainer = RegularizedTrainer(
        model=zoo.make_model(kind),
        args=data.make_arguments(tmp_path, **arguments),
        train_dataset=data.make_examples(kind, 48),
        eval_dataset=data.make_examples(kind, 16, seed=8),
        data_collator=data.pad,
        regularizers=[method],
    )
    trainer.train()
    return trainer


class Watched(AttendOut):
    """Records before and after each round whether the two networks and their optimizer states are equal."""

    def on_step_end(self, step: Any) -> None:
        self.notes = getattr(self, "notes", [])
        self.notes.append(("before", self.equal(step)))
        super().on_step_end(step)
        if self._steps_in_round == 0:
            self.notes.append(("after", self.equal(step)))

    def equal(self, step: Any) -> bool:
        networks = data.same_bits(data.weights_of(step.model), data.weights_of(self.defender))
        mine, theirs = (o.state_dict()["state"] for o in (step.loop.optimizer, self._twin.optimizer))
        return networks and all(
            torch.equal(torch.as_tensor(value), torch.as_tensor(theirs[number][name]))
            for number, state in mine.items()
            for name, value in state.items()
        )


@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2}, {"bf16": True}])
def test_attacker_without_dropped_positions_equals_the_defender_exactly(tmp_path, options: dict) -> None:
    method = Watched(T=50, init_drop=0.0)
    trained(tmp_path, method, **options)
    assert [equal for _, equal in method.notes] == [True] * 12


BESIDE = ["addrop", "confidence_penalty", "cutoff", "hiddencut", "headmask", "layerdrop", "scal", "structure_mask"]


@pytest.mark.parametrize("other", [*BESIDE, "lora_dropout"])
def test_defender_trains_with_the_same_other_methods_and_draws(tmp_path, other: str) -> None:
    """With masks it is the model that the other method trains alone; without masks the two networks are equal."""
    kind, setting = bert_for(other), SETTINGS[other]
    alone, _ = fine_tune(tmp_path, kind, [make_method(other, setting.usual)])
    masked = AttendOut(T=50, init_drop=0.5, reward_on="cached")
    for methods in ([masked, make_method(other, setting.usual)], [make_method(other, setting.usual), masked]):
        model, _ = fine_tune(tmp_path, kind, methods)
        assert same_parameters(masked.defender, alone)
        assert not same_parameters(model, alone)
    without = Watched(T=3, init_drop=0, reward_on="cached")
    fine_tune(tmp_path, kind, [without, make_method(other, setting.usual)])
    assert [entry["reward"] for entry in without.history] == [0, 0]
    assert all(equal for _, equal in without.notes)


def test_defender_in_a_loop_of_ones_own_gets_penalties_too() -> None:
    method = Decided(T=9, init_drop=0.0)
    model = one_round([method, Cutoff(ratio=0.4, weight=3.0)], steps=2)
    assert data.same_bits(data.weights_of(model), data.weights_of(method.defender))


def test_method_with_parameters_of_its_own_is_refused() -> None:
    with pytest.raises(ValueError, match=r"AttendOut trains networks beside the model, and the parameters that"):
        Engine(zoo.make_model("bert"), [AttendOut(), ConcreteDropout()])
    with pytest.raises(ValueError, match=r"DENI trains networks beside the model, and the parameters that"):
        Engine(zoo.make_model("bert"), [ConcreteDropout(), DENI()])


def test_without_masks_and_common_dropout_the_networks_differ_and_the_attacker_trains_as_plain_fine_tuning(
    tmp_path,
) -> None:
    method = Watched(T=4, init_drop=0.0, common_dropout=False, select="attacker", samples=8)
    model = trained(tmp_path, method).model
    assert [equal for when, equal in method.notes if when == "after"] == [True] * 3
    assert not any(equal for when, equal in method.notes if when == "before")
    assert all(entry["attacker"] != entry["defender"] for entry in method.history)
    plain = trained(tmp_path, Watched(T=50, init_drop=0.0)).model
    assert data.same_bits(data.weights_of(model), data.weights_of(plain))


@pytest.mark.parametrize("select", ["sample", "better", "attacker"])
def test_attacker_and_defender_and_optimizer_states_are_equal_after_a_round(tmp_path, select: str) -> None:
    method = Watched(T=4, init_drop=0.5, select=select, samples=8)
    trained(tmp_path, method)
    assert [equal for when, equal in method.notes if when == "after"] == [True] * 3
    assert not any(equal for when, equal in method.notes if when == "before")
    assert len(method.history) == 3


@pytest.mark.slow
@pytest.mark.parametrize("reward_on", ["dev", "held_out", "noisy", "cached"])
@pytest.mark.parametrize("reward", ["loss", "metric", "win"])
def test_every_combination_of_reward_and_reward_on_trains(tmp_path, reward_on: str, reward: str) -> None:
    method = AttendOut(T=3, init_drop=0.5, reward_on=reward_on, reward=reward, samples=8)
    trainer = trained(tmp_path, method, steps=6)
    assert len(method.history) == 2
    for entry in method.history:
        assert entry["winner"] in ("attacker", "defender")
        assert all(0 < p < 1 for p in entry["drop_probability"])
    if reward == "win":
        assert abs(method.history[0]["reward"]) <= 1
    assert len(trainer.train_dataset) == (43 if reward_on == "held_out" else 48)
    logged = [entry for entry in trainer.state.log_history if "attendout/reward" in entry]
    assert len(logged) == 2
    assert {"attendout/baseline", "attendout/attacker_won", "attendout/drop_probability_layer_1"} <= logged[0].keys()


@pytest.mark.usefixtures("float64")
def test_reward_is_the_difference_of_scores_on_the_same_examples(tmp_path) -> None:
    seen = {}

    class Spy(AttendOut):
        def _rewards(self, step: Any) -> Any:
            batch = self._reward_batches(step)[0]
            for name, network in (("attacker", step.model), ("defender", self.defender)):
                twin = copy.deepcopy(network).eval()
                logits = twin(**batch).logits
                seen[name] = -nn.functional.cross_entropy(logits, batch["labels"], reduction="none")
            actual = super()._rewards(step)
            seen["actual"] = actual[0]
            assert step.model.training
            return actual

    trained(tmp_path, Spy(T=5, init_drop=0.5, samples=8), steps=5)
    assert_same_numbers(seen["actual"], seen["attacker"] - seen["defender"])
    assert len(seen["actual"]) == 8


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "kind", ["token", "choice", "masked", "span", "multilabel", "regression", "gpt2", "t5", "deberta_v2"]
)
def test_example_scores_of_every_head_equal_minus_the_loss_of_each_example(kind: str) -> None:
    from attendrop.model.objective import example_scores

    model, batch = zoo.make_model(kind, dropout=False).eval(), zoo.make_batch(kind)
    with torch.no_grad():
        outputs = model(**batch)
        scores, right = example_scores(model, batch, outputs)
        assert scores.shape == right.shape == (3,)
        for b in range(3):  # an example by itself scores the same, and its score is minus its loss
            alone = {name: value[b : b + 1] for name, value in batch.items()}
            one = model(**alone)
            assert abs(-one.loss.item() - scores[b].item()) < 1e-9


@pytest.mark.parametrize("kind", ["token", "choice", "masked", "span", "multilabel", "regression", "vit"])
def test_attendout_trains_every_head(tmp_path, kind: str) -> None:
    batch = zoo.make_batch(kind, size=12, seed=4)
    examples = [{name: value[i] for name, value in batch.items()} for i in range(12)]
    method = AttendOut(T=3, init_drop=0.5, samples=6)
    trainer = RegularizedTrainer(
        model=zoo.make_model(kind), args=data.make_arguments(tmp_path, max_steps=6),
        train_dataset=examples, eval_dataset=examples[:6], regularizers=[method],
    )  # fmt: skip
    trainer.train()
    assert len(method.history) == 2
    assert all(torch.tensor(entry["reward"]).isfinite() for entry in method.history)
    assert all(parameter.isfinite().all() for parameter in trainer.model.parameters())


def test_long_sequences_train(tmp_path) -> None:
    model = zoo.make_model("modernbert")  # positions without a table
    batch = zoo.make_batch("modernbert", size=2, length=512)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    method = AttendOut(T=1, init_drop=0.3, reward_on="cached")
    engine = Engine(model.train(), [method], loop=Loop(optimizer=optimizer))
    with engine.micro_batch(batch) as inputs:
        model(**inputs).loss.backward()
    engine.before_optimizer()
    optimizer.step()
    engine.after_optimizer()
    assert len(method.history) == 1
    engine.close()


def test_trainer_keeps_the_better_of_attacker_and_defender(tmp_path) -> None:
    class Spoiled(AttendOut):
        def on_step_end(self, step: Any) -> None:
            super().on_step_end(step)
            if step.progress.step == 5:
                with torch.no_grad():
                    for p in step.model.parameters():
                        p.mul_(3.0)

    method = Spoiled(T=50, init_drop=0.2)
    trainer = trained(tmp_path, method, steps=6)
    defender = method.defender
    assert trainer.evaluate()["eval_loss"] < 5
    spoiled = data.weights_of(defender)  # the two were exchanged
    assert not data.same_bits(data.weights_of(trainer.model), spoiled)


def test_active_limits_the_masked_layers_of_a_round(tmp_path) -> None:
    class Seen(AttendOut):
        def plan(self, batch: Any) -> Any:
            plan = super().plan(batch)
            self.seen = [*getattr(self, "seen", []), tuple(sorted(plan.keep))]
            return plan

    method = Seen(T=4, init_drop=0.5, active=0.5, samples=8)
    trained(tmp_path, method, steps=16)
    assert all(len(sites) == 1 for sites in method.seen)
    assert all(len(set(method.seen[i : i + 4])) == 1 for i in range(0, 16, 4))


def loss_on_dev(network: nn.Module) -> float:
    with torch.no_grad():
        return copy.deepcopy(network).eval()(**data.pad(data.make_examples("bert", 16, seed=8))).loss.item()


@pytest.mark.parametrize("reward_on", ["dev", "held_out", "noisy"])
def test_dataset_columns_unknown_to_the_model_are_ignored(tmp_path, reward_on: str) -> None:
    datasets = pytest.importorskip("datasets")

    def with_text(count: int, seed: int) -> Any:
        rows = [{name: value.tolist() for name, value in e.items()} for e in data.make_examples("bert", count, seed)]
        return datasets.Dataset.from_list([{**row, "sentence": "text"} for row in rows]).with_format("torch")

    method = AttendOut(T=2, samples=4, reward_on=reward_on)
    RegularizedTrainer(
        model=zoo.make_model("bert"), args=data.make_arguments(tmp_path, max_steps=4), train_dataset=with_text(24, 3),
        eval_dataset=with_text(8, 8), data_collator=data.pad, regularizers=[method],
    ).train()  # fmt: skip
    assert len(method.history) == 2


@pytest.mark.usefixtures("float64")
def test_evaluation_logs_both_networks_and_the_run_is_saved_and_plotted(tmp_path) -> None:
    method = AttendOut(T=4, init_drop=0.4, samples=8)
    trainer = trained(tmp_path, method, steps=23, eval_strategy="epoch")  # at the end the two are not equal
    keys = {key for entry in trainer.state.log_history for key in entry}
    assert {"eval_loss", "eval_defender_loss"} <= keys
    last = {
        name: [entry[name] for entry in trainer.state.log_history if name in entry][-1]
        for name in ("eval_loss", "eval_defender_loss")
    }
    networks = [trainer.model, method.defender]
    if last["eval_defender_loss"] < last["eval_loss"]:
        networks.reverse()  # after the last evaluation the better one became the model
    assert list(last.values()) == pytest.approx([loss_on_dev(network) for network in networks], rel=1e-9)
    assert abs(last["eval_loss"] - last["eval_defender_loss"]) > 1e-6
    trainer.save_model(tmp_path / "final")
    run = tmp_path / "final" / "attendout_run.json"
    assert run.is_file()
    for path, source in ((tmp_path / "a.png", run), (tmp_path / "b.png", method)):
        plot_run(source, path, trainer.state.log_history)
        assert path.stat().st_size > 10_000
    assert ScheduledDropout(run=tmp_path / "final").curves == fit_schedule(run).curves
    own = method.generator.state_dict()
    for fields in ({"run": tmp_path / "final"}, {"run": tmp_path / "final" / GENERATOR_FILE}):
        going_on = AttendOut(reward_on="cached", **fields)
        assert make_method("attendout", {k: v for k, v in going_on.to_dict().items() if k != "method"}) == going_on
        one_round([going_on])
        assert all(torch.equal(value, own[name]) for name, value in going_on.generator.state_dict().items())
    loaded = load_generator(tmp_path / "final", zoo.make_model("bert"))
    assert loaded.settings == method.generator.settings
    batch = data.pad(data.make_examples("bert", 8))
    assert torch.equal(loaded.drop_probabilities(batch), method.generator.drop_probabilities(batch))
    schedule = fit_schedule(run, knots=3)
    assert len(schedule.curves) == 2
    assert all(isinstance(curve, Schedule) for curve in schedule.curves)


@pytest.mark.usefixtures("float64")
def test_prune_mode_gives_a_score_for_each_layer(tmp_path) -> None:
    method = AttendOut(T=4, mode="prune", init_drop=0.5)
    assert (method.reward_on, method.select) == ("cached", "attacker")
    trained(tmp_path, method, steps=8)
    batch = data.pad(data.make_examples("bert", 8))
    scores = method.generator.drop_probabilities(batch)
    assert scores.shape == (2,)
    ids, mask = ids_and_mask(batch)
    p = method.generator(ids, mask).sigmoid()
    valid = pairs(mask)
    # The mean over examples: one with many positions counts as much as one with few.
    literal = [
        sum(x[v].mean().item() for x, v in zip(p[layer], valid, strict=True)) / len(p[layer]) for layer in range(2)
    ]
    assert scores.tolist() != pytest.approx([p[layer][valid].mean().item() for layer in range(2)], rel=1e-9)
    assert scores.tolist() == pytest.approx(literal, rel=1e-9)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"T": 0}, r"AttendOut\.T is 0; it must be a whole number of at least 1"),
        ({"T": 1.5}, r"AttendOut\.T is 1\.5"),
        ({"reward_on": "test"}, r"AttendOut\.reward_on is 'test'.*'dev', 'held_out'"),
        ({"reward": "f1"}, r"AttendOut\.reward is 'f1'"),
        ({"select": "both"}, r"AttendOut\.select is 'both'"),
        ({"mode": "x"}, r"AttendOut\.mode is 'x'"),
        ({"init_drop": 1.0}, r"AttendOut\.init_drop is 1"),
        ({"init_drop": -1}, r"AttendOut\.init_drop is -1; it must be a number from 0 to below 1"),
        ({"temperature": 0}, r"AttendOut\.temperature is 0"),
        ({"monte_carlo": 0}, r"AttendOut\.monte_carlo is 0"),
    ],
)
def test_fields_out_of_range_are_refused(fields: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AttendOut(**fields)


def test_a_generator_of_another_shape_or_a_damaged_one_is_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"AttendOut\.run is '.*', which has no attendout_generator\.safetensors"):
        Engine(zoo.make_model("bert"), [AttendOut(run=tmp_path)])
    save_weights(Generator.from_model(zoo.make_model("bert"), 2), tmp_path)
    Engine(zoo.make_model("bert"), [AttendOut(run=tmp_path, layer_offsets=False)]).close()
    with pytest.raises(ValueError, match=r"whose generator has inner\.0\.bias of shape None, and that of this model"):
        Engine(zoo.make_model("bert"), [AttendOut(run=tmp_path, layer_offsets=False, feed_forward=4)])
    file = tmp_path / GENERATOR_FILE
    file.write_bytes(file.read_bytes()[:99])
    with pytest.raises(ValueError, match=r"whose attendout_generator\.safetensors is damaged"):
        Engine(zoo.make_model("bert"), [AttendOut(run=tmp_path, layer_offsets=False)])


def test_reward_on_dev_without_an_eval_dataset_is_refused(tmp_path) -> None:
    trainer = RegularizedTrainer(
        model=zoo.make_model("bert"), args=data.make_arguments(tmp_path), train_dataset=data.make_examples("bert", 8),
        data_collator=data.pad, regularizers=[AttendOut()],
    )  # fmt: skip
    with pytest.raises(
        ValueError, match="eval_dataset is NoneType, and AttendOut draws examples from it .reward_on='dev'."
    ):
        trainer.train()


def test_one_method_object_can_train_several_models(tmp_path) -> None:
    method = AttendOut(T=3, init_drop=0.5, samples=8)
    first = data.weights_of(trained(tmp_path, method, steps=6).model)
    second = data.weights_of(trained(tmp_path, method, steps=6).model)
    assert data.same_bits(first, second)
    assert len(method.history) == 2


def test_models_without_token_ids_or_heads_are_refused() -> None:
    with pytest.raises(ValueError, match=r"AttendOut\.reward_on is 'noisy', which replaces tokens, and ViT"):
        Engine(zoo.make_model("vit"), [AttendOut(reward_on="noisy")])
    with pytest.raises(ValueError, match="takes no token ids and no patches"):
        Engine(Wav2Vec2ForSequenceClassification(wav2vec2_config()), [AttendOut()])
    with pytest.raises(ValueError, match=r"AttendOut\.heads is 5; it must divide the width of the generator, 32"):
        Engine(zoo.make_model("bert"), [AttendOut(heads=5)])
    with pytest.raises(ValueError, match="BertModel has no head"):
        Engine(zoo.make_model("bert").bert, [AttendOut()])


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "fixed shapes"])
def test_causal_models_learn_from_positions_at_or_below_the_diagonal_only(graphs: bool) -> None:
    """The likelihood, its divisor n(n+1)/2 and the mean P(drop), against a loop over these positions."""
    check_the_dropout_step("gpt2", Graphs(torch.device("cpu")) if graphs else None, credit="paired")


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(("kind", "causal"), [("gpt2", True), ("llama", True), ("bert", False), ("bart", False)])
def test_generator_is_causal_where_the_masked_attention_is(kind: str, causal: bool) -> None:
    method = AttendOut(T=1, init_drop=0.3, reward_on="cached")
    batch = zoo.make_batch(kind)
    model = zoo.make_model(kind).train()
    with Engine(model, [method], loop=Loop(torch.optim.SGD(model.parameters(), lr=0.0))) as engine:
        engine.begin_micro_batch(batch)
        assert method.generator.causal is causal
        p = method.generator(batch["input_ids"], batch["attention_mask"]).sigmoid()
        expected = [0.0, 0.0]
        for b, n in enumerate(lengths := batch["attention_mask"].sum(1).tolist()):
            valid = [(i, j) for i in range(n) for j in range(n) if j <= i or not causal]
            for layer in range(2):
                expected[layer] += sum(p[layer, b, i, j].item() for i, j in valid) / len(valid) / len(lengths)
        assert method.generator.drop_probabilities(batch).tolist() == pytest.approx(expected, rel=1e-9)


def test_unanimous_rewards_decide() -> None:
    for count in (2, 64):
        assert attacker_probability(torch.full((count,), 0.5)) == 1
        assert attacker_probability(torch.full((count,), -0.5)) == 0
        assert attacker_probability(torch.zeros(count)) == 0.5
    nearly = torch.cat([torch.full((63,), 0.5), torch.tensor([0.4])])
    assert attacker_probability(nearly) == pytest.approx(1)
    assert attacker_probability(-nearly) == pytest.approx(0)
    # rewards that come closer and closer to each other
    spread = torch.linspace(-1, 1, 8)
    closer = [attacker_probability(0.1 + spread * 2.0**-k) for k in range(12)]
    assert closer == sorted(closer)
    assert closer[0] < 0.7
    assert closer[-1] == attacker_probability(torch.full((8,), 0.1)) == 1


def test_a_single_reward_decides_by_its_sign() -> None:
    for size in (1e-6, 0.5, 100.0):
        assert attacker_probability(torch.tensor([size])) == pytest.approx(0.8413, abs=1e-4)
        assert attacker_probability(torch.tensor([-size])) == pytest.approx(0.1587, abs=1e-4)
    assert attacker_probability(torch.zeros(1)) == 0.5


@pytest.mark.usefixtures("float64")
def test_mixed_evidence_gives_the_normal_cdf() -> None:
    rewards = torch.tensor([1.0, -0.5, 0.25, 0.5])
    mean, error = 0.3125, (sum((r - 0.3125) ** 2 for r in rewards.tolist()) / 3 / 4) ** 0.5
    expected = torch.distributions.Normal(0.0, 1.0).cdf(torch.tensor(mean / error)).item()
    assert attacker_probability(rewards) == pytest.approx(expected, rel=1e-9)
    assert attacker_probability(-rewards) == pytest.approx(1 - expected, rel=1e-9)


class Decided(AttendOut):
    """Rewards that are given, and copies of both networks from before the choice."""

    evidence: torch.Tensor

    def _rewards(self, step: Any) -> Rewards:
        self.networks_before = {
            "attacker": data.weights_of(step.model), "defender": data.weights_of(self.defender),
        }  # fmt: skip
        return Rewards(self.evidence, self.evidence.mean(), torch.zeros(()))


def one_round(method: Any, steps: int = 1, sizes: tuple[int, ...] = (4,), before: Any = None, **loop: Any) -> Any:
    """Trains a tiny BERT for `steps` steps, one micro-batch for each of `sizes`; returns the model."""
    model = zoo.make_model("bert", dropout=False).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sizes = sizes * (steps // len(sizes)) if len(sizes) < steps else sizes
    with Engine(model, method, loop=Loop(optimizer, **loop), seed=5, batch_size=4) as engine:
        for step in range(steps):
            per_step = len(sizes) // steps
            for micro, size in enumerate(sizes[step * per_step : (step + 1) * per_step]):
                batch = zoo.make_batch("bert", size=size, seed=10 * step + micro)
                with engine.micro_batch(batch) as inputs:
                    (engine.loss(model(**inputs)) / per_step).backward()
            engine.before_optimizer()
            optimizer.step()
            optimizer.zero_grad()
            if before is not None and step == steps - 1:
                before(model, method)
            engine.after_optimizer()
    return model


@pytest.mark.parametrize("select", ["sample", "better"])
@pytest.mark.parametrize(("sign", "winner"), [(1, "attacker"), (-1, "defender")])
def test_network_with_the_higher_score_continues(select: str, sign: int, winner: str) -> None:
    method = Decided(T=1, init_drop=0.5, reward_on="noisy", select=select)
    method.evidence = sign * torch.linspace(0.9, 1.1, 16)
    model = one_round(method)
    assert method.history[0]["winner"] == winner
    attacker, defender = (method.networks_before[name] for name in ("attacker", "defender"))
    assert not data.same_bits(attacker, defender)
    for network in (model, method.defender):
        assert data.same_bits(data.weights_of(network), method.networks_before[winner])


@pytest.mark.parametrize("select", ["sample", "better"])
@pytest.mark.parametrize("spoiled", ["attacker", "defender"])
def test_corrupted_network_loses(select: str, spoiled: str) -> None:
    """The whole way from the scores of the networks to the choice."""

    def spoil(model: nn.Module, method: AttendOut) -> None:
        with torch.no_grad():
            for p in (model if spoiled == "attacker" else method.defender).classifier.parameters():
                p.mul_(-20.0)

    method = AttendOut(T=3, init_drop=0.3, reward_on="cached", select=select)
    one_round(method, 3, (4, 4, 4), spoil)
    entry = method.history[0]
    assert entry["winner"] == {"attacker": "defender", "defender": "attacker"}[spoiled]
    assert (entry["reward"] > 0) == (spoiled == "defender")
    assert entry["reward"] == pytest.approx(entry["attacker"] - entry["defender"], abs=1e-4)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_positive_advantage_makes_the_actions_taken_more_likely(sign: int) -> None:
    class Remembered(Decided):
        def plan(self, batch: Any) -> Any:
            plan = super().plan(batch)
            self.taken = ids_and_mask(batch.examples), torch.stack([~keep.squeeze(1) for keep in plan.keep.values()])
            self.likelihood_before = self.likelihood()
            return plan

        @torch.no_grad()
        def likelihood(self) -> float:
            (ids, mask), drop = self.taken
            p = self.generator(ids, mask).sigmoid()
            return float((torch.where(drop, p, 1 - p).log() * pairs(mask)).sum())

    method = Remembered(T=1, init_drop=0.4, reward_on="noisy", select="attacker", generator_lr=1e-3)
    method.evidence = sign * torch.ones(4)
    one_round(method)
    change = method.likelihood() - method.likelihood_before
    assert change * sign > 0.01


def test_paired_credit_gives_each_step_the_rewards_of_its_own_examples() -> None:
    steps = torch.tensor([0] * 4 + [1] * 2 + [2] * 4 + [3] * 4)
    rewards = Rewards(steps.float(), torch.zeros(()), torch.zeros(()), steps)
    assert rewards_of_steps(rewards, 4, paired=True) == [0, 1, 2, 3]
    shuffled = torch.randperm(14, generator=torch.Generator().manual_seed(0))
    mixed = Rewards(rewards.values[shuffled], torch.zeros(()), torch.zeros(()), steps[shuffled])
    assert rewards_of_steps(mixed, 4, paired=True) == [0, 1, 2, 3]
    assert rewards_of_steps(rewards, 4, paired=False) == [pytest.approx(22 / 14)] * 4


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("sizes", [(4, 2, 4, 4), (4, 2, 3, 4, 4, 4, 1, 4)], ids=["uneven", "two micro-batches a step"])
def test_paired_credit_of_cached_rewards_matches_the_batches(
    sizes: tuple[int, ...], processes: int, monkeypatch
) -> None:
    """Each example is rewarded with the number of its step, which is therefore the reward of the step."""
    from attendrop.methods.attendout import method as method_module
    from attendrop.methods.attendout import rewards as rewards_module

    class Credited(AttendOut):
        def _rewards(self, step: Any) -> Rewards:
            return super()._rewards(replace(step, loop=Loop(world=processes)))

        def _learn(self, advantages: list[float], step: Any) -> torch.Tensor:
            self.advantages = advantages
            return super()._learn(advantages, step)

    per_step = len(sizes) // 4
    seeds = [10 * step + micro for step in range(4) for micro in range(per_step)]
    step_of = {int(zoo.make_batch("bert", size=4, seed=seed)["input_ids"][0, 0]): seed // 10 for seed in seeds}
    assert len(step_of) == len(seeds)

    def scores_of(networks: Any, batch: Any, metric: bool, graphs: Any) -> torch.Tensor:
        reward = float(step_of[int(batch["input_ids"][0, 0])])
        return torch.tensor([[reward], [0.0]]).expand(2, len(batch["input_ids"]))

    def gather_objects(value: Any, world: int) -> list[Any]:
        assert world == processes
        return [value, [batch[:, 1:] for batch in value]][:world]  # the other process has smaller batches

    monkeypatch.setattr(method_module, "scores_of", scores_of)
    monkeypatch.setattr(rewards_module, "gather_objects", gather_objects)
    method = Credited(T=4, init_drop=0.3, reward_on="cached", credit="paired", normalize=False)
    one_round(method, 4, sizes)
    assert method.advantages == [0, 1, 2, 3]  # the baseline of the first round is 0
