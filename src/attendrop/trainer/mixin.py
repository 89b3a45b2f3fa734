"""The Trainer that users know, with one more argument.

    trainer = RegularizedTrainer(model=model, args=args, train_dataset=train, eval_dataset=dev,
                                 regularizers=[ADDrop(p=0.3, q=0.3)])

`regularized(TrainerClass)` does the same for other trainers; foreign.py says for which.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback
from transformers.utils import logging

from ..capture.batches import NotesPadding, take_note
from ..capture.step_capture import StepCapture
from ..capture.training import TrainingStep
from ..core.capabilities import columns_of, reads_predictions
from ..core.checks import as_list, check_columns, check_regularizers, refuse_reentrant
from ..core.engine import EagerRunner, Engine
from ..core.regularizer import Regularizer
from ..core.schedule import Progress
from ..core.step import MicroBatch
from ..methods import parse_method
from ..model.objective import IGNORED
from ..model.plan import Plan
from ..random import all_preserved, preserved
from ..utils.deprecation import warn_renamed
from ..utils.distributed import gather_objects
from .captured_loop import CapturedLoop
from .checkpoints import Checkpoints
from .choice import Choice
from .divergence import DivergenceCheck
from .evaluation import Evaluation
from .foreign import adaptation_for, trains_sentence_transformer, with_regularized_body
from .loop import TrainerLoop
from .networks import AuxiliaryNetworks
from .saving import Saving

logger = logging.get_logger(__name__)


class RegularizerMixin(CapturedLoop, Evaluation, Saving):
    """Adds `regularizers=[...]` to a Trainer; comes before the Trainer in the bases of a class.

    Args:
        regularizers: one method or several: instances such as `ADDrop(p=0.3, q=0.3)`, or strings such as
            "addrop:p=0.3,q=0.3".
        capture: how training steps run: "eager", "captured" (as CUDA graphs; an error where that is not possible) or
            "auto" (captured where possible). The default is `args.capture`, and "auto" where `args` has no such field.
        check_finite: whether training ends with a `DivergedError` where the loss is not finite in several steps in a
            row, or where weights that are not finite would be saved. By default it does with methods, and without
            them the Trainer trains on as the stock one does.
        strict_resume: whether training is resumed with the settings of its checkpoint only, from a verified checkpoint.
            By default a changed setting is a warning, and without methods the Trainer resumes as the stock one does.
        step: deprecated name of `capture`.
    """

    _signature_columns: list[str]
    data_collator: Any

    def __init__(
        self,
        *args: Any,
        regularizers: Regularizer | str | Sequence[Regularizer | str] = (),
        capture: str | None = None,
        check_finite: bool | None = None,
        strict_resume: bool = False,
        step: str | None = None,
        **kwargs: Any,
    ) -> None:
        self.regularizers = [parse_method(r) if isinstance(r, str) else r for r in as_list(regularizers)]
        check_regularizers(self.regularizers)
        self.adaptation = adaptation_for(type(self))(self)
        self.engine: Engine | None = None
        self.networks = AuxiliaryNetworks(self)
        self.choice = Choice(self)
        self.divergence = DivergenceCheck(self, bool(self.regularizers) if check_finite is None else check_finite)
        self.checkpoints = Checkpoints(self, self.networks.all_examples, strict_resume)
        self._loss_depends_on_items: bool | None = None
        super().__init__(*args, **kwargs)
        old = step or getattr(self.args, "step", None)
        if old is not None:
            warn_renamed("step", "capture")
        mode = capture or getattr(self.args, "capture", None) or old or "auto"
        self.capture = StepCapture(self, mode)
        self.checkpoints.run_settings["capture"] = mode
        self._check_arguments()
        if self.model is not None:
            self.capture.check()
            self.check_model(epochs=None)
        if self._columns and self.train_dataset is not None:
            batch = self._example_batch()
            if batch is not None:
                check_columns(self.regularizers, batch)

    # ---- checks ------------------------------------------------------------------------------------------------

    def check_model(self, epochs: int | None) -> None:
        """Raise a `ValueError` if a method cannot work on the model, or not for this number of epochs."""
        if self.regularizers:
            self.adaptation.check()
            self._make_engine(self.model, epochs).close()

    def _check_arguments(self) -> None:
        if not self.regularizers:
            return
        if self.args.n_gpu > 1:
            raise ValueError(
                f"args.n_gpu is {self.args.n_gpu}, for which the Trainer uses DataParallel, which cannot be "
                "regularised; start one process for each GPU with `accelerate launch` or `torchrun`."
            )
        if self.args.gradient_checkpointing:
            refuse_reentrant(self.args.gradient_checkpointing_kwargs)
        fuses_loss = (self.args.liger_kernel_config or {}).get("fused_linear_cross_entropy", True)
        readers = [type(method).__name__ for method in self.regularizers if reads_predictions(method)]
        if self.args.use_liger_kernel and fuses_loss and readers:
            raise ValueError(
                f"args.use_liger_kernel is True, whose fused loss returns no predictions in training, and {readers[0]} "
                "reads them; set args.liger_kernel_config to {'fused_linear_cross_entropy': False}."
            )
        if getattr(self.args, "disable_dropout", False):
            logger.warning(
                "args.disable_dropout is True: the model's ordinary dropout is off, the regularisers stay on."
            )

    def _check_labels(self) -> None:
        """Refuse a training set whose batches have no labels, where it has an index to look into."""
        if not self.regularizers or not hasattr(self.train_dataset, "__getitem__") or not self.label_names:
            return
        if self.adaptation.calls_model:  # pairs of texts may be all that its loss needs
            return
        batch = self._example_batch()
        if batch is not None and not any(name in batch for name in self.label_names):
            raise ValueError(
                f"train_dataset gives batches with {', '.join(sorted(batch))} and no label; one of "
                f"{', '.join(self.label_names)} is needed (see TrainingArguments.label_names)."
            )

    def _example_batch(self) -> Mapping[str, Any] | None:
        dataset = self.train_dataset
        if not hasattr(dataset, "__getitem__") or len(dataset) == 0:
            return None
        with all_preserved():
            loader = self.get_train_dataloader()
            return take_note(loader.collate_fn([loader.dataset[0]]))[0]

    # ---- columns that methods read -----------------------------------------------------------------------------

    @property
    def _columns(self) -> frozenset[str]:
        return columns_of(*self.regularizers)

    def _set_signature_columns_if_needed(self) -> None:
        """Add the methods' columns, which the Trainer would drop: the model's forward does not name them."""
        super()._set_signature_columns_if_needed()
        self._signature_columns = list(dict.fromkeys([*self._signature_columns, *sorted(self._columns)]))

    def get_train_dataloader(self) -> Any:
        """Like the Trainer's; where steps may be captured, its batches carry a note whether they have no padding."""
        collator = self.data_collator
        if self.capture.may_capture:
            self.data_collator = NotesPadding(collator)
        try:
            return super().get_train_dataloader()
        finally:
            self.data_collator = collator

    def _prepare_inputs(self, inputs: Any) -> Any:
        """Remove the methods' columns from what goes into a model. `training_step` reads them before that."""
        prepared, _ = take_note(super()._prepare_inputs(inputs))
        columns = self._columns
        return {k: v for k, v in prepared.items() if k not in columns} if columns else prepared

    # ---- the engine and its place in the loop ------------------------------------------------------------------

    def _make_engine(self, model: nn.Module, epochs: int | None) -> Engine:
        make = functools.partial(
            Engine,
            model,
            self.regularizers,
            epochs=epochs,
            seed=self.args.seed,
            rank=self.args.process_index,
            world=self.args.world_size,
            batch_size=self._train_batch_size,
            loop=TrainerLoop(self),
        )
        try:
            return make()
        except ValueError as error:
            # The dry run of a model with unusual inputs needs a batch of the user's own data.
            if "bind(model, batch=" not in str(error):
                raise
            batch = self._example_batch()
            if batch is None:
                raise
            return make(example=self._prepare_inputs(batch))

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, resume_changed: bool = False, **kwargs: Any
    ) -> Any:
        """Train, as `Trainer.train` does.

        Args:
            resume_from_checkpoint: a checkpoint to continue from, or True for the newest complete one in the output
                folder. With methods its files are verified: a `ValueError` says what is wrong with a checkpoint that is
                damaged, and a warning names the settings that differ from those that it was trained with, which
                `strict_resume` refuses.
            *args: other arguments of `Trainer.train`.
            resume_changed: use the settings of this Trainer where they differ, also those that the optimizer of the
                checkpoint holds, such as the learning rate, and continue also without the state of a method.
            **kwargs: other arguments of `Trainer.train`.
        """
        self._check_labels()
        is_search = bool(args[0] if args else kwargs.get("trial"))  # it changes the settings later
        checkpoint = self.checkpoints.begin(resume_from_checkpoint, resume_changed, compare=not is_search)
        self.networks.prepare_data()
        self.choice.begin()
        try:
            with self.capture.running():
                result = super().train(checkpoint, *args, **kwargs)
            if self.engine is not None and not self.args.load_best_model_at_end:
                self.networks.keep_best(super().evaluate)
            return result
        finally:
            self._close_engine()

    def _close_engine(self) -> None:
        if self.engine is not None:
            self.engine.close()
            self.engine = None
        self.pop_callback(_StepCallback)

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any) -> Any:
        # Here the model is final (model_init, PEFT, checkpoint weights) and not wrapped yet.
        self.checkpoints.refuse_if_finished(max_steps)
        if self.regularizers:
            self._close_engine()  # auto_find_batch_size runs this again
            self.adaptation.check()
            epochs = max(1, math.ceil(self.state.num_train_epochs))
            self.engine = self._make_engine(self.model, epochs)
            self.add_callback(_StepCallback(self))
        prepared = super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)
        if self.engine is not None and resume_from_checkpoint is not None:
            self.engine.load_state(resume_from_checkpoint)
        # A wrapper that is new (PEFT's, a pipeline's) is in train mode while the model that was loaded into it is not.
        self.model.train()
        self.capture.begin(self.engine)
        self.divergence.begin()
        return prepared

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """Like the Trainer's; each weight has the learning rate that the methods want. The scheduler comes after it."""
        optimizer = super().create_optimizer(*args, **kwargs)
        if self.engine is not None:
            self.engine.scale_learning_rates()
        return optimizer

    def _finalize_training(self, *args: Any, **kwargs: Any) -> Any:
        if self.engine is not None:
            self.choice.make(self._evaluate_once)
            self.engine.finish()  # before the best checkpoint is loaded, whose weights are those that were evaluated
        return super()._finalize_training(*args, **kwargs)

    def _begin_step(self) -> None:
        """Open the engine's step where the Trainer opens its own."""
        assert self.engine is not None
        state = self.state
        epochs = max(1, math.ceil(state.num_train_epochs))
        progress = Progress(state.global_step, state.max_steps, int(state.epoch or 0), epochs)
        # Under FSDP the Trainer replaces its model; elsewhere it is the unwrapped one that was bound.
        self.engine.begin_step(progress, self._will_log(), self.model)

    def _will_log(self) -> bool:
        """Return whether the step that begins now ends with a log line."""
        strategy = str(getattr(self.args.logging_strategy, "value", self.args.logging_strategy))
        done = self.state.global_step + 1
        if strategy == "epoch":
            per_epoch = max(1, self.state.max_steps // max(1, math.ceil(self.state.num_train_epochs)))
            return done % per_epoch == 0
        every = max(1, int(self.state.logging_steps or 1))
        return strategy == "steps" and (done % every == 0 or (self.args.logging_first_step and done == 1))

    def training_step(
        self, model: nn.Module, inputs: Mapping[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        run: TrainingStep = super().training_step
        if self.engine is None and not self.capture.are_captured:
            return self._seen(run(model, inputs, num_items_in_batch))
        if not (model.training and self.model.training):  # after an evaluation DDP's wrapper alone is in train mode
            model.train()
        inputs, has_no_padding = take_note(super()._prepare_inputs(inputs))
        batch = None
        if self.engine is not None:
            batch = self.engine.begin_micro_batch(
                inputs,
                backward=lambda network, views: run(network, views, self._items_of_views(num_items_in_batch)),
                loop_loss=functools.partial(self._loop_loss, model, inputs) if self.adaptation.calls_model else None,
            )
        loss = self.capture.try_captured(run, inputs, num_items_in_batch, batch, has_no_padding)
        if loss is None:
            loss = self._eager_step(run, model, inputs, num_items_in_batch, batch)
        if self.engine is not None and self.accelerator.sync_gradients:
            self.engine.before_optimizer()
        return self._seen(loss)

    def _loop_loss(self, model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
        """Return the loss of a batch, for a probe."""
        # Without synchronisation: a probe must not disturb the reducer of the data-parallel wrapper.
        with self.adaptation.unrecorded(), self.accelerator.no_sync(model), self.compute_loss_context_manager():
            return super().compute_loss(model, dict(inputs))

    def _seen(self, loss: Tensor) -> Tensor:
        self.divergence.add(loss)
        return self.capture.replace_nonfinite(loss)

    def _eager_step(
        self, run: TrainingStep, model: nn.Module, inputs: Any, items: Tensor | int | None, batch: MicroBatch | None
    ) -> Tensor:
        if self.engine is None or batch is None:
            return run(model, inputs, items)
        # The plan is applied until `run` has ended its backward: gradient checkpointing runs blocks again in it.
        items = self._items_of_views(items)
        return self.engine.run_passes(batch, EagerRunner(self.engine, lambda views: run(model, views, items)))

    def _items_of_views(self, items: Tensor | int | None) -> Tensor | int | None:
        return items if items is None or self.engine is None else items * self.engine.views

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, *args: Any, **kwargs: Any
    ) -> Any:
        engine = self.engine
        if engine is None or not model.training:
            return super().compute_loss(model, inputs, return_outputs, *args, **kwargs)
        # Only a penalty needs outputs, which some trainers do not compute.
        if not engine.reads_outputs:
            result = super().compute_loss(model, inputs, return_outputs, *args, **kwargs)
            return (engine.averaged(result[0]), *result[1:]) if return_outputs else engine.averaged(result)
        share = self._share_of_step(engine, super().compute_loss, model, inputs, kwargs.get("num_items_in_batch"))
        loss, outputs = self.adaptation.with_outputs(super().compute_loss, model, inputs, *args, **kwargs)
        loss = engine.loss(outputs, loss, share)
        return (loss, outputs) if return_outputs else loss

    def _share_of_step(
        self, engine: Engine, loss_of: Any, model: nn.Module, inputs: Any, items: Tensor | int | None
    ) -> float | Tensor:
        """Return the weight of a penalty, a mean over the micro-batch, that makes it count as the loss does.

        The Trainer divides by the items of the whole step and multiplies by the number of processes. It does so for
        every model whose forward takes **kwargs; many of them ignore the number and return a mean over the
        micro-batch. So the loss is computed once with two numbers of items to see whether it depends on it.
        """
        processes = self.args.world_size if self.args.average_tokens_across_devices else 1
        is_whole = processes == 1 and self.current_gradient_accumulation_steps == 1
        if is_whole or items is None or getattr(self, "loss_is_scaled_for_ga", None) is False:
            return 1.0
        if self._loss_depends_on_items is None:
            quiet = self.adaptation.unrecorded()
            with quiet, preserved(self.args.device), torch.no_grad(), engine.seams.applied(Plan()):
                once, twice = (loss_of(model, dict(inputs), num_items_in_batch=n * items) for n in (1, 2))
            self._loss_depends_on_items = bool(once != twice)
        if not self._loss_depends_on_items:
            return float(processes)
        # Labels are counted as the Trainer counts them, so that the shares of a step sum to 1.
        shifts = getattr(self, "_loss_shifts_labels", False)
        labels = inputs.get("shift_labels", inputs["labels"][..., 1:] if shifts else inputs["labels"])
        return labels.ne(IGNORED).sum() * processes / items

    # ---- what is logged ----------------------------------------------------------------------------------------

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if self.engine is not None and "loss" in logs:
            logs.update(self._mean_metrics(self.engine.pop_metrics()))
        super().log(logs, *args, **kwargs)
        if "loss" in logs:
            self.divergence.check_log(logs)

    def _mean_metrics(self, metrics: dict[str, Tensor]) -> dict[str, float]:
        """Return the means over the processes.

        Every process logs in the same steps, but a model may skip layers by itself.
        """
        names, tensors = list(metrics), list(metrics.values())
        mine = dict(zip(names, torch.stack(tensors).tolist() if tensors else [], strict=True))
        processes = gather_objects(mine, self.args.world_size)
        means = {}
        for name in dict.fromkeys(name for values in processes for name in values):
            values = [values[name] for values in processes if name in values]
            means[name] = round(sum(values) / len(values), 6)
        return means


class _StepCallback(TrainerCallback):
    """Opens and closes the engine's step where the Trainer opens and closes its own."""

    def __init__(self, trainer: RegularizerMixin) -> None:
        self.trainer = trainer

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer._begin_step()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.trainer.engine is not None:
            self.trainer.engine.after_optimizer()


@functools.cache
def regularized(trainer_class: type) -> type:
    """`trainer_class` with the arguments of `RegularizerMixin`.

    Args:
        trainer_class: a subclass of `transformers.Trainer`, such as `Seq2SeqTrainer`.

    Example:
        trainer = regularized(Seq2SeqTrainer)(model=model, args=args, train_dataset=train, regularizers=[ADDrop()])
    """
    if issubclass(trainer_class, RegularizerMixin):
        return trainer_class
    if trains_sentence_transformer(trainer_class):
        return with_regularized_body(trainer_class, regularized)
    adaptation_for(trainer_class)
    return type(f"Regularized{trainer_class.__name__}", (RegularizerMixin, trainer_class), {})


class RegularizedTrainer(RegularizerMixin, Trainer):
    """`transformers.Trainer` with the arguments of `RegularizerMixin`: `regularizers` and `capture`."""
