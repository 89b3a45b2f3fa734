"""One regularised step, for any training loop; no Trainer in sight.

engine = Engine(model, [ADDrop(p=0.3, q=0.3)], epochs=3, steps_per_epoch=len(loader))
for batch in loader:
    with engine.micro_batch(batch) as inputs:
        outputs = model(**inputs)
        engine.loss(outputs).backward()
    engine.before_optimizer()
    optimizer.step()
    engine.after_optimizer()
engine.close()
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ..model.plan import Plan
from ..model.seams import Seams, bind
from ..model.sites import map_shape
from .regularizer import Regularizer, Step, Surroundings
from .schedule import Progress


class Engine:
    """Binds `model` and runs the verbs of `regularizers` at their places in the step.

    Where `epochs` is not known (None), nothing that depends on it is checked. `rank`, `world` and `batch_size` (of one
    process and micro-batch) place each example in the global batch, so that several processes draw what one would.
    """

    def __init__(
        self,
        model: nn.Module,
        regularizers: Sequence[Regularizer],
        *,
        epochs: int | None = 1,
        steps_per_epoch: int = 1,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        batch_size: int | None = None,
        example: Mapping[str, Any] | None = None,
        surroundings: Surroundings | None = None,
    ) -> None:
        self.model = model
        self.regularizers = list(regularizers)
        check_regularizers(self.regularizers)
        self.seams: Seams = bind(model, example)
        try:
            for regularizer in self.regularizers:
                regularizer.reset()
                regularizer.check(model, self.seams, epochs)
            check_checkpointing(model)
        except BaseException:
            self.seams.unbind()
            raise
        self.views = max((regularizer.views for regularizer in self.regularizers), default=1)
        self.columns = frozenset(name for regularizer in self.regularizers for name in regularizer.columns)
        self.reads_outputs = any(type(r).penalty is not Regularizer.penalty for r in self.regularizers)
        self.seed, self.rank, self.world, self.batch_size = seed, rank, world, batch_size
        self.surroundings = surroundings or Surroundings(world=world)
        self._steps_per_epoch = steps_per_epoch
        self._progress = Progress(0, (epochs or 1) * steps_per_epoch, 0, epochs or 1)
        self._step: Step | None = None
        self._micro_batches = 0
        self._metrics: dict[str, list[Tensor]] = {}
        self._is_open = True

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def begin_step(self, progress: Progress | None = None, measure: bool = False) -> None:
        """Opens the optimizer step at `progress` (by default: the next one). `micro_batch` does this by itself."""
        if progress is not None:
            self._progress = progress
        self._step = Step(
            self.model,
            self.seams,
            self._progress,
            seed=self.seed,
            measure=measure,
            around=self.surroundings,
            views=self.views,
            columns=self.columns,
        )
        self._micro_batches = 0
        for regularizer in self.regularizers:
            regularizer.on_step_begin(self._step)

    @contextmanager
    def micro_batch(self, batch: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Plans the pass over `batch` and yields the inputs for it. Forward *and* backward belong inside."""
        step = self.place(batch)
        with self.planned(batch, step) as inputs:
            yield inputs

    @contextmanager
    def planned(self, batch: Mapping[str, Any], step: Step) -> Iterator[dict[str, Any]]:
        """The rest of `micro_batch`, when the batch has its place."""
        self.on_batch(batch, step)
        with self.seams.applied(self.plan(batch, step)):
            yield dict(step.inputs)

    def place(self, batch: Mapping[str, Any]) -> Step:
        """Opens a micro-batch: the step, which knows now where the examples are in the global batch."""
        if not self.model.training:
            raise ValueError(
                f"{self.seams.name} is in eval mode, in which nothing is regularised; call model.train() first."
            )
        if self._step is None:
            self.begin_step()
        assert self._step is not None
        step = self._step
        step.batch_size = _size(batch)
        if self.batch_size is None:
            self.batch_size = step.batch_size
        step.first_position = (self._micro_batches * self.world + self.rank) * self.batch_size
        self._micro_batches += 1
        check_columns(self.regularizers, batch)
        step.inputs = _repeated({name: x for name, x in batch.items() if name not in self.columns}, self.views)
        return step

    def on_batch(self, batch: Mapping[str, Any], step: Step) -> None:
        """All methods meet the batch."""
        for regularizer in self.regularizers:
            regularizer.on_batch(self._for(regularizer, batch), step)

    def _for(self, regularizer: Regularizer, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The batch with the method's own columns and no other's."""
        return {k: value for k, value in batch.items() if k not in self.columns or k in regularizer.columns}

    def plan(self, batch: Mapping[str, Any], step: Step) -> Plan:
        """The plan of all methods for the pass over `batch`."""
        plan = Plan()
        rows, _, _ = map_shape(self.seams.sites[0], batch)
        for regularizer in self.regularizers:
            mine = regularizer.plan(self._for(regularizer, batch), step)
            plan = plan | mine.repeated(self.views, rows)  # each by itself: some are made for all views already
        return plan

    def loss(self, outputs: Any, loss: Tensor | None = None, share: float | Tensor = 1.0) -> Tensor:
        """The loss of the tracked pass with all penalties added.

        `share` is that of this micro-batch in the step, where `loss` is already a share of the step's loss.
        """
        assert self._step is not None, "loss() belongs inside micro_batch()"
        total: Tensor = outputs["loss"] if loss is None else loss
        for regularizer in self.regularizers:
            penalty = regularizer.penalty(outputs, self._step)
            if penalty is None:
                continue
            if total.requires_grad and not penalty.requires_grad:
                raise ValueError(
                    f"{type(regularizer).__name__} adds a penalty on the model's outputs, and the outputs that it got "
                    "carry no gradient (TRL's SFTTrainer makes them in a pass of its own); use RegularizedTrainer."
                )
            total = total + share * penalty
        return total

    def before_optimizer(self) -> None:
        """When all gradients of the step are there, before the optimizer's step."""
        assert self._step is not None, "before_optimizer() comes after micro_batch()"
        for regularizer in self.regularizers:
            regularizer.on_gradients(self._step)

    def after_optimizer(self) -> None:
        """When the optimizer's step is done."""
        assert self._step is not None, "after_optimizer() comes after before_optimizer()"
        for regularizer in self.regularizers:
            regularizer.on_step_end(self._step)
        for name, value in self._step.metrics.items():
            self._metrics.setdefault(name, []).append(value.detach().float())
        self._step = None
        done = self._progress.step + 1
        self._progress = Progress(
            done, self._progress.total_steps, done // self._steps_per_epoch, self._progress.epochs
        )

    def pop_metrics(self) -> dict[str, Tensor]:
        """The mean of what was measured since the last call."""
        found = {name: torch.stack(values).mean() for name, values in self._metrics.items()}
        self._metrics = {}
        return found

    def networks(self) -> dict[str, nn.Module]:
        return {name: network for r in self.regularizers for name, network in r.networks().items()}

    def save_state(self, folder: str | Path) -> None:
        """Writes what a resumed run needs beside the checkpoint's weights; every process does, into the same folder.

        The first process writes everything, the others only what differs from it.
        """
        for regularizer in self.regularizers:
            tensors, values = regularizer.state()
            if tensors or values:
                path = self._state_file(folder, regularizer, self.rank)
                local = regularizer.local_state
                mine = {name: x for name, x in tensors.items() if self.rank == 0 or name.startswith(local)}
                save_file({name: tensor.detach().contiguous().clone() for name, tensor in mine.items()}, path)
                path.with_suffix(".json").write_text(json.dumps(values) + "\n", encoding="utf-8")

    def load_state(self, folder: str | Path) -> None:
        """Takes up what `save_state` wrote."""
        for regularizer in self.regularizers:
            path, mine = (self._state_file(folder, regularizer, rank) for rank in (0, self.rank))
            if path.is_file():
                tensors = load_file(path)
                if mine != path and mine.is_file():
                    shared = {name: x for name, x in tensors.items() if not name.startswith(regularizer.local_state)}
                    path, tensors = mine, shared | load_file(mine)
                regularizer.load_state(tensors, json.loads(path.with_suffix(".json").read_text(encoding="utf-8")))

    @staticmethod
    def _state_file(folder: str | Path, regularizer: Regularizer, rank: int) -> Path:
        return Path(folder, f"{regularizer.name}{f'_rank{rank}' if rank else ''}.safetensors")

    def close(self) -> None:
        """Gives the model back as it was, whatever happened to the step."""
        if not self._is_open:
            return
        self._is_open = False
        with ExitStack() as everything:  # runs to its end and raises then
            everything.callback(self.seams.unbind)
            for regularizer in reversed(self.regularizers):
                everything.callback(regularizer.on_close)


def check_regularizers(regularizers: Sequence[Any]) -> None:
    for regularizer in regularizers:
        if not isinstance(regularizer, Regularizer):
            raise ValueError(
                f"regularizers has {regularizer!r}, which is not a regulariser; it must be an instance such as "
                "ADDrop(p=0.3, q=0.3), or what parse_method('addrop:p=0.3,q=0.3') returns."
            )
    editors = [type(r).__name__ for r in regularizers if r.edits_weights]
    if len(editors) > 1:
        raise ValueError(f"regularizers has {' and '.join(editors)}, which both edit the weights; choose one of them.")
    for one, other in permutations(regularizers, 2):
        reason = one.refuses(other)
        if reason is not None:
            raise ValueError(f"regularizers has {type(one).__name__} and {type(other).__name__}, {reason}")


def check_columns(regularizers: Sequence[Regularizer], batch: Mapping[str, Any]) -> None:
    for regularizer in regularizers:
        for name in regularizer.columns:
            if name not in batch:
                raise ValueError(
                    f"{type(regularizer).__name__} reads the column {name!r}, and the batch has only "
                    f"{', '.join(sorted(map(str, batch)))}; add it to the training set and let the collator pass it on."
                )


def check_checkpointing(model: nn.Module) -> None:
    """Reentrant checkpointing gives no gradients to recorded tensors: refused before it can train wrongly."""
    for module in model.modules():
        function = getattr(module, "_gradient_checkpointing_func", None)
        if getattr(module, "gradient_checkpointing", False) and isinstance(function, partial):
            refuse_reentrant(function.keywords)


def refuse_reentrant(options: Mapping[str, Any] | None) -> None:
    if options and options.get("use_reentrant"):
        raise ValueError(
            "gradient_checkpointing_kwargs has use_reentrant=True, which gives attributions no gradient; it must be "
            "{'use_reentrant': False}."
        )


def _size(batch: Mapping[str, Any]) -> int:
    for value in batch.values():
        if isinstance(value, Tensor) and value.dim() > 0:
            return value.shape[0]
    raise ValueError(
        f"the batch has no tensor with a batch dimension; it has {', '.join(map(str, batch)) or 'nothing'}."
    )


def _repeated(batch: Mapping[str, Any], views: int) -> dict[str, Any]:
    if views == 1:
        return dict(batch)
    size = _size(batch)
    return {
        name: torch.cat([value] * views)
        if isinstance(value, Tensor) and value.dim() > 0 and value.shape[0] == size
        else value
        for name, value in batch.items()
    }
