"""Where each attention class of transformers keeps its projections, and what else it does in its forward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

# (pruned layer, hidden states, projected output, other arguments of the call) -> what the attention class returns
Finish = Callable[[Any, Tensor, Tensor, Mapping[str, Any]], tuple[Any, ...]]


def _finish(layer: Any, hidden: Tensor, output: Tensor, arguments: Mapping[str, Any]) -> tuple[Any, ...]:
    return output, None  # no attention map: it would be 1/n everywhere


def _finish_modernbert(layer: Any, hidden: Tensor, output: Tensor, arguments: Mapping[str, Any]) -> tuple[Any, ...]:
    return layer.out_drop(output), None


def _finish_albert(layer: Any, hidden: Tensor, output: Tensor, arguments: Mapping[str, Any]) -> tuple[Any, ...]:
    return layer.LayerNorm(hidden + layer.output_dropout(output)), None


def _finish_t5(layer: Any, hidden: Tensor, output: Tensor, arguments: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the output of a T5 layer. A pruned first layer still computes the position bias for all layers."""
    bias = arguments.get("position_bias")
    if bias is None and layer.has_relative_attention_bias:
        from transformers.models.t5.modeling_t5 import T5Attention

        bias = T5Attention.compute_bias(layer, hidden.shape[1], hidden.shape[1], device=hidden.device)
    return output, bias, None


@dataclass(frozen=True)
class Layout:
    """The parts of an attention class.

    Args:
        q: Path of the query projection below the attention module.
        k: Path of the key projection.
        v: Path of the value projection.
        o: Path of the output projection.
        o_outside: Whether `o` is a path below the parent of the attention module.
        fused: Whether q, k and v are the thirds of one Linear.
        prenorm: Whether the residual is the input of the attention's parent, not of the attention itself.
        binary_mask: Whether a floating-point mask is 1 at valid positions. Otherwise it is added to the scores.
        position_bias: Whether a bias is added to the scores, so that zero queries and keys do not give uniform
            attention.
        keeps: Attributes of the attention module that are needed after pruning.
        finish: What the class does with the projected output, and what it returns.
        heads: The attribute with the number of heads, where `FirstQuery` computes the attention of one query alone.
    """

    q: str
    k: str
    v: str
    o: str
    o_outside: bool = False
    fused: bool = False
    prenorm: bool = False
    binary_mask: bool = False
    position_bias: bool = False
    keeps: tuple[str, ...] = ()
    finish: Finish = _finish
    heads: str = ""

    def output_path(self, path: str) -> str:
        """Return the path in the model of the output projection of the attention module at `path`."""
        return f"{path.rpartition('.')[0] if self.o_outside else path}.{self.o}"


_BERT = Layout("query", "key", "value", "output.dense", o_outside=True, heads="num_attention_heads")
_BART = Layout("q_proj", "k_proj", "v_proj", "out_proj")
_T5_BIAS = (
    "has_relative_attention_bias",
    "relative_attention_bias",
    "relative_attention_num_buckets",
    "relative_attention_max_distance",
    "_relative_position_bucket",
    "is_decoder",
)

# The layout of each attention class that can be pruned, by the name of the class.
LAYOUTS: dict[str, Layout] = {
    "AlbertAttention": Layout(
        "query", "key", "value", "dense", keeps=("LayerNorm", "output_dropout"), finish=_finish_albert
    ),
    "BartAttention": _BART,
    "BertSelfAttention": _BERT,
    "DisentangledSelfAttention": Layout(
        "query_proj", "key_proj", "value_proj", "output.dense", o_outside=True, binary_mask=True
    ),
    "DistilBertSelfAttention": Layout("q_lin", "k_lin", "v_lin", "out_lin", heads="n_heads"),
    "ElectraSelfAttention": _BERT,
    "MPNetSelfAttention": Layout("q", "k", "v", "o", position_bias=True, heads="num_attention_heads"),
    "MarianAttention": _BART,
    "ModernBertAttention": Layout(
        "Wqkv", "Wqkv", "Wqkv", "Wo", fused=True, prenorm=True, keeps=("out_drop",), finish=_finish_modernbert
    ),
    "RobertaSelfAttention": _BERT,
    "T5Attention": Layout("q", "k", "v", "o", prenorm=True, position_bias=True, keeps=_T5_BIAS, finish=_finish_t5),
    "ViTAttention": Layout("q_proj", "k_proj", "v_proj", "o_proj", prenorm=True),
    "XLMRobertaSelfAttention": _BERT,
}
