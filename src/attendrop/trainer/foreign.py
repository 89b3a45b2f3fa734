"""Trainers of other libraries: TRL, sentence-transformers and setfit. Nothing else in the package names them.

A trainer is recognised by the names of its classes, so that none of these libraries is imported.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import Trainer
from transformers.utils import logging

from ..core.regularizer import Regularizer
from ..core.trainer_protocol import TrainerProtocol
from ..model.sites import transformers_inside, unwrapped

logger = logging.get_logger(__name__)

# The oldest versions with which the tests pass.
OLDEST = {"trl": "1.16", "sentence_transformers": "6.2", "setfit": "1.2"}

_DISTILLATION = re.compile("Distillation|GKD|GOLD|SDFT|OPD")

ComputeLoss = Callable[..., Any]


class Adaptation:
    """The mixin's adapter for trainers of another library. This base is for transformers' own.

    Args:
        trainer: the trainer.
    """

    calls_model = False  # whether the loss calls the model by itself, maybe several times

    def __init__(self, trainer: TrainerProtocol) -> None:
        self.trainer = trainer

    @property
    def packs_examples(self) -> bool:
        """Whether one row of a batch may hold several examples."""
        return False

    def check(self) -> None:
        """Raise a `ValueError` for what cannot work, before training starts."""

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Keep computations in the block out of what the trainer counts and logs."""
        yield

    def with_outputs(
        self, compute_loss: ComputeLoss, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Any]:
        """Return the loss and the outputs of the tracked pass, which carry a gradient."""
        return compute_loss(model, inputs, True, *args, **kwargs)


class _OfTRL(Adaptation):
    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        trainer: Any = self.trainer
        metrics, tokens = trainer._metrics, trainer._total_train_tokens
        trainer._metrics = {mode: type(values)(values.default_factory) for mode, values in metrics.items()}
        try:
            yield
        finally:
            trainer._metrics, trainer._total_train_tokens = metrics, tokens


class SupervisedFineTuning(_OfTRL):
    """TRL's SFTTrainer. Its loss comes from a fused head, which computes no logits."""

    @property
    def packs_examples(self) -> bool:
        return bool(getattr(self.trainer, "padding_free", False) or getattr(self.trainer.args, "packing", False))

    def with_outputs(
        self, compute_loss: ComputeLoss, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Any]:
        """Return the trainer's own loss, and logits of the same pass: the model's own head on its last hidden states.

        With `return_outputs=True` the trainer would compute logits in a second pass, without a gradient.
        """
        inner = unwrapped(model)
        states: list[Any] = []
        hook = inner.base_model.register_forward_hook(lambda module, args, result: states.append(result))
        try:
            loss = compute_loss(model, inputs, False, *args, **kwargs)
        finally:
            hook.remove()
        with _returning(inner.base_model, states[0]):
            outputs = inner(**{name: x for name, x in inputs.items() if name != "labels"})
        is_likelihood = self.trainer.args.loss_type == "nll" and not self.trainer.args.label_smoothing_factor
        if is_likelihood and self.trainer.compute_loss_func is None:
            outputs["loss"] = loss  # the model's own loss, for methods that replace a part of it
        return loss, outputs


@contextmanager
def _returning(module: nn.Module, result: Any) -> Iterator[None]:
    """Let calls of the module in the block return `result`."""
    own = vars(module).get("forward")
    module.forward = lambda *args, **kwargs: result
    try:
        yield
    finally:
        if own is None:
            del module.forward
        else:
            module.forward = own


class RewardModelling(_OfTRL):
    """TRL's RewardTrainer: the loss compares the scores of two answers."""

    calls_model = True

    def check(self) -> None:
        logger.warning_once(
            "RewardTrainer learns from which of two answers is better, and a regulariser adds noise to both scores; "
            "compare its accuracy on held-out preferences with that of a plain run."
        )


class SentenceTransformers(Adaptation):
    """The trainers of sentence-transformers: a loss module calls the model on the columns of the data set."""

    calls_model = True

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        trainer: Any = self.trainer
        components = trainer.accum_loss_components
        trainer.accum_loss_components = {kind: dict(values) for kind, values in components.items()}
        try:
            yield
        finally:
            trainer.accum_loss_components = components

    def check(self) -> None:
        planners = [type(r).__name__ for r in self.trainer.regularizers if type(r).plan is not Regularizer.plan]
        count = len(transformers_inside(self.trainer.model))
        if count != 1:
            raise ValueError(
                f"{type(self.trainer.model).__name__} holds {count} transformers models, and one is needed to be "
                "regularised (routers and models without a transformer are not supported)."
            )
        if not planners:
            return
        losses: Any = getattr(self.trainer, "loss", None)
        for loss in losses.values() if isinstance(losses, Mapping) else [losses]:
            cached = _gradient_cache_in(loss)
            if cached is not None:
                raise ValueError(
                    f"{cached} runs the model twice on each part of a batch (a gradient cache), and {planners[0]} "
                    f"would change the two passes differently; use {cached.replace('Cached', '', 1)}."
                )


