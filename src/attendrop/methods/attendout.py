"""AttendOut: a generator network learns which attention positions to drop, rewarded when the attacker beats a defender.

    d ~ Bernoulli(P), P = sigmoid(S_i)        masks of the attacker, for each example and layer, shared by the heads
    attacker and defender take the same step on the same batch, the attacker under the mask
    every T steps    r_t = score(attacker) − score(defender) on fresh examples
                     ∇ = (1/m) Σ_k Σ_t (r_t − b) ∇ 1/(layers · n²) Σ log P(d_t)       (Eq. 5)
                     one of the two overwrites the other

Wu, Zhao and Zhang, "Not All Attention Is All You Need", arXiv 2104.04692: v2 drops, v1 prunes (`mode="prune"`).

Differs from the paper in: what it leaves open (see docs/methods/attendout.md), and in that the two networks draw the
same ordinary dropout, all T steps share the mean reward (`credit="paired"` is the paper's), and advantages are divided
by their running size.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..generator import Generator, ids_and_mask, pairs
from ..modes import evaluating
from ..objective import example_scores, head_of
from ..plan import Plan
from ..random import key_of, preserved
from ..regularizer import Regularizer, Step
from ..seams import Seams
from ..sites import Site, unwrapped
from ..twin import Twin, average_gradients, load_optimizer_tensors, optimizer_tensors

REWARD_ON = ("dev", "held_out", "noisy", "cached")
REWARDS = ("loss", "metric", "win")
SELECTS = ("sample", "better", "attacker")
CREDITS = ("mean", "paired")
MODES = ("dropout", "prune")


def log_likelihood(logits: Tensor, drop: Tensor, valid: Tensor) -> Tensor:
    """1/(layers · n²) Σ log P(d) over valid positions, mean over examples. All [layers, B, L, L] or broadcastable."""
    terms = -functional.binary_cross_entropy_with_logits(logits, drop.to(logits.dtype), reduction="none") * valid
    n_squared = valid.expand_as(terms).flatten(2).sum(-1).clamp(min=1)
    return (terms.flatten(2).sum(-1) / n_squared).mean()


def sample(logits: Tensor, draws: Tensor) -> Tensor:
    """Hard Gumbel samples of *drop*: logits + logistic noise > 0, which is the same as draws < sigmoid(logits)."""
    return draws < logits.sigmoid()


def as_it_was(step: Step, at: int, first: int, rows: int) -> Step:
    """The step number `at`, when it had `rows` rows from place `first` on: for drawing its actions again."""
    return replace(step, progress=replace(step.progress, step=at), first_position=first, batch_size=rows)


@dataclass
class Round:
    """The micro-batches since the last update: ids and masks, and the counters that draw their actions again."""

    ids: list[Tensor] = field(default_factory=list)
    masks: list[Tensor] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)  # optimizer step, position of the first row
    labelled: list[dict[str, Tensor]] = field(default_factory=list)  # whole batches, only for reward_on="cached"


@dataclass
class AttendOut(Regularizer):
    """Learned attention dropout.

    T              steps between two updates of the generator
    reward_on      "dev", "held_out" (a share of the training set, set aside), "noisy" or "cached" training examples
    reward         "loss" difference, "metric" difference, or "win" (+1, 0, −1)
    samples        examples that a reward is measured on; 0: T of them, as in the paper
    select         which network goes on: "sample" (the better one with higher probability), "better", "attacker"
    generator_lr   learning rate of the generator
    offset_lr      learning rate of its layer offsets
    init_drop      P(drop) at the start
    monte_carlo    rounds of T steps for each update of the generator
    temperature    divides the generator's scores
    layer_offsets  a learned offset for each layer, so that the generator can tell layers apart
    active         share of the layers that are masked in a round: with fewer, the reward says more about each
    credit         "mean": all steps of a round share the mean reward; "paired": one example's reward for each step
    normalize      divide advantages by their running size
    decay          of the moving averages of reward and advantage
    hold_out       share set aside with reward_on="held_out"
    noise          share of tokens replaced with reward_on="noisy"
    mode           "dropout", or "prune": rewards on the cached batches, the attacker always goes on
    """

    name: ClassVar[str] = "attendout"
    local_state: ClassVar[tuple[str, ...]] = ("round.", "labelled.", "gradient.")

    T: int = 15
    reward_on: str = "dev"
    reward: str = "loss"
    samples: int = 64
    select: str = "sample"
    generator_lr: float = 5e-5
    offset_lr: float = 0.02
    init_drop: float = 0.1
    monte_carlo: int = 1
    temperature: float = 1.0
    layer_offsets: bool = True
    active: float = 1.0
    credit: str = "mean"
    normalize: bool = True
    decay: float = 0.9
    hold_out: float = 0.1
    noise: float = 0.15
    mode: str = "dropout"

    def __post_init__(self) -> None:
        if self.mode == "prune":
            self.reward_on, self.select = "cached", "attacker"
        for name, allowed in (
            ("reward_on", REWARD_ON), ("reward", REWARDS), ("select", SELECTS), ("credit", CREDITS), ("mode", MODES),
        ):  # fmt: skip
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"AttendOut.{name} is {getattr(self, name)!r}; it must be one of {', '.join(map(repr, allowed))}."
                )
        for name, low in (("T", 1), ("monte_carlo", 1), ("samples", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < low:
                raise ValueError(f"AttendOut.{name} is {value!r}; it must be a whole number of at least {low}.")
        for name, low_, high in (
            ("init_drop", 0.0, 1.0), ("active", 0.0, 1.0), ("decay", 0.0, 1.0), ("hold_out", 0.0, 1.0),
            ("noise", 0.0, 1.0), ("generator_lr", 0.0, math.inf), ("offset_lr", 0.0, math.inf),
            ("temperature", 0.0, math.inf),
        ):  # fmt: skip
            value = getattr(self, name)
            open_ends = name in ("active", "hold_out", "temperature") and value == low_
            if not isinstance(value, (int, float)) or not low_ <= value <= high or open_ends:
                raise ValueError(f"AttendOut.{name} is {value!r}; it must be from {low_:g} to {high:g}.")
        if self.init_drop == 1:
            raise ValueError("AttendOut.init_drop is 1; it must be below 1, or nothing is left to learn from.")
        self.reset()

    def reset(self) -> None:
        self.generator: Any = None
        self.history: list[dict[str, Any]] = []
        self._optimizer: torch.optim.Optimizer | None = None
        self._twin: Twin | None = None
        self._round = Round()
        self._steps_in_round = self._rounds = 0
        self._baseline: float | None = None
        self._size = 0.0
        self._loaded: tuple[dict[str, Tensor], dict[str, Any]] | None = None

    # ---- what it needs -----------------------------------------------------------------------------------------

    @property
    def held_out(self) -> float:
        return self.hold_out if self.reward_on == "held_out" else 0.0

    @property
    def draws_from(self) -> str | None:
        return {"noisy": "train", "cached": None}.get(self.reward_on, self.reward_on)

    @property
    def defender(self) -> Any:
        return None if self._twin is None else self._twin.network

    def networks(self) -> dict[str, nn.Module]:
        return {} if self._twin is None else {"defender": self._twin.network}

    def check(self, model: Any, seams: Seams, epochs: int | None) -> None:
        head_of(model, {})  # says which heads have scores for each example
        if not hasattr(model, "get_input_embeddings") or not isinstance(model.get_input_embeddings(), nn.Embedding):
            raise ValueError(f"{seams.name} does not take token ids, which AttendOut's generator reads.")

    def _sites(self, seams: Seams) -> list[Site]:
        """The self-attention over the input: the only stack, or the encoder."""
        return [site for site in seams.sites if site.kind == "self" and site.stack == seams.sites[0].stack]

    # ---- the step ----------------------------------------------------------------------------------------------

    def on_step_begin(self, step: Step) -> None:
        if self.generator is None:
            self._start(step)

    def _start(self, step: Step) -> None:
        device = next(step.model.parameters()).device
        with preserved(device):
            torch.manual_seed(key_of(step.seed, 0, 0, self.name))
            generator = Generator.from_model(
                unwrapped(step.model),
                len(self._sites(step.seams)),
                init_drop=max(self.init_drop, 1e-4),
                layer_offsets=self.layer_offsets,
                temperature=self.temperature,
            )
        # in the precision of the model, as the defender is
        self.generator = step.around.prepare(generator.to(device))
        offsets = [p for name, p in self.generator.named_parameters() if name == "offsets"]
        others = [p for name, p in self.generator.named_parameters() if name != "offsets"]
        self._optimizer = torch.optim.Adam(others, lr=self.generator_lr)
        if offsets:
            self._optimizer.add_param_group({"params": offsets, "lr": self.offset_lr})
        self._twin = Twin(step)
        if self._loaded is not None:
            self._take_up(*self._loaded)
            self._loaded = None

    def on_batch(self, batch: Mapping[str, Any], step: Step) -> None:
        assert self._twin is not None
        self._twin.backward(batch, step)
        if self.init_drop > 0:
            ids, mask = ids_and_mask(batch)
            self._round.ids.append(ids.clone())
            self._round.masks.append(mask.clone())
            self._round.places.append((step.progress.step, step.first_position * (len(ids) // step.batch_size)))
        if self.reward_on == "cached":
            self._round.labelled.append({k: v.clone() for k, v in batch.items() if isinstance(v, Tensor)})

    def capture_key(self, step: Step) -> Hashable:
        return None if self.active < 1 else self.init_drop > 0

    def plan(self, batch: Mapping[str, Any], step: Step) -> Plan:
        if self.init_drop == 0:
            return Plan()
        assert self.generator is not None
        with torch.no_grad():
            drop = self._actions(self.generator(*ids_and_mask(batch)), step)
        chosen = self._active(step.seed, step.progress.step)
        sites = self._sites(step.seams)
        return Plan(keep={site.index: ~drop[layer].unsqueeze(1) for layer, site in enumerate(sites) if chosen[layer]})

    def _actions(self, logits: Tensor, step: Step) -> Tensor:
        """[layers, B, L, L]: True = drop. The same whenever they are asked for."""
        return torch.stack(
            [
                sample(scores, step.uniform(layer, scores.shape, scores.device, self.name))
                for layer, scores in enumerate(logits)
            ]
        )

    def _active(self, seed: int, at: int) -> list[bool]:
        """The layers that are masked in the round to which step `at` belongs: the same on all processes."""
        assert self.generator is not None
        layers = self.generator.layers
        if self.active >= 1:
            return [True] * layers
        draws = torch.Generator().manual_seed(key_of(seed, at // self.T, 0, "attendout-active"))
        order = torch.randperm(layers, generator=draws)[: max(1, round(self.active * layers))].tolist()
        return [layer in order for layer in range(layers)]

    def on_gradients(self, step: Step) -> None:
        assert self._twin is not None
        self._twin.step(step)

    def on_step_end(self, step: Step) -> None:
        self._steps_in_round += 1
        if self._steps_in_round >= self.T:
            self._end_round(step)
            self._round, self._steps_in_round = Round(), 0

    # ---- the dropout step --------------------------------------------------------------------------------------

    @torch.no_grad()
    def _rewards(self, step: Step) -> tuple[Tensor, Tensor, Tensor]:
        """r for each example, and the mean scores of attacker and defender."""
        found: list[list[Tensor]] = [[], []]
        for batch in self._reward_batches(step):
            for place, values in enumerate(self._scores(batch, step)):
                found[place].append(values.clone())
        if self.reward_on == "cached" and step.around.world > 1:  # each process has cached batches of its own
            found = [_of_all(values, step.around.world) for values in found]
        attacker, defender = (torch.cat(values).float() for values in found)
        difference = attacker - defender
        return (difference.sign() if self.reward == "win" else difference), attacker.mean(), defender.mean()

    def _scores(self, batch: Mapping[str, Any], step: Step) -> list[Tensor]:
        """Of the model and of the defender, for each example."""

        def both(examples: Mapping[str, Any]) -> list[Tensor]:
            found = []
            for network in (step.model, self.defender):
                with evaluating(network):
                    outputs = network(**examples)
                score, right = example_scores(network, examples, outputs)
                found.append(right if self.reward == "metric" else score)
            return found

        if step.around.graphs is None:
            return both(batch)
        static, key = step.around.graphs.batch(batch)
        return step.around.graphs.run(("attendout scores", key), lambda: both(static))

    def _reward_batches(self, step: Step) -> list[Mapping[str, Any]]:
        if self.reward_on == "cached":
            return list(self._round.labelled)
        if step.around.examples is None:
            raise ValueError(f"AttendOut.reward_on is {self.reward_on!r}, but the loop lends no examples to draw from.")
        draws = step.shared_generator("attendout-reward")
        assert self.draws_from is not None
        batch = dict(step.around.examples(self.draws_from, self.samples or self.T, draws))
        if self.reward_on == "noisy":
            ids = batch["input_ids"]
            vocabulary = len(self.generator.tokens) if self.generator is not None else 0
            swap = torch.rand(ids.shape, generator=draws) < self.noise
            random_ids = torch.randint(0, vocabulary, ids.shape, generator=draws)
            batch["input_ids"] = torch.where(swap.to(ids.device), random_ids.to(ids.device), ids)
        return [batch]

    def _end_round(self, step: Step) -> None:
        rewards, attacker, defender = self._rewards(step)
        mean = rewards.mean().item()
        advantages = self._advantages(rewards)
        probabilities = self._learn(advantages, step)
        winner = self._choose(rewards, step)
        assert self._twin is not None
        self._twin.make_equal(step, to_model=winner == "defender")
        error = rewards.std().item() / math.sqrt(len(rewards)) if len(rewards) > 1 else 0.0
        self.history.append(
            {
                "step": step.progress.step + 1,
                "epoch": step.progress.epoch,
                "drop_probability": [round(p, 5) for p in probabilities],
                "reward": mean,
                "reward_error": error,
                "baseline": self._baseline,
                "attacker": attacker.item(),
                "defender": defender.item(),
                "winner": winner,
            }
        )
        device = rewards.device
        step.metrics["attendout/reward"] = torch.tensor(mean, device=device)
        step.metrics["attendout/baseline"] = torch.tensor(self._baseline or 0.0, device=device)
        step.metrics["attendout/attacker_won"] = torch.tensor(float(winner == "attacker"), device=device)
        for site, p in zip(self._sites(step.seams), probabilities, strict=True):
            step.metrics[f"attendout/drop_probability_{site.label}"] = torch.tensor(p, device=device)

    def _advantages(self, rewards: Tensor) -> list[float]:
        """One for each step of the round; the baseline is a moving average of the rewards before it."""
        if self.credit == "paired":
            groups = [chunk.mean().item() for chunk in rewards.chunk(self.T)]
            groups = [groups[t % len(groups)] for t in range(self.T)]
        else:
            groups = [rewards.mean().item()] * self.T
        baseline = self._baseline if self._baseline is not None else 0.0
        advantages = [r - baseline for r in groups]
        mean = sum(groups) / len(groups)
        self._baseline = mean if self._baseline is None else self.decay * self._baseline + (1 - self.decay) * mean
        size = math.sqrt(sum(a * a for a in advantages) / len(advantages))
        self._size = size if self._size == 0 else self.decay * self._size + (1 - self.decay) * size
        return [a / self._size for a in advantages] if self.normalize and self._size > 0 else advantages

    def _learn(self, advantages: list[float], step: Step) -> list[float]:
        """Eq. 5 on the cached steps, one graph at a time; returns the mean P(drop) of each layer."""
        assert self.generator is not None
        assert self._optimizer is not None
        total = torch.zeros(self.generator.layers, device=next(self.generator.parameters()).device)
        first_step = self._round.places[0][0] if self._round.places else 0
        micro_batches = Counter(at for at, _ in self._round.places)
        for ids, mask, (at, first) in zip(self._round.ids, self._round.masks, self._round.places, strict=True):
            then = as_it_was(step, at, first, len(ids))
            advantage = advantages[min(at - first_step, len(advantages) - 1)]
            # a step may have several micro-batches: their mean is the step's
            weight = torch.tensor(advantage / micro_batches[at] / self.monte_carlo)
            total = total + self._reinforce({"ids": ids, "mask": mask, "weight": weight}, then)
        self._rounds += 1
        if self._round.ids and self._rounds % self.monte_carlo == 0:
            average_gradients(self.generator, step.around.world)
            self._optimizer.step()
            self._optimizer.zero_grad()
        if step.around.world > 1:
            torch.distributed.all_reduce(total)
        return (total / step.around.world / max(1, len(self._round.ids))).tolist()

    def _reinforce(self, values: dict[str, Tensor], then: Step) -> Tensor:
        """The gradient of -weight · log P(actions of that step), added to the generator's; its P(drop) by layer."""
        assert self.generator is not None
        generator, chosen = self.generator, self._active(then.seed, then.progress.step)

        def backward(step: Step, ids: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
            logits = generator(ids, mask)
            drop = self._actions(logits.detach(), step)
            valid = pairs(mask).unsqueeze(0)
            layers = [layer for layer, is_chosen in enumerate(chosen) if is_chosen]
            likelihood = log_likelihood(
                torch.stack([logits[layer] for layer in layers]), torch.stack([drop[layer] for layer in layers]), valid
            )
            (-weight * likelihood).backward()
            return (logits.detach().sigmoid() * valid).flatten(1).sum(1) / valid.sum()

        graphs = then.around.graphs
        if graphs is None:
            return backward(then, **{**values, "weight": values["weight"].to(values["ids"].device)})
        key = ("attendout reinforce", tuple(values["ids"].shape), tuple(chosen))
        static = graphs.static(key, values)
        told = graphs.told(then)
        return graphs.run(key, lambda: backward(told, **static), then, generator)

    def _choose(self, rewards: Tensor, step: Step) -> str:
        if self.select == "attacker":
            return "attacker"
        mean = rewards.mean().item()
        if self.select == "better":
            return "attacker" if mean > 0 else "defender"
        # The probability follows the evidence: the mean reward in units of its standard error.
        error = rewards.std().item() / math.sqrt(len(rewards)) if len(rewards) > 1 else abs(mean)
        chance = 0.5 if error == 0 else 0.5 * (1 + math.erf(mean / error / math.sqrt(2)))
        draw = torch.rand((), generator=step.shared_generator("attendout-select")).item()
        return "attacker" if draw < chance else "defender"

    def record(self) -> list[dict[str, Any]]:
        return self.history

    # ---- checkpoints -------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        if self.generator is None or self._twin is None or self._optimizer is None:
            return {}, {}
        tensors = {f"generator.{k}": v for k, v in self.generator.state_dict().items()}
        tensors |= {f"defender.{k}": v for k, v in self.defender.state_dict().items()}
        tensors |= {f"optimizer.{k}": v for k, v in optimizer_tensors(self._optimizer).items()}
        tensors |= {f"defender_optimizer.{k}": v for k, v in optimizer_tensors(self._twin.optimizer).items()}
        for parameter_name, parameter in self.generator.named_parameters():
            if parameter.grad is not None:
                tensors[f"gradient.{parameter_name}"] = parameter.grad
        for place, (ids, mask) in enumerate(zip(self._round.ids, self._round.masks, strict=True)):
            tensors |= {f"round.{place}.ids": ids, f"round.{place}.mask": mask}
        for place, batch in enumerate(self._round.labelled):
            tensors |= {f"labelled.{place}.{k}": v for k, v in batch.items()}
        values = {
            "places": self._round.places,
            "steps_in_round": self._steps_in_round,
            "rounds": self._rounds,
            "baseline": self._baseline,
            "size": self._size,
            "history": self.history,
        }
        return tensors, values

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        # The networks are made when the first step begins, with the optimizer; then this is taken up.
        self._loaded = tensors, values

    def _take_up(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        assert self.generator is not None
        assert self._optimizer is not None
        assert self._twin is not None
        device = next(self.generator.parameters()).device

        def part(prefix: str) -> dict[str, Tensor]:
            return {k[len(prefix) :]: v.to(device) for k, v in tensors.items() if k.startswith(prefix)}

        self.generator.load_state_dict(part("generator."))
        self.defender.load_state_dict(part("defender."), strict=False)
        load_optimizer_tensors(self._optimizer, part("optimizer."))
        load_optimizer_tensors(self._twin.optimizer, part("defender_optimizer."))
        gradients = part("gradient.")
        for name, parameter in self.generator.named_parameters():
            parameter.grad = gradients.get(name)
        self._round = Round(places=[(at, first) for at, first in values["places"]])
        for place in range(len(self._round.places)):
            self._round.ids.append(tensors[f"round.{place}.ids"].to(device))
            self._round.masks.append(tensors[f"round.{place}.mask"].to(device))
        while labelled := part(f"labelled.{len(self._round.labelled)}."):
            self._round.labelled.append(labelled)
        self._steps_in_round, self._rounds = values["steps_in_round"], values["rounds"]
        self._baseline, self._size, self.history = values["baseline"], values["size"], values["history"]


def _of_all(values: list[Tensor], world: int) -> list[Tensor]:
    """The values of all processes, in the order in which one process would have seen the batches."""
    everyone: list[Any] = [None] * world
    torch.distributed.all_gather_object(everyone, [value.cpu() for value in values])
    return [value.to(values[0].device) for batches in zip(*everyone, strict=True) for value in batches]
