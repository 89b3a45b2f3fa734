"""Sequence classifiers whose head reads a pooling of the last hidden states.

    mean    v = Σ_t m_t h_t / Σ_t m_t       m: the attention mask
    cls     v = h_0

    logits = W v + b                        of a regression: (W v + b) · scale + shift

The two texts of a pair are either one sequence, or each is encoded by itself ("separate", a bi-encoder):

    u, v    their poolings, of length 1     inputs [B, 2, L]
    logits = W [u, v, |u − v|, u ∗ v] + b

Sentence encoders are trained with a mean over their tokens, and many other encoders have no trained pooler either. The
stock heads of transformers read the first token instead, often through a pooler with random weights. A folder of such a
model holds the encoder in the stock layout, so that `AutoModel` loads it. The head is not that of a stock class; its
name differs, so that no stock class takes its weights for its own. `SentenceTransformer(folder).encode` gives the
logits, where the texts are not encoded apart (`sentence_files.py`).

`pooled_class` makes the class for a configuration: the family's `PreTrainedModel` with the family's base model. The
scale and the shift of a regression are the deviation and the mean of its training labels: the weights learn numbers of
size one, at the same learning rate as any other head, and the outputs have the user's unit.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModel, AutoModelForSequenceClassification, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from .pooled_config import POOLINGS, encodes_apart, pooling_of
from .sentence_files import write_sentence_files

_SUFFIX, _STOCK_SUFFIX = "PooledForSequenceClassification", "ForSequenceClassification"
# Stock heads set what a pooling of the same hidden states would not: which tokens have global attention.
_NOT_POOLED = ("longformer",)


def can_be_pooled(config: Any) -> bool:
    """Return whether a model with this configuration can have a head that reads a pooling of the hidden states.

    Encoders with a stock sequence classifier can. Decoders read their last token, models with an encoder and a decoder
    have heads of their own, and ModernBERT pools by itself.

    Args:
        config: The configuration of a model.
    """
    if getattr(config, "is_encoder_decoder", False) or getattr(config, "is_decoder", False):
        return False
    known = (AutoModelForSequenceClassification._model_mapping, AutoModel._model_mapping)
    if not all(type(config) in mapping for mapping in known):
        return False
    if hasattr(config, "classifier_pooling") or config.model_type in _NOT_POOLED:
        return False
    stock = known[0][type(config)]
    takes = inspect.signature(known[1][type(config)].forward).parameters
    # The head of a decoder looks for the last token that is not padding, and has no bias.
    is_decoder = "past_key_values" in inspect.signature(stock.forward).parameters
    return {"input_ids", "attention_mask"} <= takes.keys() and not is_decoder


def pool(hidden: Tensor, mask: Tensor | None, pooling: str) -> Tensor:
    """Return the pooling of hidden states, `[B, d]`.

    Args:
        hidden: The last hidden states, `[B, L, d]`.
        mask: The attention mask, `[B, L]`; None = no position is padding.
        pooling: One of `POOLINGS`.
    """
    if pooling == "cls":
        return hidden[:, 0]
    if mask is None:
        return hidden.mean(1)
    weights = mask.to(hidden.dtype).unsqueeze(-1)
    return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)


class PooledModel:
    """The common base of the classes that `pooled_class` makes."""

    config: Any
    base_model: Any
    pooled_dropout: nn.Module
    pooled_head: nn.Linear
    output_scale: Tensor
    output_shift: Tensor

    def __init__(self, config: Any, make_base: Callable[[Any], nn.Module]) -> None:
        PreTrainedModel.__init__(self, config)
        self.num_labels = config.num_labels
        setattr(self, type(self).base_model_prefix, make_base(config))  # type: ignore[attr-defined]
        self.pooled_dropout = nn.Dropout(_dropout_of(config))
        width = config.hidden_size * (4 if encodes_apart(config) else 1)
        self.pooled_head = nn.Linear(width, config.num_labels)
        if config.problem_type == "regression":
            self.register_buffer("output_scale", torch.ones(()))  # type: ignore[attr-defined]
            self.register_buffer("output_shift", torch.zeros(()))  # type: ignore[attr-defined]
        self.post_init()  # type: ignore[attr-defined]

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)  # type: ignore[misc]
        if module is self and hasattr(self, "output_scale"):  # they are in no pretrained weights
            nn.init.ones_(self.output_scale)
            nn.init.zeros_(self.output_shift)

    def features(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """Return the input of the head, `[B, features]`.

        Args:
            hidden: The last hidden states, `[B, L, d]`, or `[2 B, L, d]` where texts are encoded apart.
            mask: The attention mask, with the same first dimensions; None = no position is padding.
        """
        pooled = pool(hidden, mask, pooling_of(self.config) or POOLINGS[0])
        return pair_features(pooled) if encodes_apart(self.config) else pooled

    def _pooled_forward(self, inputs: dict[str, Any]) -> Any:
        labels, as_tuple = inputs.pop("labels", None), inputs.pop("return_dict", None) is False
        if encodes_apart(self.config):
            inputs = {name: _rows_of_texts(name, value) for name, value in inputs.items()}
        outputs = self.base_model(**inputs)
        features = self.features(outputs[0], inputs.get("attention_mask"))
        logits = self.pooled_head(self.pooled_dropout(features))
        if self.config.problem_type == "regression":
            logits = logits * self.output_scale + self.output_shift
        result = SequenceClassifierOutput(
            loss=None if labels is None else self._loss(logits, labels),
            logits=logits,
            hidden_states=getattr(outputs, "hidden_states", None),
            attentions=getattr(outputs, "attentions", None),
        )
        return result.to_tuple() if as_tuple else result

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.config.problem_type == "regression":
            errors = (logits.squeeze(-1) - labels.to(logits.dtype)) / self.output_scale
            return errors.square().mean()
        if self.config.problem_type == "multi_label_classification":
            return functional.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))
        return functional.cross_entropy(logits, labels)

    def save_pretrained(
        self,
        save_directory: str | Path,
        is_main_process: bool = True,
        state_dict: Mapping[str, Tensor] | None = None,
        **options: Any,
    ) -> None:
        """Write the model, and the files with which other libraries load it (`sentence_files.py`).

        Args:
            save_directory: The folder.
            is_main_process: Whether this process writes the files beside the weights.
            state_dict: The weights; None = those of the model.
            **options: As of transformers.
        """
        given = dict(state_dict or {})  # transformers empties the dictionary
        super().save_pretrained(  # type: ignore[misc]
            save_directory, is_main_process=is_main_process, state_dict=state_dict, **options
        )
        is_stock = getattr(self.config, "attendrop_exact_in_transformers", True)
        if is_main_process and is_stock and not encodes_apart(self.config):
            write_sentence_files(self, Path(save_directory), str(pooling_of(self.config)), given)


def pair_features(pooled: Tensor) -> Tensor:
    """Return `[u, v, |u − v|, u ∗ v]` of the poolings of length 1 of two texts, `[B, 4 d]`.

    Args:
        pooled: The poolings, `[2 B, d]`; the two texts of an example follow each other.
    """
    u, v = functional.normalize(pooled, dim=-1).unflatten(0, (-1, 2)).unbind(1)
    return torch.cat([u, v, (u - v).abs(), u * v], -1)


def _rows_of_texts(name: str, value: Any) -> Any:
    """Make each text of an example a row: `[B, 2, L]` becomes `[2 B, L]`."""
    if not isinstance(value, Tensor) or value.dim() < 2:
        return value
    if value.dim() < 3 or value.shape[1] != 2:
        raise ValueError(
            f"{name} has the shape {list(value.shape)}; this model encodes the two texts of an example apart, so it "
            "must be [examples, 2, tokens]."
        )
    return value.flatten(0, 1)


def _dropout_of(config: Any) -> float:
    """Return the dropout before the head, under the names that the configurations have for it."""
    names = ("classifier_dropout", "seq_classif_dropout", "classifier_dropout_prob", "hidden_dropout_prob", "dropout")
    values = (getattr(config, name, None) for name in names)
    return float(next((value for value in values if value is not None), 0.0))


@functools.cache
def _class_for(config_class: Any) -> Any:
    stock = AutoModelForSequenceClassification._model_mapping[config_class]
    base: Any = AutoModel._model_mapping[config_class]
    family = next(cls for cls in stock.__mro__[1:] if issubclass(cls, PreTrainedModel))
    options = {"add_pooling_layer": False} if "add_pooling_layer" in inspect.signature(base).parameters else {}
    signature = inspect.signature(stock.forward)
    names = list(signature.parameters)[1:]

    def __init__(self: Any, config: Any) -> None:
        PooledModel.__init__(self, config, lambda config: base(config, **options))

    def forward(self: Any, *args: Any, **inputs: Any) -> Any:
        return self._pooled_forward(dict(zip(names, args, strict=False)) | inputs)

    forward.__signature__ = signature  # type: ignore[attr-defined]  # the Trainer reads which columns the model takes
    members = {
        "__init__": __init__,
        "__module__": __name__,
        "forward": forward,
        "base_model_prefix": stock.base_model_prefix,
        "_keys_to_ignore_on_load_unexpected": [r"pooler\."],
    }
    return type(stock.__name__.removesuffix(_STOCK_SUFFIX) + _SUFFIX, (PooledModel, family), members)


def pooled_class(config: Any) -> Any:
    """Return the class of a sequence classifier whose head reads the pooling that the configuration names.

    Args:
        config: The configuration of an encoder, for which `can_be_pooled` is true.
    """
    config_class: Any = type(config)
    return _class_for(config_class)


def pooled_class_named(name: str) -> Any:
    """Return the class that `pooled_class` makes, by its name; None if there is none of this name.

    Args:
        name: A name such as `BertPooledForSequenceClassification`.
    """
    if not name.endswith(_SUFFIX):
        return None
    stock = getattr(transformers, name.removesuffix(_SUFFIX) + _STOCK_SUFFIX, None)
    return _class_for(stock.config_class) if stock is not None else None


def __getattr__(name: str) -> Any:
    """Find a class by its name, so that models can be pickled."""
    cls = pooled_class_named(name)
    if cls is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return cls
