"""AttendOut's generator: which attention positions to drop, for each example and layer.

    h_0 = LN(token + position embedding)
    S_i = q(h_i) k(h_i)ᵀ / √d             the logits of *drop* in layer i: P(drop) = sigmoid(S_i / temperature + c_i)
    h_{i+1} = LN(h_i + o(softmax(S_i) v(h_i)))

One single-head attention block, without feed-forward, applied once for each layer with shared weights; no output layer.
(Not All Attention Is All You Need, arXiv 2104.04692 v2, section 4.)
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Generator(nn.Module):
    """Drop logits for `layers` layers from the token ids.

    The offset `c` makes P(drop) start near `init_drop`. It is one constant, as the paper's scores have none, or with
    `layer_offsets` a learned number for each layer: weights that all layers share can hardly tell layers apart.
    """

    def __init__(
        self,
        tokens: Tensor,
        positions: Tensor | None,
        layers: int,
        init_drop: float = 0.5,
        layer_offsets: bool = False,
        temperature: float = 1.0,
    ) -> None:
        super().__init__()
        self.layers, self.temperature = layers, temperature
        width = tokens.shape[1]
        self.tokens = nn.Parameter(tokens.detach().float().clone())
        self.positions = None if positions is None else nn.Parameter(positions.detach().float().clone())
        self.norm = nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        for linear in (self.q, self.k, self.v, self.o):
            nn.init.normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)
        offsets = torch.full((layers,), math.log(init_drop / (1 - init_drop)))
        if layer_offsets:
            self.offsets = nn.Parameter(offsets)
        else:
            self.register_buffer("offsets", offsets)

    @classmethod
    def from_model(cls, model: Any, layers: int, **options: Any) -> Generator:
        """With the token and position embeddings of `model` to start from."""
        tokens = model.get_input_embeddings()
        return cls(tokens.weight, _positions(model, tokens), layers, **options)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Drop logits [layers, B, L, L] for ids and padding mask [B, L]."""
        h = functional.embedding(ids, self.tokens)
        h = self.norm(h + self._position(ids.shape[1], h))
        hidden = (~mask.bool()).unsqueeze(1)
        # q / √d, k and v of a layer in one product
        root = math.sqrt(h.shape[-1])
        weight = torch.cat([self.q.weight / root, self.k.weight, self.v.weight])
        bias = torch.cat([self.q.bias / root, self.k.bias, self.v.bias])
        found = []
        for layer in range(self.layers):
            q, k, v = functional.linear(h, weight, bias).chunk(3, -1)
            s = q @ k.transpose(-1, -2)
            found.append(s)
            if layer + 1 < self.layers:
                attention = s.masked_fill(hidden, torch.finfo(s.dtype).min).softmax(-1)
                h = self.norm(h + self.o(attention @ v))
        return torch.stack(found).div_(self.temperature).add_(self.offsets.view(-1, 1, 1, 1))

    def looks_up(self, length: int) -> bool:
        """Whether rows of this length take their positions from the table; longer ones have waves."""
        return self.positions is not None and length <= len(self.positions)

    def _position(self, length: int, like: Tensor) -> Tensor:
        if self.positions is not None and self.looks_up(length):
            return self.positions[:length]
        return _waves(length, like)

    @torch.no_grad()
    def drop_probabilities(self, batch: Any) -> Tensor:
        """The mean P(drop) of each layer over the valid positions of a batch: [layers]"""
        ids, mask = ids_and_mask(batch)
        valid = pairs(mask).unsqueeze(0)
        p = self(ids, mask).sigmoid()
        return (p * valid).flatten(1).sum(1) / valid.sum()


def ids_and_mask(batch: Any) -> tuple[Tensor, Tensor]:
    """Token ids and padding mask as [rows, L]; a head that flattens its choices has more rows than examples."""
    ids = batch["input_ids"]
    mask = batch.get("attention_mask")
    mask = torch.ones_like(ids) if mask is None else mask
    return ids.reshape(-1, ids.shape[-1]), mask.reshape(-1, ids.shape[-1])


def pairs(mask: Tensor) -> Tensor:
    """[rows, L, L]: both the query and the key are real tokens."""
    real = mask.bool()
    return real.unsqueeze(1) & real.unsqueeze(2)


def _positions(model: Any, tokens: nn.Embedding) -> Tensor | None:
    """The model's table of positions without the rows before its first, or None where it has no such table."""
    for name, module in model.named_modules():
        known = any(word in name for word in ("position_embeddings", "embed_positions", "wpe"))
        if known and isinstance(module, nn.Embedding) and module.weight.shape[1] == tokens.weight.shape[1]:
            first = getattr(module, "offset", None)
            if first is None:
                first = 0 if module.padding_idx is None else module.padding_idx + 1
            return module.weight[first:]
    return None


def _waves(length: int, like: Tensor) -> Tensor:
    """Sinusoids, for models whose positions are not in a table."""
    width = like.shape[-1]
    at = torch.arange(length, device=like.device, dtype=like.dtype)[:, None]
    rate = torch.exp(torch.arange(0, width, 2, device=like.device, dtype=like.dtype) * (-math.log(10000.0) / width))
    waves = torch.zeros(length, width, device=like.device, dtype=like.dtype)
    waves[:, 0::2] = torch.sin(at * rate)
    waves[:, 1::2] = torch.cos(at * rate[: width // 2])
    return waves * 0.02
