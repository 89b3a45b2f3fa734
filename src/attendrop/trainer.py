"""The Trainer that users know, with one more argument.

    trainer = RegularizedTrainer(model=model, args=args, train_dataset=train, eval_dataset=dev,
                                 regularizers=[ADDrop(p=0.3, q=0.3)])

`regularized(TrainerClass)` does the same for Seq2SeqTrainer, TRL's SFTTrainer, or a subclass of one's own.
"""

from __future__ import annotations

import functools
import json
import math
import random as python_random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback
from transformers.utils import logging

from . import __version__
from .engine import Engine, check_regularizers, refuse_reentrant
from .random import preserved
from .regularizer import CONFIG_FILE, Regularizer, save_regularizers
from .schedule import Progress

logger = logging.get_logger(__name__)


class RegularizerMixin:
    """Put before a Trainer in the bases of a class: adds `regularizers=[...]`."""

    def __init__(self: Any, *args: Any, regularizers: Sequence[Regularizer] = (), **kwargs: Any) -> None:
        check_regularizers(regularizers)
        self.regularizers = list(regularizers)
        self.engine = None
        super().__init__(*args, **kwargs)
        self._check_arguments()
        if self.regularizers and self.model is not None:
            # What is wrong with the model is said now, not when training starts.
            self._make_engine(self.model, epochs=None).close()

    # ---- checks ------------------------------------------------------------------------------------------------

    def _check_arguments(self: Any) -> None:
        if not self.regularizers:
            return
        if self.args.n_gpu > 1:
            raise ValueError(
                f"args.n_gpu is {self.args.n_gpu}, for which the Trainer uses DataParallel, which cannot be "
                "regularised; start one process for each GPU with `accelerate launch` or `torchrun`."
            )
        if self.args.gradient_checkpointing:
            refuse_reentrant(self.args.gradient_checkpointing_kwargs)
        if getattr(self.args, "disable_dropout", False):
            logger.warning(
                "args.disable_dropout is True: the model's ordinary dropout is off, the regularisers stay on."
            )

    def _check_labels(self: Any) -> None:
        """A batch without labels is refused before training starts, where the data set has an index to look into."""
        if not self.regularizers or not hasattr(self.train_dataset, "__getitem__") or not self.label_names:
            return
        batch = self._example_batch()
        if batch is not None and not any(name in batch for name in self.label_names):
            raise ValueError(
                f"train_dataset gives batches with {', '.join(sorted(batch))} and no label; one of "
                f"{', '.join(self.label_names)} is needed (see TrainingArguments.label_names)."
            )

    def _example_batch(self: Any) -> Mapping[str, Any] | None:
        dataset = self.train_dataset
        if not hasattr(dataset, "__getitem__") or len(dataset) == 0:
            return None
        with _all_random_states_preserved():
            loader = self.get_train_dataloader()
            return loader.collate_fn([loader.dataset[0]])

    # ---- the engine and its place in the loop ------------------------------------------------------------------

    def _make_engine(self: Any, model: nn.Module, epochs: int | None) -> Engine:
        make = functools.partial(
            Engine,
            model,
            self.regularizers,
            epochs=epochs,
            seed=self.args.seed,
            rank=self.args.process_index,
            world=self.args.world_size,
            batch_size=self._train_batch_size,
        )
        try:
            return make()
        except ValueError as error:
            # A model with unusual inputs runs dry on the user's own data.
            if "bind(model, batch=" not in str(error):
                raise
            batch = self._example_batch()
            if batch is None:
                raise
            return make(example=self._prepare_inputs(batch))

    def train(self: Any, *args: Any, **kwargs: Any) -> Any:
        self._check_labels()
        try:
            return super().train(*args, **kwargs)  # type: ignore[misc]
        finally:
            if self.engine is not None:
                self.engine.close()
                self.engine = None
            self.pop_callback(_StepCallback)

    def _prepare_for_training(self: Any, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any) -> Any:
        # Here the model is final (model_init, PEFT, checkpoint weights) and not wrapped yet.
        if self.regularizers:
            if self.engine is not None:  # auto_find_batch_size comes here again
                self.engine.close()
                self.pop_callback(_StepCallback)
            epochs = max(1, math.ceil(self.state.num_train_epochs))
            self.engine = self._make_engine(self.model, epochs)
            self.add_callback(_StepCallback(self))
            self._compare_with_checkpoint(resume_from_checkpoint)
        return super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)  # type: ignore[misc]

    def _progress(self: Any) -> Progress:
        state = self.state
        epochs = max(1, math.ceil(state.num_train_epochs))
        return Progress(state.global_step, state.max_steps, int(state.epoch or 0), epochs)

    def _will_log(self: Any) -> bool:
        """Whether the step that begins now ends with a log line."""
        strategy = str(getattr(self.args.logging_strategy, "value", self.args.logging_strategy))
        done = self.state.global_step + 1
        if strategy == "epoch":
            per_epoch = max(1, self.state.max_steps // max(1, math.ceil(self.state.num_train_epochs)))
            return done % per_epoch == 0
        every = max(1, int(self.state.logging_steps or 1))
        return strategy == "steps" and (done % every == 0 or (self.args.logging_first_step and done == 1))

    def training_step(
        self: Any, model: nn.Module, inputs: Mapping[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        engine: Engine | None = self.engine
        if engine is None:
            return super().training_step(model, inputs, num_items_in_batch)  # type: ignore[misc]
        model.train()
        engine.model = self.model  # under FSDP the Trainer replaces it; elsewhere it is the unwrapped one
        inputs = self._prepare_inputs(inputs)
        if num_items_in_batch is not None:
            num_items_in_batch = num_items_in_batch * engine.views
        # The plan is cleared only after super() has run the backward: checkpointing replays blocks in it.
        with engine.micro_batch(inputs) as views:
            loss = super().training_step(model, views, num_items_in_batch)  # type: ignore[misc]
        if self.accelerator.sync_gradients:
            engine.before_optimizer()
        return loss

    def compute_loss(
        self: Any, model: nn.Module, inputs: Any, return_outputs: bool = False, *args: Any, **kwargs: Any
    ) -> Any:
        # Outputs that nobody reads are not asked for: TRL makes them with a second pass, which draws dropout too.
        if self.engine is None or not self.engine.reads_outputs or not model.training:
            return super().compute_loss(model, inputs, return_outputs, *args, **kwargs)  # type: ignore[misc]
        loss, outputs = super().compute_loss(model, inputs, True, *args, **kwargs)  # type: ignore[misc]
        loss = self.engine.loss(outputs, loss)
        return (loss, outputs) if return_outputs else loss

    # ---- what is logged and saved ------------------------------------------------------------------------------

    def log(self: Any, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if self.engine is not None and "loss" in logs:
            metrics = self.engine.pop_metrics()
            if metrics:
                # Every process logs at the same step, with the same names.
                values = torch.stack(list(metrics.values())).to(self.args.device)
                means = self.accelerator.gather(values.unsqueeze(0)).mean(0)
                logs.update(zip(metrics, (round(v, 6) for v in means.tolist()), strict=True))
        super().log(logs, *args, **kwargs)  # type: ignore[misc]

    def save_model(self: Any, output_dir: str | None = None, *args: Any, **kwargs: Any) -> None:
        super().save_model(output_dir, *args, **kwargs)  # type: ignore[misc]
        if self.regularizers and self.args.should_save:
            folder = Path(output_dir or self.args.output_dir)
            folder.mkdir(parents=True, exist_ok=True)
            save_regularizers(self.regularizers, folder, attendrop=__version__, seed=self.args.seed)

    def _compare_with_checkpoint(self: Any, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        path = Path(checkpoint, CONFIG_FILE)
        before = json.loads(path.read_text(encoding="utf-8"))["regularizers"] if path.is_file() else []
        now = json.loads(json.dumps([regularizer.to_dict() for regularizer in self.regularizers]))
        if before != now:
            logger.warning(f"{checkpoint} was trained with regularizers {before}; training goes on with {now}.")


class _StepCallback(TrainerCallback):
    """Opens and closes the engine's step where the Trainer opens and closes its own."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.engine.begin_step(self.trainer._progress(), self.trainer._will_log())

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.engine.after_optimizer()


@contextmanager
def _all_random_states_preserved() -> Iterator[None]:
    """A collator may draw from any of the three generators."""
    states = python_random.getstate(), np.random.get_state()
    try:
        with preserved():
            yield
    finally:
        python_random.setstate(states[0])
        np.random.set_state(states[1])


@functools.cache
def regularized(trainer_class: type) -> type:
    """`trainer_class` with `regularizers=[...]`."""
    if issubclass(trainer_class, RegularizerMixin):
        return trainer_class
    return type(f"Regularized{trainer_class.__name__}", (RegularizerMixin, trainer_class), {})


class RegularizedTrainer(RegularizerMixin, Trainer):
    """`transformers.Trainer` with `regularizers=[...]`."""
