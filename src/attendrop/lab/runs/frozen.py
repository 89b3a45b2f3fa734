"""A start from the frozen solution: the head begins as the linear model that fits features of the untrained encoder.

The features are the inputs of the last linear layer of the head, whose outputs are the logits, in eval mode.
Fine-tuning then begins near the point where a linear probe ends, and improves the encoder from the first step instead
of adapting it to a random head. Kumar et al. (arXiv 2202.10054) train the head first for the same reason.

    frozen = solve(model, task, prepared, arguments)      # None where the head has no such layer
    frozen.write(frozen.first)                            # the weights of the head are the solution, scaled down
    frozen.write(frozen.solution)                         # the solution itself
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from ...errors import UserError
from ...model.modes import evaluating
from ...model.pooled_config import encodes_apart
from ...model.sites import pretrained_part, unwrapped
from ...random import all_preserved
from .. import tasks
from ..statistics.linear import MOST_CLASSES, Linear, stratified
from ..tasks.findings import plural
from ..tasks.kinds.codec import IGNORED
from ..tasks.kinds.heads import LinearHead
from .settings import RunConfig

if TYPE_CHECKING:
    from datasets import Dataset

Array = np.ndarray
MOST_EXAMPLES = 20_000  # examples, or words of tagging, that the solution is fitted to
RARE = 50  # a tag that the chosen words have less often is taken from all words
BATCH = 32


@dataclass
class Frozen:
    """The linear model of the features of an untrained encoder, and the layer of the model that it fits into.

    Attributes:
        model: The model.
        name: The name of the last linear layer of its head.
        solution: The fitted linear model, in the unit of the labels.
        first: The one with which training starts.
        items: The number of examples, or of words, that it was fitted to.
        fitted_by: Its name in sentences.
        scale: The deviation of the training labels, for a model that scales its outputs; otherwise 1.
        shift: Their mean; otherwise 0.
        validation: The outputs of the solution, one row for each validation example or scored word; None if they were
            not computed.
    """

    model: Any
    name: str
    solution: Linear
    first: Linear
    items: int
    fitted_by: str
    scale: float = 1.0
    shift: float = 0.0
    validation: Array | None = None

    @property
    def sentence(self) -> str:
        """A sentence for the user about a head that starts from it."""
        is_usual = self.fitted_by == LinearHead.fitted_by and len(self.solution.weight) > MOST_CLASSES
        strength = f", of the usual strength, because {len(self.solution.weight):,} classes are too many to choose it"
        return (
            f"the head starts from a {self.fitted_by} on the frozen features of {plural(self.items, 'training item')}, "
            f"not at random{strength if is_usual else ''}"
        )

    @torch.no_grad()
    def write(self, linear: Linear, model: Any = None) -> None:
        """Write a linear model into the head.

        Args:
            linear: The linear model: `solution` or `first`.
            model: Another model with such a head; None = the one whose features were fitted.
        """
        model = self.model if model is None else model
        layer, inner = _layers(model)[self.name], unwrapped(model)
        weight, bias = linear.weight / self.scale, (linear.bias - self.shift) / self.scale
        for tensor, values in ((layer.weight, weight), (layer.bias, bias)):
            tensor.copy_(torch.as_tensor(np.ascontiguousarray(values)))
        if hasattr(inner, "output_scale"):
            inner.output_scale.fill_(self.scale)
            inner.output_shift.fill_(self.shift)


def starts_frozen(config: RunConfig, frozen: Frozen | None) -> bool:
    """Return whether the head of a run starts from the frozen solution.

    Args:
        config: The configuration.
        frozen: The solution; None = there is none for this model and task.
    """
    if config.head_start == "frozen" and frozen is None:
        raise UserError(
            "head_start is 'frozen', and the head of this model and task has no last linear layer with a bias that a "
            "linear model could be; it must be 'auto' or 'random'."
        )
    if frozen is None or config.head_start == "random":
        return False
    return config.head_start == "frozen" or is_new(frozen.model, frozen.name)


def is_new(model: Any, name: str) -> bool:
    """Return whether a layer of the head has no pretrained weights.

    Args:
        model: The model.
        name: The name of the layer.
    """
    return f"{name}.weight" in getattr(unwrapped(model), "new_weights", ())


def depends_on_seed(model: Any, name: str) -> bool:
    """Return whether the inputs of a layer depend on random weights, as with a head that has further layers.

    Args:
        model: The model.
        name: The name of the layer.
    """
    new: frozenset[str] = getattr(unwrapped(model), "new_weights", frozenset())
    return bool(new - {f"{name}.weight", f"{name}.bias", "output_scale", "output_shift"})


def solve(
    model: Any, task: tasks.Task, prepared: tasks.Prepared, arguments: Any, *, with_validation: bool = False
) -> Frozen | None:
    """Fit a linear model to the features of a model; None where its head or the kind of task has no use for one.

    Neither the model nor the random state is changed; the model is moved to the device of the run.

    Args:
        model: The model before training.
        task: The task.
        prepared: The tokenised data.
        arguments: The training arguments, for the device.
        with_validation: Whether the solution's outputs on the validation data are computed.
    """
    linear, train = tasks.kind_of(task).linear, prepared.train
    if linear is None or train is None or len(train) < 2 or "labels" not in train.column_names:
        return None
    origin = move(model, arguments)
    with torch.no_grad(), all_preserved(arguments.device), evaluating(model):
        name = find_layer(model, train, prepared.collator)
        if name is None:
            return None
        read = Reader(model, _layers(model)[name], prepared.collator)
        per_word = tasks.kind_of(task).is_per_word
        features, targets = _words(read, train) if per_word else _examples(read, train, linear)
        if len(targets) < 2:
            return None
        layer = _layers(model)[name]
        is_apart = encodes_apart(unwrapped(model).config)
        fit = functools.partial(fit_pairs, linear) if is_apart else linear.fit
        solution = fit(features, linear.targets(targets), layer.out_features)
        first = solution if is_apart else linear.start(solution, features)
        frozen = Frozen(model, name, solution, first, len(targets), linear.fitted_by)
        if hasattr(unwrapped(model), "output_scale"):
            frozen.scale, frozen.shift = float(np.std(targets)) or 1.0, float(np.mean(targets))
        if with_validation and prepared.validation is not None:
            parts, _ = read(prepared.validation, range(len(prepared.validation)), per_word)
            frozen.validation = solution(np.concatenate(parts))
        _share(frozen, arguments)
    if origin is not None:
        model.to(origin)
    return frozen


def fit_pairs(linear: Any, features: Array, targets: Array, outputs: int) -> Linear:
    """Fit a linear model to features of pairs, `[u, v, |u − v|, u ∗ v]`, that is drawn towards the cosine of u and v.

    A sentence encoder was trained so that the cosine says how similar two texts are, which few examples do not teach
    again. It is the sum of u ∗ v: one more feature, as large as all others together, so that the regularisation hardly
    touches its weight. This is added to the weights of u ∗ v afterwards, and the model has the same features as before.

    Args:
        linear: How the kind of task fits a linear model.
        features: `[N, 4 d]`.
        targets: The gold answer of each row.
        outputs: The number of outputs.
    """
    width = features.shape[1] // 4
    cosine = features[:, -width:].sum(1, keepdims=True, dtype=np.float64)
    spread = float(cosine.std())
    size = float(np.sqrt(features.var(0, dtype=np.float64).sum())) / spread if spread > 1e-6 else 0.0
    fitted: Linear = linear.fit(np.concatenate([features, size * cosine], 1), targets, outputs)
    weight = fitted.weight[:, :-1].copy()
    weight[:, -width:] += size * fitted.weight[:, -1:]
    return dataclasses.replace(fitted, weight=weight)


def move(model: Any, arguments: Any) -> torch.device | None:
    """Move a model to the device of the run. Return where it was, if the Trainer does not expect it there.

    Args:
        model: The model.
        arguments: The training arguments.
    """
    where = next(model.parameters()).device
    if where == arguments.device or getattr(unwrapped(model), "is_quantized", False):
        return None
    model.to(arguments.device)
    return None if arguments.place_model_on_device else where


def _share(frozen: Frozen, arguments: Any) -> None:
    """Give all processes the solution of the first one."""
    if arguments.world_size == 1:
        return
    for linear in {id(one): one for one in (frozen.solution, frozen.first)}.values():
        for name in ("weight", "bias"):
            tensor = torch.as_tensor(getattr(linear, name), dtype=torch.float32, device=arguments.device).contiguous()
            torch.distributed.broadcast(tensor, 0)
            setattr(linear, name, tensor.double().cpu().numpy())


# ---- the layer and its inputs -----------------------------------------------------------------------------------


def _layers(model: Any) -> dict[str, nn.Linear]:
    """Return the linear layers of the head, by name. Of one that PEFT has copied for training, the copy."""
    inside = {id(module) for module in pretrained_part(model).modules()}
    copied = ".modules_to_save.default"
    return {
        name.replace(copied, ""): module
        for name, module in unwrapped(model).named_modules()
        if isinstance(module, nn.Linear) and id(module) not in inside and ".original_module" not in name
    }


def find_layer(model: Any, split: Dataset, collator: Callable[[list[Any]], Any]) -> str | None:
    """Return the name of the layer whose outputs are the logits, up to a scale and a shift; None = there is none.

    Args:
        model: The model.
        split: A tokenised split, whose first examples are shown to the model.
        collator: Makes batches of them.
    """
    outputs: dict[str, Any] = {}
    layers = {name: layer for name, layer in _layers(model).items() if layer.bias is not None}

    def hook(name: str) -> Callable[..., None]:
        return lambda module, inputs, output: outputs.__setitem__(name, output)

    hooks = [layer.register_forward_hook(hook(name)) for name, layer in layers.items()]
    try:
        logits = model(**inputs_of(model, split, range(min(2, len(split))), collator)[0])["logits"]
    finally:
        for one in hooks:
            one.remove()
    inner = unwrapped(model)
    scale, shift = getattr(inner, "output_scale", 1.0), getattr(inner, "output_shift", 0.0)
    for name, output in reversed(outputs.items()):
        if output.shape == logits.shape and torch.equal(output * scale + shift, logits):
            return name
    return None


def inputs_of(
    model: Any, split: Dataset, rows: Any, collator: Callable[[list[Any]], Any]
) -> tuple[dict[str, Any], Any]:
    """Return a batch of examples on the device of the model, and their labels."""
    examples = [{name: value for name, value in split[int(row)].items() if name != "length"} for row in rows]
    batch = dict(collator(examples))
    labels = batch.pop("labels", None)
    parameters = inspect.signature(unwrapped(model).forward).parameters
    device = next(model.parameters()).device
    return {name: x.to(device) for name, x in batch.items() if name in parameters}, labels


@dataclass
class Reader:
    """Computes the inputs of a layer for examples of a split.

    Attributes:
        model: The model, in eval mode.
        layer: The layer.
        collator: Makes batches of encoded examples.
    """

    model: Any
    layer: nn.Module
    collator: Callable[[list[Any]], Any]

    def __call__(self, split: Dataset, rows: Any, per_word: bool = False) -> tuple[list[Array], list[Array]]:
        """Return the features of each example, or those of its scored words, and the labels of these words.

        Args:
            split: The tokenised split.
            rows: The numbers of the examples.
            per_word: Whether the words that are not ignored are read, or one position for each example.
        """
        rows = list(rows)
        lengths = split.with_format("numpy")["length"][:] if "length" in split.column_names else np.zeros(len(split))
        order = sorted(range(len(rows)), key=lambda i: -int(lengths[rows[i]]))
        features: list[Any] = [None] * len(rows)
        labels: list[Any] = [None] * len(rows)
        seen: list[Any] = []
        hook = self.layer.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
        try:
            for start in range(0, len(order), BATCH):
                places = order[start : start + BATCH]
                batch, gold = inputs_of(self.model, split, [rows[i] for i in places], self.collator)
                self.model(**batch)
                values = seen.pop().float().cpu().numpy()
                for number, place in enumerate(places):
                    features[place] = values[number][None]
                    if per_word:
                        is_scored = gold[number].numpy() != IGNORED
                        features[place], labels[place] = values[number][is_scored], gold[number].numpy()[is_scored]
        finally:
            hook.remove()
        return features, labels


def _examples(read: Reader, train: Dataset, linear: Any) -> tuple[Array, Array]:
    targets = linear.targets(train["labels"][:])
    rows = stratified(linear.groups(targets), len(targets), MOST_EXAMPLES)
    return np.concatenate(read(train, rows)[0]), targets[rows]


def _words(read: Reader, train: Dataset) -> tuple[Array, Array]:
    """Return the scored words of random examples, and those with a tag that is rare among them from all examples."""
    tags = [np.array([tag for tag in row if tag != IGNORED], int) for row in train["labels"][:]]
    order = np.random.default_rng(0).permutation(len(tags))
    counts = np.cumsum([len(tags[row]) for row in order])
    whole = set(order[: int(np.searchsorted(counts, MOST_EXAMPLES)) + 1].tolist())
    seen = np.bincount(np.concatenate([tags[row] for row in whole]), minlength=1 + max(max(t, default=0) for t in tags))
    rare = np.flatnonzero(seen < RARE)
    rows = [row for row, of_row in enumerate(tags) if len(of_row) and (row in whole or np.isin(of_row, rare).any())]
    features, labels = read(train, rows, per_word=True)
    kept = [np.full(len(of), True) if row in whole else np.isin(of, rare) for row, of in zip(rows, labels, strict=True)]
    chosen = [values[mask] for values, mask in zip(features, kept, strict=True)]
    return np.concatenate(chosen), np.concatenate([of[mask] for of, mask in zip(labels, kept, strict=True)])
