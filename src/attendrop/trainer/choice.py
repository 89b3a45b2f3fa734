"""A coefficient of the evaluated weights that a Trainer chooses on its development set (`ChoosesOnDevelopment`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..core.capabilities import ChoosesOnDevelopment
from ..core.trainer_protocol import TrainerProtocol
from ..random import all_preserved

Evaluate = Callable[..., dict[str, float]]

_CHOSEN = "/chosen"


class Choice:
    """Chooses for the one method of a Trainer that has something to choose."""

    def __init__(self, trainer: TrainerProtocol) -> None:
        self._trainer = trainer
        self._step = -1  # after which the last choice was made

    @property
    def _method(self) -> ChoosesOnDevelopment | None:
        methods = (m for m in self._trainer.regularizers if isinstance(m, ChoosesOnDevelopment))
        return next((method for method in methods if method.choices), None)

    def begin(self) -> None:
        """Call this when training begins. Raises a `ValueError` if there is no development set to choose on."""
        self._step = -1
        data = self._trainer.eval_dataset
        if self._method is not None and (data is None or isinstance(data, Mapping) or not len(data)):
            raise ValueError(
                f"eval_dataset is {type(data).__name__}, and {type(self._method).__name__} chooses a coefficient on "
                "it; pass one data set with examples, or set the coefficient to a number."
            )

    def make(self, evaluate: Evaluate) -> None:
        """Choose for the current weights, unless that has been done.

        Args:
            evaluate: evaluates the model with its evaluated weights on the development set; takes `metric_key_prefix`.
        """
        method, step = self._method, self._trainer.state.global_step
        if method is None or step == self._step:
            return
        self._step = step
        scores: dict[float, float] = {}
        for value in method.choices:
            method.choose(value)
            prefix = f"eval_{method.name}_{value:g}"
            # Training continues as it would without these evaluations.
            with all_preserved(self._trainer.args.device), self._without_callbacks():
                scores[value] = self._score(evaluate(metric_key_prefix=prefix), prefix)
        best = max(scores, key=lambda value: scores[value])  # of equal scores the first
        method.choose(best)
        self._trainer.log({f"{method.name}{_CHOSEN}": best})

    @contextmanager
    def _without_callbacks(self) -> Iterator[None]:
        """Log evaluations in the block, but hide them from callbacks, which expect those of the current weights."""
        handler = self._trainer.callback_handler
        callbacks, handler.callbacks = handler.callbacks, []
        try:
            yield
        finally:
            handler.callbacks = callbacks

    def _score(self, metrics: Mapping[str, float], prefix: str) -> float:
        """Return the score that decides, higher: better."""
        args = self._trainer.args
        name = (args.metric_for_best_model or "loss").removeprefix("eval_")
        is_higher_better = args.metric_for_best_model is not None and args.greater_is_better
        if f"{prefix}_{name}" not in metrics:
            raise ValueError(
                f"metric_for_best_model is {args.metric_for_best_model!r}, and an evaluation has only "
                f"{', '.join(key.removeprefix(f'{prefix}_') for key in metrics)}."
            )
        score = metrics[f"{prefix}_{name}"]
        return score if is_higher_better else -score


def chosen_at(history: Iterable[Mapping[str, Any]], at: str, value: Any) -> dict[str, float]:
    """Return the choices that methods made at a point of training, by the names of the methods.

    Args:
        history: the Trainer's `log_history`.
        at: "step" or "epoch".
        value: the step or the epoch.
    """
    entries = (entry for entry in history if entry.get(at) == value)
    return {name.removesuffix(_CHOSEN): chosen for e in entries for name, chosen in e.items() if name.endswith(_CHOSEN)}
