"""Self-pruning: attention layers replaced by the constant 1/n (AttendOut v1, arXiv 2104.04692v1).

from attendrop import prune

scores = prune.score_layers(model, batches)  # higher = prune first
layers = sorted(range(len(scores)), key=lambda layer: -scores[layer])[:6]
print(prune.prune(model, layers))  # in place
prune.save(model, "pruned")  # plain transformers can load it too
model = prune.load("pruned")
"""

from __future__ import annotations

from .criteria import effects_of_uniform, score_layers
from .measure import Comparison, Cost, cost_of
from .onnx import export_onnx
from .storage import load, save
from .surgery import ConstantAttention, Pruned, prune

__all__ = [
    "Comparison",
    "ConstantAttention",
    "Cost",
    "Pruned",
    "cost_of",
    "effects_of_uniform",
    "export_onnx",
    "load",
    "prune",
    "save",
    "score_layers",
]
