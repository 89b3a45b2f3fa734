"""Re-initialisation: the last blocks of a pretrained model begin with fresh weights.

    w ~ the model's own initialisation, for the last n blocks and the pooler

The last blocks are the ones that are most specialised on the task of pretraining.

Zhang, Wu, Katiyar, Weinberger and Artzi, "Revisiting Few-sample BERT Fine-tuning", arXiv 2006.05987.
Differs from the paper in: nothing known.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..core.capabilities import ChangesFirstWeights, KeepsState
from ..core.hyper import hyper
from ..core.regularizer import Regularizer
from ..core.step import Step
from ..model.seams import Seams
from ..model.sites import pretrained_part, unwrapped
from ..random import preserved
from ._shared.weights import reason_against, refuse_sharded, trained_weights

_FLAG = "_is_hf_initialized"  # transformers initialises no tensor that has it


@dataclass
class Reinit(ChangesFirstWeights, KeepsState):
    """Fresh weights in the last blocks.

    Args:
        blocks: the number of blocks, counted from the last one; a whole number from 0
        pooler: whether the pooler of the base model, where it has one, gets fresh weights too
    """

    name: ClassVar[str] = "reinit"

    blocks: int = hyper(1, search="1..4")
    pooler: bool = hyper(True)

    def reset(self) -> None:
        self._is_done = self.blocks == 0

    def check(self, model: nn.Module, seams: Seams, epochs: int | None) -> None:
        refuse_sharded("Reinit", model)
        count = len(seams.blocks)
        if self.blocks > count:
            raise ValueError(f"Reinit.blocks is {self.blocks}; it must be at most {count}, the blocks of {seams.name}.")
        if self.blocks and len(set(seams.blocks)) < count:
            raise ValueError(f"{seams.name} uses one block several times, so Reinit cannot choose the last ones.")
        frozen = [name for m in self._modules(model, seams) for name, p in m.named_parameters() if not p.requires_grad]
        if frozen:
            raise ValueError(
                f"Reinit gives the last blocks of {seams.name} fresh weights, and {frozen[0]} is not trained; train "
                "all weights of these blocks, without LoRA."
            )

    def refuses(self, other: Regularizer) -> str | None:
        return reason_against(self, other)

    def _modules(self, model: nn.Module, seams: Seams) -> list[nn.Module]:
        """Return the modules that get fresh weights."""
        if self.blocks == 0:
            return []
        chosen = [model.get_submodule(name) for name in seams.blocks[-self.blocks :]]
        pooler = getattr(pretrained_part(model), "pooler", None)
        return [*chosen, pooler] if self.pooler and isinstance(pooler, nn.Module) else chosen

    @torch.no_grad()
    def on_step_begin(self, step: Step) -> None:
        if not self._is_done and step.progress.step == 0:
            refuse_sharded("Reinit", step.model)
            with trained_weights(step), preserved(step.device):
                # The model's own initialisation draws from the global generator.
                torch.manual_seed(step.shared_generator(self.name).initial_seed())
                initialise(unwrapped(step.model), self._modules(step.model, step.seams))
        self._is_done = True

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {}, {"done": self._is_done}

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        self._is_done = values["done"]


def initialise(model: Any, modules: list[nn.Module]) -> None:
    """Initialise all weights of `modules` in place, as `model` does with a new model."""
    for top in modules:
        with _not_initialised(top):
            for module in top.modules():
                model._init_weights(module)


@contextmanager
def _not_initialised(module: nn.Module) -> Iterator[None]:
    """Remove, for the block, the flag that protects the tensors of the module from being initialised."""
    tensors = [x for x in (*module.parameters(), *module.buffers()) if getattr(x, _FLAG, False)]
    for tensor in tensors:
        setattr(tensor, _FLAG, False)
    try:
        yield
    finally:
        for tensor in tensors:
            setattr(tensor, _FLAG, True)
