"""The Trainer that users know, with one more argument.

    trainer = RegularizedTrainer(model=model, args=args, train_dataset=train, eval_dataset=dev,
                                 regularizers=[ADDrop(p=0.3, q=0.3)])

`regularized(TrainerClass)` does the same for Seq2SeqTrainer, TRL's SFTTrainer, or a subclass of one's own.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback
from transformers.utils import logging

from . import __version__
from .capture.steps import Steps
from .core.engine import Engine, check_columns, check_regularizers, refuse_reentrant
from .core.networks import exchange, exchanged
from .core.regularizer import CONFIG_FILE, Regularizer, Surroundings, save_regularizers
from .core.schedule import Progress
from .model.objective import IGNORED
from .model.plan import Plan
from .random import all_preserved, preserved, shared_generator

logger = logging.get_logger(__name__)


class RegularizerMixin:
    """Put before a Trainer in the bases of a class: adds `regularizers=[...]`, and how steps are taken.

    `step` is "eager", "captured" (as CUDA graphs; an error where that is not possible) or "auto": captured where it is
    possible. Without it, `args.step` counts, and else "auto".
    """

    def __init__(
        self: Any, *args: Any, regularizers: Sequence[Regularizer] = (), step: str | None = None, **kwargs: Any
    ) -> None:
        check_regularizers(regularizers)
        self.regularizers = list(regularizers)
        self.engine = None
        self._is_beside = False
        self._held_out = None
        self._collate = None
        self._counts_items = None
        super().__init__(*args, **kwargs)
        self.steps = Steps(self, step or getattr(self.args, "step", None) or "auto")
        self._check_arguments()
        if self.model is not None:
            self.steps.check()
        if self.regularizers and self.model is not None:
            # What is wrong with the model is said now, not when training starts.
            self._make_engine(self.model, epochs=None).close()
        if self._columns and self.train_dataset is not None:
            batch = self._example_batch()
            if batch is not None:
                check_columns(self.regularizers, batch)

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
        with all_preserved():
            loader = self.get_train_dataloader()
            return loader.collate_fn([loader.dataset[0]])

    # ---- columns that methods read -----------------------------------------------------------------------------

    @property
    def _columns(self: Any) -> frozenset[str]:
        return frozenset(name for regularizer in self.regularizers for name in regularizer.columns)

    def _set_signature_columns_if_needed(self: Any) -> None:
        """The model's forward does not name them, and the Trainer would drop them."""
        super()._set_signature_columns_if_needed()  # type: ignore[misc]
        self._signature_columns = list(dict.fromkeys([*self._signature_columns, *sorted(self._columns)]))

    def _prepare_inputs(self: Any, inputs: Any) -> Any:
        """What goes into a model, which must not get them. `training_step` takes them before."""
        prepared = super()._prepare_inputs(inputs)  # type: ignore[misc]
        columns = self._columns
        return {k: v for k, v in prepared.items() if k not in columns} if columns else prepared

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
            surroundings=Surroundings(
                max_grad_norm=self.args.max_grad_norm or 0.0,
                world=self.args.world_size,
                prepare=lambda network: self.accelerator.prepare_model(network, evaluation_mode=True),
                examples=self._draw_examples,
            ),
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
        self._check_networks()
        try:
            with self.steps.running():
                result = super().train(*args, **kwargs)  # type: ignore[misc]
            if self.engine is not None and not self.args.load_best_model_at_end:
                self._keep_the_best_network()
            return result
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
        prepared = super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)  # type: ignore[misc]
        if self.engine is not None:
            self.engine.surroundings.optimizer = getattr(self.optimizer, "optimizer", self.optimizer)
            if resume_from_checkpoint is not None:
                self.engine.load_state(resume_from_checkpoint)
        self.steps.begin(self.engine)
        return prepared

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
        plain_step = super().training_step  # type: ignore[misc]
        if engine is None and not self.steps.are_captured:
            return self.steps.filtered(plain_step(model, inputs, num_items_in_batch))
        if not (model.training and self.model.training):  # an evaluation leaves the wrapper of DDP in train mode
            model.train()
        inputs = super()._prepare_inputs(inputs)  # type: ignore[misc]
        step = None
        if engine is not None:
            engine.model = self.model  # under FSDP the Trainer replaces it; elsewhere it is the unwrapped one
            engine.surroundings.backward = lambda network, batch: self._beside(
                plain_step, network, batch, num_items_in_batch
            )
            step = engine.place(inputs)
        loss = self.steps.take(plain_step, inputs, num_items_in_batch, step)
        if loss is None and (engine is None or step is None):
            loss = plain_step(model, inputs, num_items_in_batch)
        elif loss is None:
            assert engine is not None
            assert step is not None
            items = None if num_items_in_batch is None else num_items_in_batch * engine.views
            # The plan is cleared only after super() has run the backward: checkpointing replays blocks in it.
            with engine.planned(inputs, step) as views:
                loss = plain_step(model, views, items)
        if engine is not None and self.accelerator.sync_gradients:
            engine.before_optimizer()
        return self.steps.filtered(loss)

    def compute_loss(
        self: Any, model: nn.Module, inputs: Any, return_outputs: bool = False, *args: Any, **kwargs: Any
    ) -> Any:
        # Outputs that nobody reads are not asked for: TRL makes them with a second pass, which draws dropout too.
        if self.engine is None or not self.engine.reads_outputs or not model.training or self._is_beside:
            return super().compute_loss(model, inputs, return_outputs, *args, **kwargs)  # type: ignore[misc]
        share = self._share_of_step(super().compute_loss, model, inputs, kwargs.get("num_items_in_batch"))  # type: ignore[misc]
        loss, outputs = super().compute_loss(model, inputs, True, *args, **kwargs)  # type: ignore[misc]
        loss = self.engine.loss(outputs, loss, share)
        return (loss, outputs) if return_outputs else loss

    def _share_of_step(
        self: Any, loss_of: Any, model: nn.Module, inputs: Any, items: Tensor | int | None
    ) -> float | Tensor:
        """The weight of a penalty, a mean over the micro-batch, that makes it count as the loss does.

        The Trainer divides by the items of the whole step and multiplies by the processes. It does so for every model
        whose forward takes **kwargs; many of them do not look at the number and give a mean over the micro-batch. So
        the loss is asked once whether it depends on it.
        """
        processes = self.args.world_size if self.args.average_tokens_across_devices else 1
        is_whole = processes == 1 and self.current_gradient_accumulation_steps == 1
        if is_whole or items is None or getattr(self, "loss_is_scaled_for_ga", None) is False:
            return 1.0
        if self._counts_items is None:
            with preserved(self.args.device), torch.no_grad(), self.engine.seams.applied(Plan()):
                once, twice = (loss_of(model, dict(inputs), num_items_in_batch=n * items) for n in (1, 2))
            self._counts_items = bool(once != twice)
        if not self._counts_items:
            return float(processes)
        # as the Trainer counts them, so that the shares of a step are 1 together
        shifts = getattr(self, "_loss_shifts_labels", False)
        labels = inputs.get("shift_labels", inputs["labels"][..., 1:] if shifts else inputs["labels"])
        return labels.ne(IGNORED).sum() * processes / items

    # ---- networks beside the model -----------------------------------------------------------------------------

    def _check_networks(self: Any) -> None:
        """What methods ask for that train a network of their own."""
        for regularizer in self.regularizers:
            if regularizer.draws_from != "dev":
                continue
            name = type(regularizer).__name__
            if self.eval_dataset is None or isinstance(self.eval_dataset, Mapping) or not len(self.eval_dataset):
                raise ValueError(
                    f"eval_dataset is {type(self.eval_dataset).__name__}, and {name} draws examples from it "
                    "(reward_on='dev'); pass one data set, or reward on 'held_out', 'noisy' or 'cached' examples."
                )
        trains_beside = any(type(r).networks is not Regularizer.networks for r in self.regularizers)
        if trains_beside and (self.args.fp16 or self.is_fsdp_enabled):
            what = "args.fp16 is True" if self.args.fp16 else "args.fsdp is on"
            raise ValueError(f"{what}, which a method that trains two networks does not support; use bf16 or DDP.")
        share = max((r.held_out for r in self.regularizers), default=0.0)
        if share and self._held_out is None:
            order = torch.randperm(
                len(self.train_dataset), generator=shared_generator(self.args.seed, 0, "held-out")
            ).tolist()
            count = max(1, round(share * len(order)))
            self._held_out = torch.utils.data.Subset(self.train_dataset, sorted(order[:count]))
            self.train_dataset = torch.utils.data.Subset(self.train_dataset, sorted(order[count:]))
            logger.info(f"{count} of {len(order)} training examples are held out for rewards.")

    def _draw_examples(self: Any, source: str, count: int, generator: torch.Generator) -> Mapping[str, Any]:
        """A batch of fresh examples, the same on every process."""
        dataset = {"dev": self.eval_dataset, "train": self.train_dataset, "held_out": self._held_out}[source]
        chosen = torch.randperm(len(dataset), generator=generator)[:count].tolist()
        with all_preserved():
            if self._collate is None:
                # Not the loader for evaluation: with persistent workers the Trainer would keep it and evaluate on it.
                # The loader of a `datasets.Dataset` drops columns from the data set and not in its collator.
                self._collate = self._get_collator_with_removed_columns(self.get_test_dataloader(dataset).collate_fn)
            return self._prepare_inputs(self._collate([dataset[i] for i in chosen]))

    def _beside(self: Any, plain_step: Any, network: nn.Module, batch: Mapping[str, Any], num_items: Any) -> Tensor:
        """Forward, loss and backward of another network, as the Trainer does it for the model."""
        self._is_beside = True
        try:
            return plain_step(network, batch, num_items)
        finally:
            self._is_beside = False

    def evaluate(self: Any, *args: Any, **kwargs: Any) -> Any:
        metrics = super().evaluate(*args, **kwargs)  # type: ignore[misc]
        if self.engine is not None and self.is_in_train and "metric_key_prefix" not in kwargs:
            for name, network in self.engine.networks().items():
                with exchanged(self.model, network):
                    super().evaluate(*args, metric_key_prefix=f"eval_{name}", **kwargs)  # type: ignore[misc]
        return metrics

    def _keep_the_best_network(self: Any) -> None:
        """The model that the user gets is the better one on the development set."""
        networks = self.engine.networks()
        if not networks or self.eval_dataset is None:
            return
        metric = self.args.metric_for_best_model or "loss"
        metric = metric if metric.startswith("eval_") else f"eval_{metric}"
        sign = 1 if (self.args.greater_is_better if self.args.metric_for_best_model else False) else -1
        best = sign * super().evaluate()[metric]  # type: ignore[misc]
        for name, network in networks.items():
            with exchanged(self.model, network):
                scores = super().evaluate(metric_key_prefix=f"eval_{name}")  # type: ignore[misc]
            score = sign * scores[metric.replace("eval_", f"eval_{name}_", 1)]
            if score > best:
                best = score
                exchange(self.model, network)
                logger.info(f"the {name} is better on {metric}, and is the model from here on.")

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
        with self.steps.saving():
            super().save_model(output_dir, *args, **kwargs)  # type: ignore[misc]
        if self.regularizers and self.args.should_save:
            folder = Path(output_dir or self.args.output_dir)
            folder.mkdir(parents=True, exist_ok=True)
            save_regularizers(self.regularizers, folder, attendrop=__version__, seed=self.args.seed)
            for regularizer in self.regularizers:
                if regularizer.record():
                    path = folder / f"{regularizer.name}_run.json"
                    path.write_text(json.dumps(regularizer.record(), indent=1) + "\n", encoding="utf-8")

    def _save_checkpoint(self: Any, model: nn.Module, trial: Any) -> None:
        super()._save_checkpoint(model, trial)  # type: ignore[misc]
        if self.engine is not None:
            folder = Path(self._get_output_dir(trial=trial), f"checkpoint-{self.state.global_step}")
            if folder.is_dir():
                self.engine.save_state(folder)

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


@functools.cache
def regularized(trainer_class: type) -> type:
    """`trainer_class` with `regularizers=[...]`."""
    if issubclass(trainer_class, RegularizerMixin):
        return trainer_class
    return type(f"Regularized{trainer_class.__name__}", (RegularizerMixin, trainer_class), {})


class RegularizedTrainer(RegularizerMixin, Trainer):
    """`transformers.Trainer` with `regularizers=[...]`."""
