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

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ...core.networks import TrainsNetworks
from ...core.state import load_optimizer_tensors, optimizer_tensors
from ...core.step import MicroBatch, Step
from ...model.objective import head_of
from ...model.plan import Plan
from ...model.seams import Seams
from ...model.sites import Site, unwrapped
from ...random import as_keys, key_of, preserved
from ...utils.checks import check_choice, check_number, check_whole
from ...utils.distributed import average_gradients, mean_over_processes
from .generator import Generator, ids_and_mask
from .policy_gradient import Baseline, Round, actions, probabilities, reinforce
from .rewards import chance_of_attacker, credited, mean_and_error, noisy, of_all_processes, scores_of
from .twin import Twin

REWARD_ON = ("dev", "held_out", "noisy", "cached")
REWARDS = ("loss", "metric", "win")
SELECTS = ("sample", "better", "attacker")
CREDITS = ("mean", "paired")
MODES = ("dropout", "prune")


@dataclass
class AttendOut(TrainsNetworks):
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
            ("layer_offsets", (True, False)), ("normalize", (True, False)),
        ):  # fmt: skip
            check_choice(f"AttendOut.{name}", getattr(self, name), allowed)
        for name, low in (("T", 1), ("monte_carlo", 1), ("samples", 0)):
            check_whole(f"AttendOut.{name}", getattr(self, name), low)
        for name in ("init_drop", "active", "decay", "hold_out", "noise"):
            is_share = name in ("active", "hold_out")
            check_number(f"AttendOut.{name}", getattr(self, name), 0, 1, is_share, is_below=name == "init_drop")
        for name in ("generator_lr", "offset_lr", "temperature"):
            check_number(f"AttendOut.{name}", getattr(self, name), is_above=name == "temperature")
        self.reset()

    def reset(self) -> None:
        self.generator: Any = None
        self.history: list[dict[str, Any]] = []
        self._optimizer: torch.optim.Optimizer | None = None
        self._twin: Twin | None = None
        self._round = Round()
        self._steps_in_round = self._rounds = 0
        self._baseline = Baseline(self.decay)
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
        return [site for site in seams.sites if site.is_over_input(seams.sites)]

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
        self.generator = step.loop.prepare(generator.to(device))
        offsets = [p for name, p in self.generator.named_parameters() if name == "offsets"]
        others = [p for name, p in self.generator.named_parameters() if name != "offsets"]
        self._optimizer = torch.optim.Adam(others, lr=self.generator_lr)
        if offsets:
            self._optimizer.add_param_group({"params": offsets, "lr": self.offset_lr})
        self._twin = Twin(step)
        if self._loaded is not None:
            self._take_up(*self._loaded)
            self._loaded = None

    def on_batch(self, batch: MicroBatch) -> None:
        assert self._twin is not None
        self._twin.backward(batch)
        if self.init_drop > 0:
            ids, mask = ids_and_mask(batch.examples)
            self._round.ids.append(ids.clone())
            self._round.masks.append(mask.clone())
            self._round.places.append((batch.step.progress.step, batch.first_position * (len(ids) // batch.size)))
        if self.reward_on == "cached":
            self._round.labelled.append({k: v.clone() for k, v in batch.examples.items() if isinstance(v, Tensor)})

    def capture_key(self, step: Step) -> Hashable:
        return None if self.active < 1 else self.init_drop > 0

    def plan(self, batch: MicroBatch) -> Plan:
        if self.init_drop == 0:
            return Plan()
        assert self.generator is not None
        step = batch.step
        ids, mask = ids_and_mask(batch.examples)
        with torch.no_grad():
            keep = ~self._actions(self.generator(ids, mask), batch)
        chosen = self._active(step.seed, step.progress.step)
        sites = self._sites(step.seams)
        return Plan(keep={site.index: keep[layer].unsqueeze(1) for layer, site in enumerate(sites) if chosen[layer]})

    def _actions(self, logits: Tensor, batch: MicroBatch) -> Tensor:
        """[layers, B, L, L]: True = drop. The same whenever they are asked for."""
        keys = batch.keys(range(len(logits)), self.name, logits.device)
        return actions(probabilities(logits), keys, batch.positions(logits.shape[1], logits.device))

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
        """r for each example, and the mean scores of attacker and defender; on the host, for which it waits once."""
        networks, graphs = (step.model, self.defender), step.loop.graphs
        found = [scores_of(networks, batch, self.reward == "metric", graphs) for batch in self._reward_batches(step)]
        both = torch.cat(found, 1).float().cpu()
        if self.reward_on == "cached" and step.loop.world > 1:  # each process has cached batches of its own
            both = torch.cat(of_all_processes(both.split([x.shape[1] for x in found], 1), step.loop.world), 1)
        attacker, defender = both
        difference = attacker - defender
        return (difference.sign() if self.reward == "win" else difference), attacker.mean(), defender.mean()

    def _reward_batches(self, step: Step) -> list[Mapping[str, Any]]:
        if self.reward_on == "cached":
            return list(self._round.labelled)
        if step.loop.examples is None:
            raise ValueError(f"AttendOut.reward_on is {self.reward_on!r}, but the loop lends no examples to draw from.")
        draws = step.shared_generator("attendout-reward")
        assert self.draws_from is not None
        batch = step.loop.examples(self.draws_from, self.samples or self.T, draws)
        if self.reward_on == "noisy":
            batch = noisy(batch, self.noise, len(self.generator.tokens), draws)
        return [batch]

    def _end_round(self, step: Step) -> None:
        rewards, attacker, defender = self._rewards(step)
        groups = credited(rewards, self.T, self.credit == "paired")
        dropped = self._learn(self._baseline.advantages(groups, self.normalize), step)
        winner = self._choose(rewards, step)
        assert self._twin is not None
        self._twin.make_equal(step, to_model=winner == "defender")
        mean, error = mean_and_error(rewards)
        device = dropped.device  # where all figures are: they are stacked for the log
        for name, value in (
            ("reward", mean), ("baseline", self._baseline.mean or 0.0), ("attacker_won", float(winner == "attacker")),
        ):  # fmt: skip
            step.metrics[f"attendout/{name}"] = torch.full((), value, device=device)
        for site, p in zip(self._sites(step.seams), dropped, strict=True):
            step.metrics[f"attendout/drop_probability_{site.label}"] = p
        self.history.append(
            {
                "step": step.progress.step + 1,
                "epoch": step.progress.epoch,
                "drop_probability": [round(p, 5) for p in dropped.tolist()],
                "reward": mean,
                "reward_error": error,
                "baseline": self._baseline.mean,
                "attacker": attacker.item(),
                "defender": defender.item(),
                "winner": winner,
            }
        )

    def _learn(self, advantages: list[float], step: Step) -> Tensor:
        """Eq. 5 on the cached steps; returns the mean P(drop) of each layer."""
        assert self.generator is not None
        assert self._optimizer is not None
        keys, weights = {}, {}
        for at in sorted({at for at, _ in self._round.places}):
            words = [key_of(step.seed, at, layer, self.name) for layer in range(self.generator.layers)]
            keys[at] = as_keys(words).unsqueeze(1)
            chosen = self._active(step.seed, at)
            advantage = advantages[min(at - self._round.places[0][0], len(advantages) - 1)]
            weights[at] = [advantage / self.monte_carlo / sum(chosen) * is_chosen for is_chosen in chosen]
        found = reinforce(self.generator, self._round, keys, weights, step.loop.graphs)
        self._rounds += 1
        if self._round.ids and self._rounds % self.monte_carlo == 0:
            average_gradients(self.generator.parameters(), step.loop.world)
            self._optimizer.step()
            self._optimizer.zero_grad()
        return mean_over_processes(found, step.loop.world)

    def _choose(self, rewards: Tensor, step: Step) -> str:
        if self.select == "attacker":
            return "attacker"
        if self.select == "better":
            return "attacker" if rewards.mean().item() > 0 else "defender"
        draw = torch.rand((), generator=step.shared_generator("attendout-select")).item()
        return "attacker" if draw < chance_of_attacker(rewards) else "defender"

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
        tensors |= self._round.tensors()
        values = {
            "places": self._round.places,
            "steps_in_round": self._steps_in_round,
            "rounds": self._rounds,
            "baseline": self._baseline.mean,
            "size": self._baseline.size,
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
        self._round = Round.of(tensors, values["places"], device)
        self._steps_in_round, self._rounds = values["steps_in_round"], values["rounds"]
        self._baseline = Baseline(self.decay, values["baseline"], values["size"])
        self.history = values["history"]
