"""Pruning: attention layers become the constant 1/n, or whole layers are removed.

    from attendrop import prune

    scores = prune.score_layers(model, batches)  # the higher the score, the sooner the layer is pruned
    layers = sorted(range(len(scores)), key=lambda layer: -scores[layer])[:6]
    print(prune.prune(model, layers))  # in place
    prune.save(model, "pruned")  # plain transformers can load it too
    model = prune.load("pruned")

    prune.drop_layers(model)  # removes every other layer, as after training with LayerDrop

    prune.apply_plan(model, prune.LayerPlan(tail=4))  # the last four blocks on a summary of each text

Constant attention is self-pruning (AttendOut v1, arXiv 2104.04692v1).
"""

from __future__ import annotations

from .compression import Compressed, Stage, UnreachableError, compress
from .constant_attention import ConstantAttention
from .criteria import effects_of_uniform, score_layers
from .depth import drop_layers, every_other
from .layer_plan import LayerPlan, apply_plan, plan_of
from .measure import Comparison, Cost, cost_of
from .onnx import export_onnx, export_program, quantize_onnx
from .storage import load, save
from .surgery import Pruned, prune
from .tail import head_reads

__all__ = [
    "Comparison",
    "Compressed",
    "ConstantAttention",
    "Cost",
    "LayerPlan",
    "Pruned",
    "Stage",
    "UnreachableError",
    "apply_plan",
    "compress",
    "cost_of",
    "drop_layers",
    "effects_of_uniform",
    "every_other",
    "export_onnx",
    "export_program",
    "head_reads",
    "load",
    "plan_of",
    "prune",
    "quantize_onnx",
    "save",
    "score_layers",
]