def _gradient_cache_in(loss: Any) -> str | None:
    """Return the name of the loss inside of `loss` that has a gradient cache; None where there is none."""
    if not isinstance(loss, nn.Module):
        return None
    for module in loss.modules():
        if any(cls.__name__ == "CachedLossMixin" for cls in type(module).__mro__):
            return type(module).__name__
    return None


def adaptation_for(trainer_class: type) -> type[Adaptation]:
    """Return the adapter of the mixin for this class of trainers.

    Args:
        trainer_class: a subclass of `transformers.Trainer`.

    Raises:
        ValueError: it cannot be regularised, or its library is too old.
    """
    name = trainer_class.__name__
    if not issubclass(trainer_class, Trainer):
        raise ValueError(f"{name} is not a subclass of transformers.Trainer, so that it cannot be regularised.")
    bases = _names(trainer_class)
    libraries = [library for library in OLDEST if any(library == module for module, _ in bases)]
    for library in libraries:
        check_version(library)
    if not libraries:
        return Adaptation
    if "trl" not in libraries:
        return SentenceTransformers
    known = {"SFTTrainer": SupervisedFineTuning, "RewardTrainer": RewardModelling}
    nearest = next(cls for module, cls in bases if module == "trl")
    if nearest in known:
        return known[nearest]
    raise ValueError(_reason_against(nearest))


def _names(cls: type) -> list[tuple[str, str]]:
    """Return the library and the name of the class and of each of its bases."""
    return [(base.__module__.split(".")[0], base.__name__) for base in cls.__mro__]


def trains_sentence_transformer(trainer_class: type) -> bool:
    """Return whether it is the Trainer of setfit, which is no Trainer of transformers but holds one: `st_trainer`."""
    return ("setfit", "Trainer") in _names(trainer_class)


def with_regularized_body(trainer_class: type, regularized: Callable[[type], Any]) -> type:
    """Return the Trainer of setfit, whose embedding phase is regularised and can be resumed.

    Its head is trained as before.

    Args:
        trainer_class: setfit's Trainer or a subclass.
        regularized: makes a trainer of sentence-transformers a regularised one.
    """
    check_version("setfit")
    base: Any = trainer_class

    def __init__(
        self: Any,
        *args: Any,
        regularizers: Any = (),
        step: str | None = None,
        check_finite: bool | None = None,
        strict_resume: bool = False,
        **kwargs: Any,
    ) -> None:
        base.__init__(self, *args, **kwargs)
        plain = self.st_trainer
        self.st_trainer = regularized(type(plain))(
            setfit_model=self.model,
            setfit_args=self.args,
            callbacks=[],
            regularizers=regularizers,
            step=step,
            check_finite=check_finite,
            strict_resume=strict_resume,
        )
        self.st_trainer.callback_handler.callbacks = plain.callback_handler.callbacks

    def train(
        self: Any, args: Any = None, trial: Any = None, resume_from_checkpoint: str | bool | None = None, **kwargs: Any
    ) -> None:
        # setfit trains the embeddings by a call of `st_trainer.train` without arguments, and cannot resume by itself.
        self.st_trainer.train = partial(self.st_trainer.train, resume_from_checkpoint=resume_from_checkpoint)
        try:
            base.train(self, args, trial, **kwargs)
        finally:
            del self.st_trainer.train

    return type(f"Regularized{trainer_class.__name__}", (trainer_class,), {"__init__": __init__, "train": train})


def _reason_against(name: str) -> str:
    if _DISTILLATION.search(name):
        return (
            f"{name} compares log-probabilities with those of a teacher, and noise in them is not what the student "
            "should learn; it cannot be regularised."
        )
    return (
        f"{name} compares log-probabilities of whole answers with each other or with those of other weights, and noise "
        "in them changes the preference itself (TRL turns dropout off for this reason); it cannot be regularised, but "
        "the SFTTrainer before it can."
    )


def check_version(library: str) -> None:
    """Raise a `ValueError` if the installed version of the library is too old."""
    package = library.replace("_", "-")
    installed, oldest = importlib.metadata.version(package), OLDEST[library]
    numbers = [int(number) for number in re.findall(r"\d+", installed)[:2]]
    if numbers < [int(number) for number in oldest.split(".")]:
        raise ValueError(
            f"{package} {installed} is installed, and its trainers can be regularised from {oldest} on; run "
            f"pip install -U {package}."
        )
