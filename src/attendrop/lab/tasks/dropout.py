"""The model's own dropout, which its configuration has under a name of its own in each family."""

from __future__ import annotations

from typing import Any

from ...errors import UserError

_HIDDEN = (
    "hidden_dropout_prob", "hidden_dropout", "dropout", "dropout_rate", "activation_dropout", "embedding_dropout",
    "mlp_dropout", "resid_pdrop", "embd_pdrop", "resid_dropout", "embed_dropout", "pooler_dropout",
    "feat_proj_dropout", "final_dropout", "classifier_dropout", "classifier_dropout_prob", "seq_classif_dropout",
    "summary_first_dropout",
)  # fmt: skip
_ATTENTION = ("attention_probs_dropout_prob", "attention_dropout", "attn_pdrop", "attn_dropout")


def set_dropout(name: str, config: Any, hidden: float | None, attention: float | None) -> None:
    """Write dropout probabilities into the configuration of a model.

    Args:
        name: The model, for error messages.
        config: Its configuration, which is changed.
        hidden: The probability for hidden states, wherever the model has dropout but on attention weights; None = the
            model's own.
        attention: The probability for attention weights; None = the model's own.
    """
    for setting, value, names in (("dropout", hidden, _HIDDEN), ("attention_dropout", attention, _ATTENTION)):
        if value is None:
            continue
        parts = {id(part): part for part in (config, config.get_text_config())}.values()
        used = [(part, key) for part in parts for key in names if getattr(part, key, None) is not None]
        if not used:
            raise UserError(
                f"{setting} is {value:g}, and the configuration of {name} ({config.model_type}) has no such dropout "
                f"({', '.join(names[:4])}); leave it out."
            )
        for part, key in used:
            setattr(part, key, value)
