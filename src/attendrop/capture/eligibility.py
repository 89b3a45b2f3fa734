"""Decides which Trainers can capture their training steps. A reason ends a sentence that begins with "because"."""

from __future__ import annotations

from ..core.regularizer import Regularizer
from ..core.trainer_protocol import TrainerProtocol

# Methods of a Trainer whose Python code a replay would skip.
_STEP_METHODS = ("training_step", "compute_loss", "compute_loss_context_manager")
_EVALUATION_METHODS = ("prediction_step", "compute_loss", "compute_loss_context_manager")


def reason_against(trainer: TrainerProtocol) -> str | None:
    """Return why the steps of this trainer cannot be captured; None where they can."""
    return _reason_of_hardware(trainer) or _reason_of_arguments(trainer) or _reason_of_methods(trainer)


def _reason_of_hardware(trainer: TrainerProtocol) -> str | None:
    devices = {parameter.device for parameter in trainer.model.parameters()}
    kinds = sorted({device.type for device in devices})
    if kinds != ["cuda"]:
        return f"the model is on {' and '.join(kinds)}"
    if trainer.args.world_size > 1 or trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        return "training is distributed"
    if trainer.args.n_gpu > 1 or len(devices) > 1:
        return "the model is on several devices"
    return None


def _reason_of_arguments(trainer: TrainerProtocol) -> str | None:
    args = trainer.args
    if trainer.adaptation.calls_model:
        return "the loss calls the model by itself"
    if args.torch_compile or hasattr(trainer.model_wrapped, "_orig_mod"):
        return "of torch.compile"
    if "lomo" in str(args.optim) or "layerwise" in str(args.optim):
        return f"the optimizer {args.optim} steps inside the backward"
    return None


def _reason_of_methods(trainer: TrainerProtocol) -> str | None:
    for method in trainer.regularizers:
        name = type(method).__name__
        overrides = type(method).plan is not Regularizer.plan or type(method).penalty is not Regularizer.penalty
        if overrides and type(method).capture_key is Regularizer.capture_key:
            return f"{name} has a plan or a penalty and no capture_key"
    return None


def reason_against_auto(trainer: TrainerProtocol) -> str | None:
    """Return why `capture="auto"` does not capture: Python code that runs in each step and that a replay would skip."""
    return _reason_of_code(trainer, _STEP_METHODS)


def reason_against_evaluation(trainer: TrainerProtocol) -> str | None:
    """Return why the evaluation of this trainer is not captured; None where it is."""
    if getattr(trainer.args, "predict_with_generate", False):
        return "of predict_with_generate"
    if trainer.args.torch_compile or hasattr(trainer.model_wrapped, "_orig_mod"):
        return "of torch.compile"
    return _reason_of_hardware(trainer) or _reason_of_code(trainer, _EVALUATION_METHODS)


def _reason_of_code(trainer: TrainerProtocol, methods: tuple[str, ...]) -> str | None:
    """Return which code of the user a replay would skip."""
    for cls in type(trainer).__mro__:
        for name in methods:
            if name in vars(cls) and not cls.__module__.startswith(("attendrop.", "transformers.")):
                return f"{cls.__name__} has a {name} of its own"
    for module in trainer.model.modules():
        if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
            return f"{type(module).__name__} has hooks"
    loss = trainer.compute_loss_func
    if loss is not None and not type(loss).__module__.startswith("attendrop."):
        return "of compute_loss_func"
    return None
