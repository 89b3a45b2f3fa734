"""AttendOut: a generator network learns which attention positions to drop, rewarded when the attacker beats a defender.

    d ~ Bernoulli(P), P = sigmoid(S_i)        masks of the attacker, for each example and layer, shared by the heads
    attacker and defender take the same step on the same batch, the attacker with the mask
    every T steps    r_t = score(attacker) − score(defender) on fresh examples
                     ∇ = (1/m) Σ_k Σ_t (r_t − b) ∇ 1/(layers · n²) Σ log P(d_t)       (Eq. 5; causal: n(n+1)/2)
                     one of the two networks is copied into the other

Wu, Zhao and Zhang, "Not All Attention Is All You Need", arXiv 2104.04692: v2 drops, v1 prunes (`mode="prune"`).

Differs from the paper in: the two networks draw the same ordinary dropout; all T steps share the mean reward
(`credit="paired"` is the paper's); advantages are divided by their running size. What the paper leaves open is listed
in docs/methods/attendout.md.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ...core.capabilities import KeepsState
from ...core.hyper import hyper
from ...core.networks import TrainsNetworks
from ...core.state import load_optimizer_tensors, optimizer_tensors
from ...core.step import MicroBatch, Step
from ...kernels.bitmask_attention import stored
from ...model.objective import head_of
from ...model.plan import Plan
from ...model.seams import Seams
from ...model.sites import Site, unwrapped
from ...random import as_keys, key_of, preserved
from ...utils.distributed import average_gradients, mean_over_processes
from .._shared.causality import is_causal
from .._shared.twin import Twin
from .exploration import draw_active, draw_shifts, learn_from_shifts
from .generator import Generator, embedding_width, load_weights, reads_pixels, save_weights
from .policy_gradient import Baseline, CachedBatch, actions, cache_tensors, load_cache, probabilities, reinforce
from .rewards import Rewards, attacker_probability, mean_and_error, noisy, of_all_processes, rewards_of_steps, scores_of

REWARD_ON = ("dev", "held_out", "noisy", "cached")
REWARDS = ("loss", "metric", "win")
SELECTS = ("sample", "better", "attacker")
CREDITS = ("mean", "paired")
MODES = ("dropout", "prune")


@dataclass
class AttendOut(TrainsNetworks, KeepsState):
    """Learned attention dropout.

    Args:
        T: steps of a round, after which the two networks are compared; a whole number from 1
        reward_on: the examples on which they are compared: "dev", the development set; "held_out", a share of the
            training set that is not trained on; "noisy", training examples with random tokens; "cached", the examples
            of the round
        reward: "loss", the difference of the log-likelihoods; "metric", that of the shares of correct labels; "win",
            the sign (+1, 0, −1) of the first
        samples: examples on which they are compared, a whole number from 0; 0: T of them, as in the paper
        select: which network is copied into the other: "sample" (drawn, the better one with higher probability),
            "better" or "attacker"
        generator_lr: learning rate of the generator, a number from 0
        offset_lr: learning rate of its layer offsets, a number from 0
        init_drop: P(drop) at the start, a number from 0 to below 1; 0: nothing is ever dropped
        monte_carlo: rounds for each update of the generator, a whole number from 1
        temperature: divides the generator's scores, a number above 0
        layer_offsets: True: a learned offset of the logits for each layer, so that the layers can differ
        active: share of the layers that are masked in a round, a number above 0, to 1; with fewer layers, the reward
            tells more about each of them
        credit: "mean": all steps of a round get the mean reward; "paired": each step gets the mean reward of its own
            examples with reward_on="cached", otherwise of one of T equal groups of the examples
        explore: standard deviation of a random shift of each layer's logits, drawn for each round, from which the layer
            offsets learn; a number from 0; 0: no shift, as in the paper
        common_dropout: True: both networks draw the same ordinary dropout, and differ in the masks alone; False: they
            draw their own
        normalize: True: advantages are divided by their running size
        decay: of the moving averages of reward and advantage, a number from 0 to 1
        hold_out: share of the training set that is held out with reward_on="held_out", a number above 0, to 1
        noise: share of the tokens that are replaced with reward_on="noisy", a number from 0 to 1
        mode: "dropout", or "prune", which sets reward_on="cached" and select="attacker"
        heads: heads of the generator's attention, a whole number from 1 that divides its width; 1, as in the paper
        feed_forward: inner width of a feed-forward part of the generator, a whole number from 0; 0: none, as in the
            paper
        run: folder of an AttendOut run, whose generator this one starts from; with generator_lr=0 and offset_lr=0 it
            stays the same; None: a new one
    """

    name: ClassVar[str] = "attendout"
    local_state: ClassVar[tuple[str, ...]] = ("round.", "labelled.", "gradient.")

    T: int = hyper(15, low=1, search="10,15,25", paper="10,15,25")  # section 5 of the paper
    # In a search, rewards must not come from the data that a run is scored on.
    reward_on: str = hyper("dev", choices=REWARD_ON, search="held_out")
    reward: str = hyper("loss", choices=REWARDS)
    samples: int = hyper(64, paper="0")
    select: str = hyper("sample", choices=SELECTS)
    generator_lr: float = hyper(5e-5)
    offset_lr: float = hyper(0.02)
    init_drop: float = hyper(0.1, below=1, search="0.05..0.6", paper="0.55")
    monte_carlo: int = hyper(1, low=1)
    temperature: float = hyper(1.0, above=0)
    layer_offsets: bool = hyper(True, paper="False")
    active: float = hyper(1.0, above=0, high=1)
    credit: str = hyper("mean", choices=CREDITS, paper="paired")
    explore: float = hyper(0.0)
    common_dropout: bool = hyper(True)
    normalize: bool = hyper(True, paper="False")
    decay: float = hyper(0.9, high=1)
    hold_out: float = hyper(0.1, above=0, high=1)
    noise: float = hyper(0.15, high=1)
    mode: str = hyper("dropout", choices=MODES)
    heads: int = hyper(1, low=1)
    feed_forward: int = hyper(0)
    run: str | Path | None = None

    def __post_init__(self) -> None:
        if self.mode == "prune":
            self.reward_on, self.select = "cached", "attacker"
        super().__post_init__()
        self.run = None if self.run is None else str(self.run)
        if self.explore and not self.layer_offsets:
            raise ValueError(f"AttendOut.explore is {self.explore}, which teaches the offsets; set layer_offsets=True.")

    def reset(self) -> None:
        self.generator: Any = None
        self.history: list[dict[str, Any]] = []
        self._optimizer: torch.optim.Optimizer | None = None
        self._twin: Twin | None = None
        self._round: list[CachedBatch] = []
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
        """The network that trains without masks; None before the first step."""
        return None if self._twin is None else self._twin.network

    def networks(self) -> dict[str, nn.Module]:
        return {} if self._twin is None else {"defender": self._twin.network}

    def check(self, model: Any, seams: Seams, epochs: int | None) -> None:
        head_of(model, {})  # raises an error for a head without scores for each example
        own = unwrapped(model)
        if getattr(own, "main_input_name", "input_ids") != "input_ids":
            if not reads_pixels(own):
                raise ValueError(f"{seams.name} takes no token ids and no patches, which AttendOut's generator reads.")
            if self.reward_on == "noisy":
                raise ValueError(
                    f"AttendOut.reward_on is 'noisy', which replaces tokens, and {seams.name} takes images; use "
                    "'held_out', 'dev' or 'cached'."
                )
        width = embedding_width(own)
        if width % self.heads:
            raise ValueError(f"AttendOut.heads is {self.heads}; it must divide the width of the generator, {width}.")
        if self.run is not None:
            with preserved(torch.device("cpu")):
                self._new_generator(model, seams)

    def _sites(self, seams: Seams) -> list[Site]:
        """Return the self attention over the input: that of the only stack, or of the encoder."""
        return [site for site in seams.sites if site.is_over_input(seams.sites)]

    # ---- the step ----------------------------------------------------------------------------------------------

    def on_step_begin(self, step: Step) -> None:
        if self.generator is None:
            self._start(step)

    def _start(self, step: Step) -> None:
        device = next(step.model.parameters()).device
        with preserved(device):
            torch.manual_seed(key_of(step.seed, 0, 0, self.name))
            generator = self._new_generator(step.model, step.seams)
        # With the autocast of the model, as the defender.
        self.generator = step.loop.prepare(generator.to(device))
        offsets = [p for name, p in self.generator.named_parameters() if name == "offsets"]
        others = [p for name, p in self.generator.named_parameters() if name != "offsets"]
        self._optimizer = torch.optim.Adam(others, lr=self.generator_lr)
        if offsets:
            self._optimizer.add_param_group({"params": offsets, "lr": self.offset_lr})
        self._twin = Twin(step)
        if self._loaded is not None:
            self._restore(*self._loaded)
            self._loaded = None

    def _new_generator(self, model: nn.Module, seams: Seams) -> Generator:
        sites = self._sites(seams)
        generator = Generator.from_model(
            unwrapped(model),
            len(sites),
            init_drop=max(self.init_drop, 1e-4),
            layer_offsets=self.layer_offsets,
            temperature=self.temperature,
            causal=all(is_causal(model, site) for site in sites),
            heads=self.heads,
            feed_forward=self.feed_forward,
        )
        if self.run is not None:
            load_weights(generator, self.run, "AttendOut.run")
        return generator

    def on_batch(self, batch: MicroBatch) -> None:
        assert self._twin is not None
        step = batch.step.progress.step
        own = None if self.common_dropout else key_of(batch.step.seed, step, batch.first_position, "attendout-dropout")
        self._twin.backward(batch, own)
        is_scored = self.reward_on == "cached"
        if not is_scored and self.init_drop == 0:
            return
        assert self.generator is not None
        ids, mask = self.generator.read(batch.examples)
        first_row = batch.first_position * (len(ids) // batch.size)
        cached = CachedBatch(step, first_row, ids.clone(), mask.clone())
        if is_scored:
            cached.examples = {name: x.clone() for name, x in batch.examples.items() if isinstance(x, Tensor)}
        self._round.append(cached)

    def capture_key(self, step: Step) -> Hashable:
        return self.init_drop > 0

    def plan(self, batch: MicroBatch) -> Plan:
        if self.init_drop == 0:
            return Plan()
        assert self.generator is not None
        step = batch.step
        ids, mask = self.generator.read(batch.examples)
        with torch.no_grad():
            logits = self.generator(ids, mask)
            if self.explore:
                logits = logits + step.values(f"{self.name} shifts", self._shift_values).view(-1, 1, 1, 1)
            keep = ~self._actions(logits, batch)
        sites = self._sites(step.seams)
        if step.is_captured and self.active < 1:
            keep = keep | (step.values(f"{self.name} active", self._active_values).view(-1, 1, 1, 1) == 0)
            is_active = [True] * len(sites)
        else:
            is_active = self._active(step.seed, step.progress.step)
        active = ((site.index, keep[layer].unsqueeze(1)) for layer, site in enumerate(sites) if is_active[layer])
        return Plan(keep={site: stored(mask) for site, mask in active})

    def _actions(self, logits: Tensor, batch: MicroBatch) -> Tensor:
        """Return the dropped positions (True), [layers, B, L, L]: always the same for the same micro-batch."""
        keys = batch.keys(range(len(logits)), self.name, logits.device)
        return actions(probabilities(logits), keys, batch.positions(logits.shape[1], logits.device))

    def _active(self, seed: int, step: int) -> list[bool]:
        """Return which layers are masked in the round of this optimizer step; the same on all processes."""
        assert self.generator is not None
        return draw_active(seed, step // self.T, self.generator.layers, self.active)

    def _active_values(self, step: Step) -> Tensor:
        return torch.tensor(self._active(step.seed, step.progress.step), dtype=torch.float32)

    def _shifts(self, seed: int, step: int) -> list[float]:
        """Return the shift of the logits of each layer in the round of this optimizer step."""
        return draw_shifts(seed, step // self.T, self._active(seed, step), self.explore)

    def _shift_values(self, step: Step) -> Tensor:
        return torch.tensor(self._shifts(step.seed, step.progress.step))

    def on_gradients(self, step: Step) -> None:
        assert self._twin is not None
        self._twin.step(step)

    def on_step_end(self, step: Step) -> None:
        self._steps_in_round += 1
        if self._steps_in_round >= self.T:
            self._end_round(step)
            self._round, self._steps_in_round = [], 0

    # ---- the dropout step --------------------------------------------------------------------------------------

    @torch.no_grad()
    def _rewards(self, step: Step) -> Rewards:
        """Return the rewards of this round, the same on all processes."""
        networks, graphs = (step.model, self.defender), step.loop.graphs
        parts = [scores_of(networks, batch, self.reward == "metric", graphs) for batch in self._reward_batches(step)]
        scores = torch.cat(parts, 1).float().cpu()  # the only time that the CPU waits for the GPU
        steps = None
        if self.reward_on == "cached":
            # Each process has cached its own batches. The step of each example travels with its scores.
            sizes = [part.shape[1] for part in parts]
            steps = torch.tensor([batch.step - self._round[0].step for batch in self._round])
            columns = torch.cat([scores, steps.repeat_interleave(torch.tensor(sizes))[None]])
            columns = torch.cat(of_all_processes(columns.split(sizes, 1), step.loop.world), 1)
            scores, steps = columns[:2], columns[2].long()
        attacker, defender = scores
        difference = attacker - defender
        values = difference.sign() if self.reward == "win" else difference
        return Rewards(values, attacker.mean(), defender.mean(), steps)

    def _reward_batches(self, step: Step) -> list[Mapping[str, Any]]:
        if self.reward_on == "cached":
            return [batch.examples for batch in self._round]
        if step.loop.examples is None:
            raise ValueError(
                f"AttendOut.reward_on is {self.reward_on!r}, which draws examples, and the loop provides none; use "
                "RegularizedTrainer, pass Loop(examples=...), or set reward_on='cached'."
            )
        draws = step.shared_generator("attendout-reward")
        assert self.draws_from is not None
        batch = step.loop.examples(self.draws_from, self.samples or self.T, draws)
        if self.reward_on == "noisy":
            batch = noisy(batch, self.noise, len(self.generator.tokens), draws)
        return [batch]

    def _end_round(self, step: Step) -> None:
        rewards = self._rewards(step)
        of_steps = rewards_of_steps(rewards, self.T, self.credit == "paired")
        dropped = self._learn(self._baseline.advantages(of_steps, self.normalize), step)
        winner = self._choose(rewards.values, step)
        assert self._twin is not None
        self._twin.make_equal(step, to_model=winner == "defender")
        mean, error = mean_and_error(rewards.values)
        device = dropped.device  # of all metrics, which are stacked for the log
        values = {"reward": mean, "reward_error": error, "baseline": self._baseline.mean or 0.0}
        values["attacker_won"] = float(winner == "attacker")
        labels = [site.label for site in self._sites(step.seams)]
        shifts = self._shifts(step.seed, step.progress.step) if self.explore else []
        values |= {f"shift_{label}": shift for label, shift in zip(labels, shifts, strict=False)}
        for name, value in values.items():
            step.metrics[f"attendout/{name}"] = torch.full((), value, device=device)
        for label, p in zip(labels, dropped, strict=True):
            step.metrics[f"attendout/drop_probability_{label}"] = p
        self.history.append(
            {
                "step": step.progress.step + 1,
                "epoch": step.progress.epoch,
                "drop_probability": [round(p, 5) for p in dropped.tolist()],
                "reward": mean,
                "reward_error": error,
                "baseline": self._baseline.mean,
                "attacker": rewards.attacker.item(),
                "defender": rewards.defender.item(),
                "winner": winner,
                **({"shifts": shifts} if shifts else {}),
            }
        )

    def _learn(self, advantages: list[float], step: Step) -> Tensor:
        """Eq. 5 on the cached steps; returns the mean P(drop) of each layer."""
        assert self.generator is not None
        assert self._optimizer is not None
        self._rounds += 1
        if self.init_drop == 0:
            return torch.zeros(self.generator.layers, device=step.device)
        keys, weights, shifts = {}, {}, {}
        for cached in sorted({batch.step for batch in self._round}):
            words = [key_of(step.seed, cached, layer, self.name) for layer in range(self.generator.layers)]
            keys[cached] = as_keys(words).unsqueeze(1)
            is_active = self._active(step.seed, cached)
            advantage = advantages[min(cached - self._round[0].step, len(advantages) - 1)]
            weights[cached] = [advantage / self.monte_carlo / sum(is_active) * active for active in is_active]
            if self.explore:
                shifts[cached] = self._shifts(step.seed, cached)
        dropped = reinforce(self.generator, self._round, keys, weights, step.loop.graphs, shifts or None)
        if self.explore:
            weight = sum(advantages) / len(advantages) / self.monte_carlo
            learn_from_shifts(self.generator, self._shifts(step.seed, step.progress.step), self.explore, weight)
        if self._round and self._rounds % self.monte_carlo == 0:
            average_gradients(self.generator.parameters(), step.loop.world)
            self._optimizer.step()
            self._optimizer.zero_grad()
        return mean_over_processes(dropped, step.loop.world)

    def _choose(self, rewards: Tensor, step: Step) -> str:
        if self.select == "attacker":
            return "attacker"
        if self.select == "better":
            return "attacker" if rewards.mean().item() > 0 else "defender"
        draw = torch.rand((), generator=step.shared_generator("attendout-select")).item()
        return "attacker" if draw < attacker_probability(rewards) else "defender"

    def record(self) -> list[dict[str, Any]]:
        return self.history

    def save(self, folder: Path) -> None:
        """Write the weights of the generator, with which `run` starts another one."""
        if self.generator is not None:
            save_weights(self.generator, folder)

    def on_close(self) -> None:
        if self._twin is not None:
            self._twin.close()

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
        tensors |= cache_tensors(self._round)
        values = {
            "counters": [(batch.step, batch.first_row) for batch in self._round],
            "steps_in_round": self._steps_in_round,
            "rounds": self._rounds,
            "baseline": self._baseline.mean,
            "size": self._baseline.size,
            "history": self.history,
        }
        return tensors, values

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        # Used when the first step begins, which creates the networks and the optimizers.
        self._loaded = tensors, values

    def _restore(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
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
        self._round = load_cache(tensors, values["counters"], device)
        self._steps_in_round, self._rounds = values["steps_in_round"], values["rounds"]
        self._baseline = Baseline(self.decay, values["baseline"], values["size"])
        self.history = values["history"]
