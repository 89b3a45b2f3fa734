"""Pruning: attention layers become the constant 1/n, or whole layers are removed.

    from attendrop import prune

    scores = prune.score_layers(model, batches)  # the higher the score, the sooner the layer is pruned
    layers = sorted(range(len(scores)), key=lambda layer: -scores[layer])[:6]
    print(prune.prune(model, layers))  # in place
    prune.save(model, "pruned")  # plain transformers can load it too
    model = prune.load("pruned")

    prune.drop_layers(model)  # removes every other layer, as after training with LayerDrop

Constant attention is self-pruning (AttendOut v1, arXiv 2104.04692v1).
"""

from __future__ import annotations

from .constant_attention import ConstantAttention
from .criteria import effects_of_uniform, score_layers
from .depth import drop_layers, every_other
from .measure import Comparison, Cost, cost_of
from .onnx import export_onnx
from .storage import load, save
from .surgery import Pruned, prune

__all__ = [
    "Comparison",
    "ConstantAttention",
    "Cost",
    "Pruned",
    "cost_of",
    "drop_layers",
    "effects_of_uniform",
    "every_other",
    "export_onnx",
    "load",
    "prune",
    "save",
    "score_layers",
]
