"""The part of `transformers.Trainer` that this library uses, for the type checker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor, nn

from .regularizer import Regularizer


class TrainerProtocol(Protocol):
    """A Trainer with regularisers. Attributes and methods that are not ours are those of `transformers.Trainer`."""

    regularizers: list[Regularizer]
    adaptation: Any

    args: Any
    model: Any
    model_wrapped: Any
    accelerator: Any
    optimizer: Any
    lr_scheduler: Any
    processing_class: Any
    compute_loss_func: Any
    callback_handler: Any
    data_collator: Any
    train_dataset: Any
    eval_dataset: Any
    state: Any
    label_names: list[str]
    is_in_train: bool
    is_fsdp_enabled: bool
    is_deepspeed_enabled: bool
    current_gradient_accumulation_steps: int
    _train_batch_size: int
    _signature_columns: list[str]
    _tr_loss: Tensor
    _globalstep_last_logged: int

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def train(self, *args: Any, **kwargs: Any) -> Any: ...

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]: ...

    def predict(self, *args: Any, **kwargs: Any) -> Any: ...

    def evaluation_loop(self, dataloader: Any, *args: Any, **kwargs: Any) -> Any: ...

    def prediction_step(
        self, model: nn.Module, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> Any: ...

    def floating_point_ops(self, inputs: Mapping[str, Any]) -> Any: ...

    def _clip_grad_norm(self, model: nn.Module) -> Any: ...

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None: ...

    def save_model(self, output_dir: str | None = None, *args: Any, **kwargs: Any) -> None: ...

    def training_step(
        self, model: nn.Module, inputs: Mapping[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor: ...

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, *args: Any, **kwargs: Any
    ) -> Any: ...

    def compute_loss_context_manager(self) -> Any: ...

    def get_train_dataloader(self) -> Any: ...

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any: ...

    def _remove_unused_columns(self, dataset: Any, description: str | None = None) -> Any: ...

    def get_test_dataloader(self, test_dataset: Any) -> Any: ...

    def add_callback(self, callback: Any) -> None: ...

    def pop_callback(self, callback: Any) -> Any: ...

    def _prepare_inputs(self, inputs: Any) -> Any: ...

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any) -> Any: ...

    def _init_training_state(self, *args: Any, **kwargs: Any) -> tuple[int, int]: ...

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None: ...

    def _load_rng_state(self, checkpoint: str | None) -> None: ...

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any: ...

    def _finalize_training(self, *args: Any, **kwargs: Any) -> Any: ...

    def _load_best_model(self) -> None: ...

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None: ...

    def _set_signature_columns_if_needed(self) -> None: ...

    def _get_collator_with_removed_columns(self, data_collator: Any) -> Any: ...

    def _get_output_dir(self, trial: Any) -> str: ...

    def _save(self, *args: Any, **kwargs: Any) -> None: ...

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None: ...
