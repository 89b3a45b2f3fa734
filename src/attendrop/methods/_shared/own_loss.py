"""Methods that replace a part of the model's own loss, and cannot if the loop computes another one."""

from __future__ import annotations

_OTHERS = "label_smoothing_factor, class weights, a focal loss or a compute_loss_func of the Trainer"


def refuse_another_loss(is_another: bool, needs: str, remedy: str) -> None:
    """Raises a `ValueError` if the loss is not the model's own.

    Args:
        is_another: whether it is another one.
        needs: which field of which method needs the model's own.
        remedy: what to do.
    """
    if is_another:
        raise ValueError(f"{needs}, and another one is in use ({_OTHERS}); {remedy}.")
