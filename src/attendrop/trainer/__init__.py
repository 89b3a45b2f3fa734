"""The Trainer that users know, with one more argument: `regularizers=[...]`."""

from .mixin import RegularizedTrainer, RegularizerMixin, regularized

__all__ = ["RegularizedTrainer", "RegularizerMixin", "regularized"]
