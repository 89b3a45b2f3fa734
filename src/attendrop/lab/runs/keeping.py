"""Which epoch a run keeps with `--keep-epoch auto`: the last one, unless the best one is significantly better.

The learning rate falls to zero over the whole run, so that the last epoch is the end of the training that was planned.
The best of many scores on few validation examples is good luck for the most part: in 19 runs on 15 data sets with 300
or 1,000 examples it was 0.7 points worse on new examples than the last epoch, on average, and the epoch with the
smallest validation loss 2.0 points. So the best one is kept only where a test on the validation examples says that it
is better:

    right and wrong answers     exact test of McNemar: of the examples that one of the two epochs has right, how many
    numbers for each example    t test of the differences of the examples

two-sided, at 5 % divided by the number of the other epochs (the first step of Holm, which decides about the best one).
The correct answers of both epochs are part of the Trainer's state: a resumed run keeps the same epoch as a whole one.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .best import evaluation_at, score_key

LEVEL = 0.05
_STATE = "attendrop_answers"  # its name in the Trainer's state, beside the states of callbacks

Quality = Callable[[Any], "np.ndarray | None"]


@dataclass(frozen=True)
class Decision:
    """What is kept.

    Attributes:
        keeps_best: Whether the best epoch is kept, and not the last one.
        reason: Why, as the end of a sentence; empty = the best one is kept for its score, as with `best`.
    """

    keeps_best: bool
    reason: str = ""


class Keeping:
    """Remembers how good the answers of the best and of the latest evaluation are, and decides which one is kept.

    Args:
        quality: How good the answer to each example is, of the predictions of an evaluation; None = it is not known.
    """

    def __init__(self, quality: Quality) -> None:
        self._quality = quality
        self._latest: np.ndarray | None = None
        self._last_seen: np.ndarray | None = None

    def see(self, prediction: Any) -> None:
        """Take the predictions of any evaluation. `evaluated` says that it was the model's own.

        Args:
            prediction: What the Trainer gives to `compute_metrics`.
        """
        self._last_seen = self._quality(prediction)

    def evaluated(self) -> None:
        """Note that the last evaluation is that of the model on the validation data."""
        self._latest = self._last_seen

    def remember(self, state: Any, is_best: bool) -> None:
        """Write the latest evaluation into the state of the Trainer.

        Args:
            state: The Trainer's state.
            is_best: Whether its score is the best one so far.
        """
        if self._latest is None:
            state.stateful_callbacks.pop(_STATE, None)
            return
        entry = {"step": state.global_step, **_written(self._latest)}
        stored = state.stateful_callbacks.setdefault(_STATE, {})
        stored["last"] = entry
        if is_best:
            stored["best"] = entry

    @staticmethod
    def decide(state: Any, arguments: Any) -> Decision:
        """Decide at the end of training.

        Args:
            state: The Trainer's state.
            arguments: Its training arguments.
        """
        stored, step = state.stateful_callbacks.get(_STATE, {}), state.global_step
        last, best = (evaluation_at(state.log_history, at) for at in (step, state.best_global_step))
        if last is None or best is None or state.global_step < state.max_steps:
            return Decision(True)  # the end of the schedule was not reached, or not evaluated
        name = score_key(arguments)
        shown = name.removeprefix("eval_")
        if best is last:
            return Decision(False, f"it is the last, and has the best validation {shown}, {last[name]:.4f}")
        if not all(math.isfinite(last.get(key, 0.0)) for key in (name, "eval_loss")):
            return Decision(True, "the last one has diverged")
        known = {at: stored[at] for at in ("best", "last") if at in stored}
        if [entry["step"] for entry in known.values()] != [best["step"], step]:
            return Decision(True)
        others = len({entry["step"] for entry in state.log_history if name in entry and "step" in entry}) - 1
        p = min(1.0, others * p_value(_read(known["best"]), _read(known["last"])))
        test = f"p {_p(p)}, corrected for {others} other epochs"
        if p <= LEVEL:
            return Decision(
                True, f"its validation {shown}, {best[name]:.4f}, is significantly better than {last[name]:.4f} of the "
                f"last one ({test})",
            )  # fmt: skip
        return Decision(
            False, f"it is the last, and its validation {shown}, {last[name]:.4f}, is not significantly worse than the "
            f"best, {best[name]:.4f} of epoch {best['epoch']:.4g} ({test})",
        )  # fmt: skip


def p_value(one: np.ndarray, other: np.ndarray) -> float:
    """Return the two-sided p-value of a paired test; 1 if the first one is not better.

    Args:
        one: How good each answer is: true where it is right, or a number.
        other: The same of another model.
    """
    from scipy import stats

    if one.shape != other.shape:
        return 1.0
    if one.dtype == bool:
        gained, lost = int((one & ~other).sum()), int((other & ~one).sum())
        return float(stats.binomtest(gained, gained + lost).pvalue) if gained > lost else 1.0
    differences = one.astype(float) - other.astype(float)
    if len(differences) < 2 or not differences.mean() > 0:
        return 1.0
    if np.ptp(differences) == 0:
        return 0.0
    return float(stats.ttest_1samp(differences, 0.0).pvalue)


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"= {value:.3f}"


def _written(values: np.ndarray) -> dict[str, Any]:
    """Return an array as JSON: one bit for right or wrong, four bytes for a number."""
    is_bits = values.dtype == bool
    content = np.packbits(values) if is_bits else values.astype("<f4")
    return {"examples": len(values), "bits": is_bits, "values": base64.b64encode(content.tobytes()).decode()}


def _read(entry: Mapping[str, Any]) -> np.ndarray:
    content = base64.b64decode(entry["values"])
    if not entry["bits"]:
        return np.frombuffer(content, "<f4")
    return np.unpackbits(np.frombuffer(content, np.uint8), count=entry["examples"]).astype(bool)
