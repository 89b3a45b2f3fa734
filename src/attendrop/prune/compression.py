"""Compresses an encoder step by step: choose an edit, fade it in, distil; at the end distil once more.

    stage 0      the learning rate, by a short search
    stage 1 …    one edit: a longer tail, constant attention or a block less (choice.py), faded in (fading.py) and
                 trained (distillation.py); then the latency is measured, and the score
    last stage   the model of the last stage that is good enough is trained with a falling learning rate

Every stage begins from what the one before has written, so that a run that was killed goes on where it was.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import UserError
from ..utils.checks import check_choice, check_number, check_whole
from ..utils.files import load_json, whole_folder, write_json
from .choice import CHOICES, WAYS, Chooser, Score, fastest_plan, ways_of
from .criteria import Gate
from .distillation import Batch, Teacher, distil, divergence_of
from .fading import Fading
from .layer_plan import Edit, LayerPlan, apply_plan, plan_of, remaining_layers, restore
from .measure import time_in_turns
from .surgery import encoder_layers
from .tail import encoder_blocks, head_reads

Watch = Callable[[str, int, int], None]  # what is done, steps that are done, and all
RATES = (1.0, 2.0, 4.0)  # times the learning rate of fine-tuning, in the short search
SEARCH_STEPS = 40
STATE, _MODEL = "state.json", "model"


@dataclass(frozen=True)
class Stage:
    """The model after a stage.

    Attributes:
        plan: Its plan of layers.
        edit: The last edit, in words.
        milliseconds: Shape of the inputs -> the time of a forward.
        stock: Shape of the inputs -> the time of the uncompressed model, measured in turns with it.
        divergence: How far the outputs on the held-out batches are from the teacher's.
        score: The score on the held-out examples; None without a score.
    """

    plan: LayerPlan
    edit: str
    milliseconds: dict[str, float]
    stock: dict[str, float]
    divergence: float
    score: float | None = None

    @property
    def speedup(self) -> float:
        """The smallest ratio of the times over all shapes."""
        return min(self.stock[shape] / time for shape, time in self.milliseconds.items())


@dataclass
class Compressed:
    """The result of a compression.

    Attributes:
        model: The compressed model, in eval mode.
        stages: The uncompressed model with its exact tail, the model after each edit, and the final one.
        learning_rate: The learning rate that was chosen.
        reached: Whether the target or the count was reached.
    """

    model: Any
    stages: list[Stage]
    learning_rate: float
    reached: bool = True

    @property
    def plan(self) -> LayerPlan:
        """The plan of the compressed model."""
        return self.stages[-1].plan

    @property
    def speedup(self) -> float:
        """How many times faster the compressed model is, on the shape where this is the least."""
        return self.stages[-1].speedup


class UnreachableError(ValueError):
    """No allowed way makes the model as fast as was asked.

    Attributes:
        best: The best speed-up that was measured.
    """

    def __init__(self, message: str, best: float) -> None:
        super().__init__(message)
        self.best = best


@dataclass
class Compression:
    """The settings of a compression; see `compress`."""

    batches: Sequence[Batch]
    held_out: Sequence[Batch]
    shapes: Mapping[str, Batch]
    target: float | None = None
    tolerance: float | None = None
    count: int | None = None
    score: Score | None = None
    ways: Sequence[str] | None = None
    by: str = "top"
    generator: Gate | None = None
    threshold: float | None = None
    stage_epochs: float = 1.0
    final_epochs: float = 3.0
    learning_rate: float | None = None
    base_rate: float = 2e-5
    targets: Sequence[Tensor] | None = None
    folder: Path | None = None
    seed: int = 0
    rounds: int = 9
    watch: Watch = lambda what, done, total: None
    told: Callable[[Stage], None] = lambda stage: None
    best_effort: bool = False
    stages: list[Stage] = field(default_factory=list)

    def run(self, model: Any) -> Compressed:
        """Compress a model, which is not changed.

        Args:
            model: The model.
        """
        self._check(model)
        teacher = Teacher.of(copy.deepcopy(model), self.targets).fitted(self.batches[:8])
        stock = teacher.model
        ways = [way for way in self._ways if way != "tail" or head_reads(model) is not None]
        savings = self._savings(stock, ways)
        chooser = Chooser(ways, self.by, teacher, self.held_out, savings, self.generator, self.threshold)
        student, rate = self._begin(model, teacher, chooser)
        while not self._is_enough():
            edit = chooser.next(student)
            if edit is None:
                break
            self._train_stage(student, teacher, edit, rate)
            self._note(student, stock, str(edit), teacher)
            self._save(student, rate)
        student, is_last = self._best(student)
        steps = self._steps(self.final_epochs)
        if steps and not is_last and plan_of(student) != LayerPlan():
            what = "final training"
            distil(
                student, teacher, self.batches, steps=steps, learning_rate=rate, seed=self.seed + 10_000, decays=True,
                watch=lambda done, total: self.watch(what, done, total),
            )  # fmt: skip
        apply_plan(student, plan_of(student))
        self._note(student, stock, "final", teacher)
        is_fast = self.target is None or self.stages[-2].speedup >= self.target
        reached = is_fast and (self.count is None or len(self.stages) > self.count + 1)
        return Compressed(student.eval(), self.stages, rate, reached)

    # ---- before the first stage --------------------------------------------------------------------------------------

    @property
    def _ways(self) -> tuple[str, ...]:
        return ways_of(self.by) if self.ways is None else tuple(self.ways)

    def _check(self, model: Any) -> None:
        if [self.target, self.tolerance, self.count].count(None) != 2:
            raise ValueError(
                "give one of target, a speed-up; tolerance, an allowed loss of the score; and count, a number of edits."
            )
        if self.count is not None:
            check_whole("count", self.count, 1)
        if self.threshold is not None and self.by != "gate":
            raise ValueError(f"threshold is {self.threshold:g} and by is {self.by!r}; a threshold is for by='gate'.")
        if self.threshold is not None:
            check_number("threshold", self.threshold, 0, 1)
        if self.target is not None and not 1 < self.target <= 100:
            raise ValueError(f"target is {self.target:g}; it must be above 1 and at most 100, such as 2 for 2×.")
        if self.tolerance is not None and not 0 <= self.tolerance < 1:
            raise ValueError(f"tolerance is {self.tolerance:g}; it must be at least 0 and below 1, such as 0.01.")
        if self.tolerance is not None and self.score is None:
            raise ValueError("tolerance needs score, a function of the model.")
        for way in self._ways:
            check_choice("ways", way, WAYS)
        check_choice("by", self.by, CHOICES)
        if not self.batches or not self.held_out:
            raise ValueError("batches and held_out must each have at least one batch.")
        if plan_of(model) != LayerPlan():
            raise ValueError(f"the model is compressed already ({plan_of(model)}); begin with the uncompressed one.")
        config = model.config
        if getattr(config, "is_encoder_decoder", False) or not encoder_layers(model):
            raise ValueError(f"{type(model).__name__} has a decoder; only encoders can be compressed.")
        encoder_blocks(model)

    def _savings(self, stock: Any, ways: Sequence[str]) -> dict[str, float]:
        """Return what one edit of each way saves, and check that the target can be reached at all."""
        layers = remaining_layers(stock.config, ())
        plans = {
            "tail": LayerPlan(tail=1), "constant": LayerPlan(constant=(layers[0],)),
            "remove": LayerPlan(removed=(layers[0],)),
        }  # fmt: skip
        models = {"stock": stock} | {way: _planned(stock, plans[way], is_final=False) for way in ways}
        if self.target is not None:
            models["fastest"] = _planned(stock, fastest_plan(stock, ways))
        times = {shape: time_in_turns(models, batch, self.rounds) for shape, batch in self.shapes.items()}
        if self.target is not None:
            best = min(of["stock"] / of["fastest"] for of in times.values())
            if best < self.target and not self.best_effort:
                why = (
                    ""
                    if "tail" in ways or "tail" not in self._ways
                    else (", because the head reads every token, for which there is only constant attention")
                )
                raise UnreachableError(
                    f"target is {self.target:g}×, and the fastest that {' and '.join(ways)} can be on this machine is "
                    f"{best:.2f}×{why}.",
                    best,
                )
        last = list(times.values())[-1]
        return {way: last["stock"] - last[way] for way in ways}

    def _begin(self, model: Any, teacher: Teacher, chooser: Chooser) -> tuple[Any, float]:
        """Return the model of the last stage that was written, or a new one, and the learning rate."""
        if self.folder is not None and (path := self.folder / STATE).is_file():
            state = load_json(path)
            self.stages = [_stage(fields) for fields in state["stages"]]
            return self._read(model, len(self.stages) - 1), state["learning_rate"]
        student = copy.deepcopy(model)
        self._note(_planned(student, LayerPlan()), teacher.model, "exact tail", teacher)
        rate = self.learning_rate or self._search(student, teacher, chooser)
        self._save(student, rate)
        return student, rate

    def _search(self, model: Any, teacher: Teacher, chooser: Chooser) -> float:
        """Return the learning rate with which the first edit comes nearest to the teacher in a few steps."""
        edit = chooser.next(model)
        steps = min(SEARCH_STEPS, self._steps(self.stage_epochs))
        if edit is None or not steps:
            return self.base_rate
        results = {}
        for factor in RATES:
            rate, student = factor * self.base_rate, copy.deepcopy(model)
            self._train(student, teacher, edit, rate, steps, f"learning rate {rate:g}")
            results[rate] = divergence_of(student, teacher, self.held_out)
        return min(results, key=lambda rate: results[rate])

    # ---- stages ------------------------------------------------------------------------------------------------------

    def _steps(self, epochs: float) -> int:
        return round(epochs * len(self.batches))

    def _train_stage(self, student: Any, teacher: Teacher, edit: Edit, rate: float) -> None:
        self._train(student, teacher, edit, rate, self._steps(self.stage_epochs), str(edit))

    def _train(self, student: Any, teacher: Teacher, edit: Edit, rate: float, steps: int, what: str) -> None:
        """Fade an edit in over the first half of the steps, make it, and train on; in place."""
        number, plan = len(self.stages), plan_of(student)
        position = remaining_layers(student.config, plan.removed).index(edit.layer)
        first = steps // 2
        layer, fading = encoder_layers(student)[position], Fading()
        if edit.way == "remove":
            context: Any = fading.block(encoder_blocks(student)[position][1])
        elif layer.is_pruned:
            context, first = nullcontext(), 0  # of a longer tail: its attention is constant already
        else:
            context = fading.attention(layer.module, layer.known_layout())
        parts = ((first, fading, context), (steps - first, None, nullcontext()))
        for part, (count, fades, around) in enumerate(parts):
            if part:
                apply_plan(student, plan.with_edit(edit), is_final=False)
            done = first * part
            with around:
                distil(
                    student, teacher, self.batches, steps=count, learning_rate=rate, seed=self.seed + 2 * number + part,
                    fading=fades, watch=self._from(what, done, steps),
                )  # fmt: skip

    def _from(self, what: str, done: int, steps: int) -> Callable[[int, int], None]:
        return lambda more, total: self.watch(what, done + more, steps)

    def _note(self, student: Any, stock: Any, what: str, teacher: Teacher) -> None:
        """Measure a model and add it to the stages."""
        models = {"stock": stock, "student": student.eval()}
        times = {shape: time_in_turns(models, batch, self.rounds) for shape, batch in self.shapes.items()}
        self.stages.append(
            Stage(
                plan_of(student), what, {shape: of["student"] for shape, of in times.items()},
                {shape: of["stock"] for shape, of in times.items()}, divergence_of(student, teacher, self.held_out),
                None if self.score is None else self.score(student),
            )
        )  # fmt: skip
        self.told(self.stages[-1])

    def _loss(self, stage: Stage) -> float:
        """Return what a stage has lost of the score of the uncompressed model."""
        assert stage.score is not None
        assert self.stages[0].score is not None
        return self.stages[0].score - stage.score

    def _is_enough(self) -> bool:
        if self.target is not None:
            return self.stages[-1].speedup >= self.target
        if self.count is not None:
            return len(self.stages) > self.count
        assert self.tolerance is not None
        lost = [self._loss(stage) > self.tolerance for stage in self.stages[-2:]]
        return len(lost) == 2 and all(lost)  # one bad score may be chance

    def _best(self, student: Any) -> tuple[Any, bool]:
        """Return the model of the last stage within the tolerance, and whether it is that of no edit."""
        if self.tolerance is None:
            return student, False
        good = max(n for n, stage in enumerate(self.stages) if self._loss(stage) <= self.tolerance)
        if good < len(self.stages) - 1:
            student = self._read(student, good)
        return student, good == 0

    # ---- what is written ---------------------------------------------------------------------------------------------

    def _save(self, student: Any, rate: float) -> None:
        """Write the model and the state after a stage; without a folder the model is kept in memory."""
        number = len(self.stages) - 1
        if self.folder is None:
            self._kept[number] = copy.deepcopy(student)
            return
        with whole_folder(self.folder / f"{_MODEL}-{number}", is_stale=lambda name: True) as draft:
            student.save_pretrained(draft)
        write_json(self.folder / STATE, {"learning_rate": rate, "stages": [asdict(stage) for stage in self.stages]})
        if self.tolerance is None and number:  # only the last one is needed
            shutil.rmtree(self.folder / f"{_MODEL}-{number - 1}", ignore_errors=True)

    def _read(self, like: Any, number: int) -> Any:
        if self.folder is None:
            return self._kept[number]
        place = self.folder / f"{_MODEL}-{number}"
        try:
            model = type(like).from_pretrained(place, use_safetensors=True).to(like.device)
        except (OSError, ValueError) as error:
            raise UserError(f"{str(place)!r} cannot be loaded ({error}); delete {str(self.folder)!r}.") from None
        restore(model)
        return model

    def __post_init__(self) -> None:
        self._kept: dict[int, Any] = {}


def _planned(model: Any, plan: LayerPlan, is_final: bool = True) -> Any:
    planned = copy.deepcopy(model)
    apply_plan(planned, plan, is_final=is_final)
    return planned.eval()


def _stage(fields: Mapping[str, Any]) -> Stage:
    plan = fields["plan"]
    return Stage(**{**fields, "plan": LayerPlan(plan["tail"], tuple(plan["constant"]), tuple(plan["removed"]))})


def compress(model: Any, batches: Sequence[Batch], held_out: Sequence[Batch], **settings: Any) -> Compressed:
    """Compress an encoder with a head until it is as fast as asked, or as long as its score stays.

    The model is not changed. With `folder`, a call that was killed goes on where it was.

    Args:
        model: A transformers model of texts with a head, uncompressed.
        batches: The batches to train on, as the model takes them; labels are not read. Every batch is one step.
        held_out: Batches on which the divergence from the uncompressed model is measured, and by which layers are
            chosen; with labels for `by="gradient"`.
        **settings: `target`, a speed-up such as 2, or `tolerance`, a loss of the score such as 0.01 with `score`, a
            function of the model (greater is better), or `count`, a number of edits; `shapes`, name -> inputs to
            measure the latency on, by default the first held-out batch and its first example; `ways`, of "tail",
            "constant" and "remove", those to use first in front; `by`, "top", "greedy", "similarity", "gradient" or
            "gate" with `generator` and `threshold`, a drop probability up to which layers keep their attention;
            `stage_epochs` and `final_epochs`; `learning_rate`, None = a short search around `base_rate`; `targets`, the
            outputs to learn for each batch, such as those of an ensemble; `folder` for the stages; `seed`; `rounds` of
            a measurement; `watch` and `told`, called after each step and stage; `best_effort`, to go as far as the ways
            allow where the target is beyond them.

    Returns:
        The compressed model and its stages.

    Raises:
        UnreachableError: No allowed way is fast enough.

    Example:
        ```python
        compressed = prune.compress(model, batches, held_out, target=2)
        prune.save(compressed.model, "fast")
        ```
    """
    if "shapes" not in settings and held_out:
        whole = {name: x.to(model.device) for name, x in held_out[0].items() if isinstance(x, Tensor)}
        whole = {name: x for name, x in whole.items() if name != "labels"}
        one = {name: x[:1] for name, x in whole.items()}
        settings["shapes"] = {_shape_of(each): each for each in (one, whole)}
    settings["folder"] = Path(settings["folder"]) if settings.get("folder") is not None else None
    return Compression(batches, held_out, **settings).run(model)


def _shape_of(batch: Batch) -> str:
    return " × ".join(map(str, next(iter(batch.values())).shape))
