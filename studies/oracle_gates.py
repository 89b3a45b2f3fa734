"""Does any mask of positions help? An oracle for AttendOut: gates of positions, learned on a large reward set.

    python -m studies.oracle_gates --data DATA --model MODEL --task subj --output docs/results/verdict2

AttendOut's generator learns from a reward of few bits which positions to drop. Here each position has a gate, g =
σ(θ) for layer, head, query and key, and θ learns from the *gradient* of the loss on thousands of examples that no run
trains on:

    W' = W − P ∂L_train(W, g)/∂W            a step of fine-tuning; P: Adam's step sizes
    ∂L_reward(W')/∂θ = −∂/∂θ ⟨P v, ∂L_train(W, g)/∂W⟩,    v = ∂L_reward(W')/∂W'
                     ≈ −(∂L_train(W + ε P v, g)/∂θ − ∂L_train(W − ε P v, g)/∂θ) / 2ε

Attention becomes w g / Σ w g, which is a soft mask before the softmax. `--learn` fine-tunings, one after the other,
learn the gates. Then fresh seeds, with other training examples, are trained without a mask, with the gates, with
masks that are drawn from them, and with the gates at permuted positions of each head, the control. Evaluation has no
mask. If nothing gains on plain fine-tuning with this much information, no generator can be expected to.

Gates, and a line for each run, are kept in the output folder; started again, it goes on. `--gates distance` has one
gate for each distance between key and query instead of each pair of positions.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from attendrop import Engine, Regularizer
from attendrop.core.step import MicroBatch
from attendrop.lab.statistics.verdict import Question, judge_family
from attendrop.model.plan import MapEdit, Plan

KINDS = ("position", "distance")
PLAIN, GATES, SAMPLED, PERMUTED = "plain", "gates", "sampled", "permuted"
COLUMNS = ("task", "contender", "seed", "accuracy", "loss", "seconds")
FIRST_LEARN, FIRST_FRESH = 1000, 0  # seeds
DIFFERENCE = 1e-2  # ε ‖P v‖ as a share of the norm of W: of the finite difference

Batch = dict[str, Tensor]


@dataclass
class Gated(Regularizer):
    """Attention times gates, renormalised.

    Args:
        theta: the logits of the gates, [sites, heads, gates]
        kind: what a gate belongs to: "position" or "distance"
        sampled: whether masks are drawn with the gates as probabilities to be kept
    """

    name: ClassVar[str] = "oracle_gates"

    theta: Any = None
    kind: str = "position"
    sampled: bool = False

    def plan(self, batch: MicroBatch) -> Plan:
        step, length = batch.step, batch.inputs["input_ids"].shape[1]
        gates = self.theta[:, :, gate_numbers(self.kind, length, longest(self.theta, self.kind), self.theta.device)]
        keep, maps = dict[int, Tensor](), dict[int, tuple[MapEdit, ...]]()
        for site in step.seams.sites:
            g = gates[site.index].sigmoid()
            if self.sampled:
                shape = (len(batch.inputs["input_ids"]), *g.shape)
                keep[site.index] = batch.uniform(site.index, shape, g.device, self.name) < g  # type: ignore[arg-type]
            else:
                maps[site.index] = (_gated_by(g),)
        return Plan(keep=keep, maps=maps)  # type: ignore[arg-type]


def _gated_by(g: Tensor) -> MapEdit:
    def edit(weights: Tensor, valid: Tensor) -> Tensor:
        gated = weights * g.to(weights.dtype)
        return gated / gated.sum(-1, keepdim=True).clamp(min=1e-12)

    return edit


def gate_numbers(kind: str, length: int, most: int, device: torch.device | str = "cpu") -> Tensor:
    """The number of the gate of each pair of positions, [length, length]: query and key, or their distance."""
    place = torch.arange(length, device=device)
    if kind == "distance":
        return place - place.unsqueeze(-1) + most - 1
    return place.unsqueeze(-1) * most + place


def longest(theta: Tensor, kind: str) -> int:
    """The number of positions that gates are for."""
    count = theta.shape[-1]
    return (count + 1) // 2 if kind == "distance" else round(count**0.5)


def first_theta(model: Any, kind: str, length: int, gate: float = 0.9) -> Tensor:
    """Equal gates for every site, head and position."""
    config, count = model.config, 2 * length - 1 if kind == "distance" else length * length
    logit = float(np.log(gate / (1 - gate)))
    return torch.full((config.num_hidden_layers, config.num_attention_heads, count), logit)


def loss_with(model: Any, theta: Tensor | None, kind: str, batch: Batch, seed: int) -> Tensor:
    """The training loss of a batch under the gates, with the ordinary dropout of a seed."""
    torch.manual_seed(seed)
    if theta is None:
        return model(**batch).loss
    with Engine(model, Gated(theta, kind)) as engine, engine.micro_batch(batch) as inputs:
        loss: Tensor = model(**inputs).loss
        return loss


def gate_gradient(
    model: Any,
    theta: Tensor,
    kind: str,
    batch: Batch,
    seed: int,
    direction: Sequence[Tensor],
    weights: Sequence[Tensor],
) -> Tensor:
    """−∂/∂θ ⟨direction, ∂L_train/∂W⟩ at W, by a central difference of ∂L_train/∂θ.

    Args:
        model: the model; its weights are W again afterwards.
        theta: θ, which requires a gradient.
        kind: of the gates.
        batch: the training batch.
        seed: of its ordinary dropout.
        direction: P v, for each trained weight.
        weights: W, copies of the trained weights.
    """
    parameters = trained(model)
    size = sum(d.double().square().sum() for d in direction) ** 0.5
    if not size > 0:
        return torch.zeros_like(theta)
    epsilon = float(DIFFERENCE * sum(w.double().square().sum() for w in weights) ** 0.5 / size)
    ends = []
    for sign in (1, -1):
        with torch.no_grad():
            for parameter, w, d in zip(parameters, weights, direction, strict=True):
                parameter.copy_(w + sign * epsilon * d)
        ends.append(torch.autograd.grad(loss_with(model, theta, kind, batch, seed), theta)[0])
    with torch.no_grad():
        for parameter, w in zip(parameters, weights, strict=True):
            parameter.copy_(w)
    return -(ends[0] - ends[1]) / (2 * epsilon)


def trained(model: nn.Module) -> list[nn.Parameter]:
    """The weights that are trained."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def step_sizes(optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """P: by how much a gradient of 1 moves each weight in the step that was just taken, for AdamW."""
    (group,) = optimizer.param_groups
    sizes = []
    for parameter in parameters:
        state = optimizer.state[parameter]
        corrected = state["exp_avg_sq"] / (1 - group["betas"][1] ** state["step"])
        first = (1 - group["betas"][0]) / (1 - group["betas"][0] ** state["step"])
        sizes.append(group["lr"] * first / (corrected.sqrt() + group["eps"]))
    return sizes


@dataclass
class Task:
    """Encoded examples of a task: to train on, to reward with, and to test on."""

    name: str
    pool: Batch
    reward: Batch
    test: Batch
    classes: int

    @classmethod
    def load(cls, folder: Path, model: str, length: int) -> Task:
        """Read `train.parquet` and `test.parquet` of a folder. Half of the pool is trained on, half rewards."""
        import pyarrow.parquet as pq
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(model)
        tables = {part: pq.read_table(folder / f"{part}.parquet").to_pydict() for part in ("train", "test")}
        names = sorted(set(tables["train"]["label"]))

        def encoded(part: str) -> Batch:
            table = tables[part]
            texts = [table["text"], table["text_pair"]] if "text_pair" in table else [table["text"]]
            options = {"padding": "max_length", "truncation": True, "max_length": length, "return_tensors": "pt"}
            batch = dict(tokenizer(*texts, **options))
            return batch | {"labels": torch.tensor([names.index(label) for label in table["label"]])}

        whole = encoded("train")
        order = torch.randperm(len(whole["labels"]), generator=torch.Generator().manual_seed(0))
        half = len(order) // 2
        return cls(folder.name, rows(whole, order[:half]), rows(whole, order[half:]), encoded("test"), len(names))


def rows(batch: Batch, where: Tensor) -> Batch:
    """Some rows of a batch."""
    return {name: x[where.to(x.device)] for name, x in batch.items()}


def shortened(batch: Batch, device: torch.device | str) -> Batch:
    """A batch without positions that are padding in all rows, on the device."""
    length = int(batch["attention_mask"].sum(-1).max())
    return {name: (x[:, :length] if x.dim() > 1 else x).to(device) for name, x in batch.items()}


def batches(task: Task, seed: int, options: argparse.Namespace) -> Iterator[Batch]:
    """The batches of a run: `n` examples of the pool, drawn and ordered by the seed."""
    draws = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(task.pool["labels"]), generator=draws)[: options.n]
    for _ in range(options.epochs):
        order = chosen[torch.randperm(len(chosen), generator=draws)]
        for part in order.split(options.batch_size):
            yield shortened(rows(task.pool, part), options.device)


def make_model(options: argparse.Namespace, classes: int, seed: int) -> Any:
    """The pretrained model with the head of a seed, in train mode."""
    from transformers import AutoModelForSequenceClassification

    torch.manual_seed(seed)
    model = AutoModelForSequenceClassification.from_pretrained(options.model, num_labels=classes)
    return model.to(options.device).train()


def train(task: Task, seed: int, options: argparse.Namespace, learn: Callable[..., None] | None, method: Any) -> Any:
    """Fine-tune, with a method or not; `learn` is called with what each step needs."""
    model = make_model(options, task.classes, seed)
    optimizer = torch.optim.AdamW(trained(model), lr=options.rate)
    steps = options.epochs * -(-min(options.n, len(task.pool["labels"])) // options.batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    for number, batch in enumerate(batches(task, seed, options)):
        before = [weight.detach().clone() for weight in trained(model)] if learn else []
        torch.manual_seed(seed * 100_003 + number)
        if method is None:
            model(**batch).loss.backward()
        else:
            with Engine(model, method, seed=seed * 100_003 + number) as engine, engine.micro_batch(batch) as inputs:
                model(**inputs).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if learn:
            learn(model, optimizer, batch, seed * 100_003 + number, before)
        schedule.step()
    return model


def learn_gates(task: Task, options: argparse.Namespace) -> Tensor:
    """The gates after `--learn` fine-tunings."""
    model = make_model(options, task.classes, 0)
    theta = first_theta(model, options.gates, options.length).to(options.device).requires_grad_()
    optimizer = torch.optim.Adam([theta], lr=options.gate_rate)
    draws = torch.Generator().manual_seed(1)

    def learn(model: Any, of_model: Any, batch: Batch, seed: int, before: list[Tensor]) -> None:
        where = torch.randint(len(task.reward["labels"]), (options.reward,), generator=draws)
        model.eval()
        loss = model(**shortened(rows(task.reward, where), options.device)).loss
        slope = torch.autograd.grad(loss, trained(model), allow_unused=True)
        model.train()
        direction = [
            torch.zeros_like(size) if v is None else size * v
            for size, v in zip(step_sizes(of_model, trained(model)), slope, strict=True)
        ]
        after = [weight.detach().clone() for weight in trained(model)]
        theta.grad = gate_gradient(model, theta, options.gates, batch, seed, direction, before)
        optimizer.step()
        with torch.no_grad():
            for weight, value in zip(trained(model), after, strict=True):
                weight.copy_(value)

    for seed in range(FIRST_LEARN, FIRST_LEARN + options.learn):
        train(task, seed, options, learn, Gated(theta, options.gates))
        gates = theta.detach().sigmoid()
        print(f"gates after seed {seed}: {gates.mean():.3f} ± {gates.std():.3f}", flush=True)
    return theta.detach()


def permuted(theta: Tensor) -> Tensor:
    """The gates of each head at other positions."""
    order = torch.argsort(torch.rand(theta.shape, generator=torch.Generator().manual_seed(2)), dim=-1)
    return theta.gather(-1, order.to(theta.device))


@torch.no_grad()
def score(model: Any, test: Batch, device: str) -> tuple[float, float]:
    """Accuracy and loss on the test examples."""
    model.eval()
    right, loss, count = 0, 0.0, len(test["labels"])
    for part in torch.arange(count).split(256):
        batch = shortened(rows(test, part), device)
        outputs = model(**batch)
        right += int((outputs.logits.argmax(-1) == batch["labels"]).sum())
        loss += float(outputs.loss) * len(part)
    return right / count, loss / count


def report(lines: Sequence[Mapping[str, Any]], task: str) -> str:
    """Each contender against plain fine-tuning on paired seeds, in sentences."""
    text = []
    for outcome, delta in (("accuracy", 0.005), ("loss", 0.02)):
        values: dict[str, dict[int, float | None]] = {}
        for line in lines:
            if line["task"] == task:
                values.setdefault(line["contender"], {})[int(line["seed"])] = float(line[outcome])
        plain = values.pop(PLAIN, {})
        question = Question(delta, outcome == "accuracy", outcome=outcome, baseline=PLAIN)
        judged = judge_family(values, plain, question) if values and plain else {}
        text += [f"{outcome}: {name}: {of.sentence}" for name, of in judged.items()]
    return "\n".join(text)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with arena/<task>/{train,test}.parquet")
    parser.add_argument("--model", required=True)
    parser.add_argument("--task", default="subj")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--gates", choices=KINDS, default="position")
    parser.add_argument("--n", type=int, default=300, help="training examples of a run")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=30)
    parser.add_argument("--rate", type=float, default=6e-5)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--learn", type=int, default=20, help="fine-tunings that learn the gates")
    parser.add_argument("--reward", type=int, default=512, help="reward examples of a step")
    parser.add_argument("--gate-rate", type=float, default=0.05)
    parser.add_argument("--seeds", type=int, default=20, help="fresh seeds")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    task = Task.load(options.data / "arena" / options.task, options.model, options.length)
    name = f"oracle-{options.task}-{options.gates}"
    file, of_gates = options.output / f"{name}.csv", options.output / f"{name}.safetensors"
    if not of_gates.is_file():
        save_file({"theta": learn_gates(task, options).cpu().contiguous()}, of_gates)
    theta = load_file(of_gates)["theta"].to(options.device)
    methods = {
        PLAIN: None, GATES: Gated(theta, options.gates), SAMPLED: Gated(theta, options.gates, sampled=True),
        PERMUTED: Gated(permuted(theta), options.gates),
    }  # fmt: skip
    lines = list(csv.DictReader(file.open(encoding="utf-8"))) if file.is_file() else []
    done = {(line["contender"], int(line["seed"])) for line in lines}
    with file.open("a", newline="", encoding="utf-8") as output:
        writer = csv.DictWriter(output, COLUMNS, lineterminator="\n")
        if not lines:
            writer.writeheader()
        for seed in range(FIRST_FRESH, FIRST_FRESH + options.seeds):
            for contender, method in methods.items():
                if (contender, seed) in done:
                    continue
                start = time.perf_counter()
                accuracy, loss = score(train(task, seed, options, None, method), task.test, options.device)
                seconds = round(time.perf_counter() - start, 2)
                values = (options.task, contender, seed, round(accuracy, 6), round(loss, 6), seconds)
                writer.writerow(dict(zip(COLUMNS, values, strict=True)))
                output.flush()
                print(*values, flush=True)
    print(report(list(csv.DictReader(file.open(encoding="utf-8"))), options.task))


if __name__ == "__main__":
    main()
