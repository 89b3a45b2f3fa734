"""The record of a compression: its stages, and what became of the score."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class CompressionStage:
    """The model after a stage of a compression.

    Attributes:
        edit: What the stage changed.
        tail: How many of the last blocks run on a summary.
        constant: The layers with constant attention before the tail.
        removed: The layers that are removed.
        milliseconds: Shape of the inputs -> the time of a forward.
        stock: Shape of the inputs -> the time of the uncompressed model, measured in turns with it.
        divergence: How far the outputs on the examples of the selection are from those of the uncompressed model.
        score: The score on the selection.
    """

    edit: str
    tail: int
    constant: list[int]
    removed: list[int]
    milliseconds: dict[str, float]
    stock: dict[str, float]
    divergence: float
    score: float | None = None


@dataclass
class CompressionRecord:
    """How a model was compressed.

    Attributes:
        run: The folder of the uncompressed run.
        plan: The plan of the layers, in words.
        settings: The settings of the compression.
        metric: The name of the score.
        before: The score of the uncompressed model on the validation data.
        after: The score of the compressed model on them.
        low: The lower limit of the 95 % interval of the difference, paired over examples.
        high: The upper limit.
        verdict: "no worse", "worse" or "cannot tell".
        speedup: The smallest ratio of the times over all shapes.
        sentences: All of this, for the user.
        stages: The stages.
        seconds: How long the compression took.
        is_exact: Whether plain transformers computes the same with the saved weights, at the speed of before.
    """

    run: str
    plan: str
    settings: dict[str, object]
    metric: str
    before: float
    after: float
    low: float
    high: float
    verdict: str
    speedup: float
    sentences: list[str] = field(default_factory=list)
    stages: list[CompressionStage] = field(default_factory=list)
    seconds: float = 0.0
    is_exact: bool = False
