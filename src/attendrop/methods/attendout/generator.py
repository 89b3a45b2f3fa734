"""AttendOut's generator: a small network that predicts which attention positions to drop.

    h_0 = LN(token + position embedding)
    S_i = q(h_i) k(h_i)ᵀ / √d             the logits of dropping in layer i: P(drop) = sigmoid(S_i / temperature + c_i)
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
    """Predicts the logits of dropping each position in each layer from the token ids.

    Args:
        tokens: token embeddings to start from, [V, d].
        positions: position embeddings to start from, [n, d]; None: sinusoids.
        layers: the number of layers.
        init_drop: P(drop) at the start. The offsets c are set to its logit.
        layer_offsets: whether the offsets are learned, one for each layer. All other weights are shared by the layers
            and can hardly make the layers differ. The paper has no offsets.
        temperature: divides the scores S.
        causal: whether the model's attention is causal. Positions above the diagonal, which the model masks itself, are
            then not valid.
    """

    def __init__(
        self,
        tokens: Tensor,
        positions: Tensor | None,
        layers: int,
        init_drop: float = 0.5,
        layer_offsets: bool = False,
        temperature: float = 1.0,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.layers, self.temperature, self.causal = layers, temperature, causal
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
        """Return a generator with the token and position embeddings of `model`; `options` as for the class."""
        tokens = model.get_input_embeddings()
        return cls(tokens.weight, _positions(model, tokens), layers, **options)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the logits of dropping, [layers, B, L, L], for ids and padding mask, both [B, L]."""
        h = functional.embedding(ids, self.tokens)
        h = self.norm(h + self._position(ids.shape[1], h))
        is_padding = (~mask.bool()).unsqueeze(1)
        # q / √d, k and v of a layer are computed in one product.
        root = math.sqrt(h.shape[-1])
        weight = torch.cat([self.q.weight / root, self.k.weight, self.v.weight])
        bias = torch.cat([self.q.bias / root, self.k.bias, self.v.bias])
        scores = []
        for layer in range(self.layers):
            q, k, v = functional.linear(h, weight, bias).chunk(3, -1)
            s = q @ k.transpose(-1, -2)
            scores.append(s)
            if layer + 1 < self.layers:
                attention = s.masked_fill(is_padding, torch.finfo(s.dtype).min).softmax(-1)
                h = self.norm(h + self.o(attention @ v))
        return torch.stack(scores).div_(self.temperature).add_(self.offsets.view(-1, 1, 1, 1))

    def has_positions_for(self, length: int) -> bool:
        """Return whether rows of this length use the position embeddings; longer rows use sinusoids."""
        return self.positions is not None and length <= len(self.positions)

    def _position(self, length: int, like: Tensor) -> Tensor:
        if self.positions is not None and self.has_positions_for(length):
            return self.positions[:length]
        return _sinusoids(length, like)

    @torch.no_grad()
    def drop_probabilities(self, batch: Any) -> Tensor:
        """Return the mean over the examples of a batch of the mean P(drop) over their valid positions: [layers]."""
        ids, mask = ids_and_mask(batch)
        valid = pairs(mask, self.causal)
        of_examples = (self(ids, mask).sigmoid() * valid).flatten(2).sum(2) / valid.flatten(1).sum(1).clamp(min=1)
        return of_examples.mean(1)


def ids_and_mask(batch: Any) -> tuple[Tensor, Tensor]:
    """Return token ids and padding mask as [rows, L]. A multiple-choice example has one row for each choice."""
    ids = batch["input_ids"]
    mask = batch.get("attention_mask")
    mask = torch.ones_like(ids) if mask is None else mask
    return ids.reshape(-1, ids.shape[-1]), mask.reshape(-1, ids.shape[-1])


def pairs(mask: Tensor, causal: bool = False) -> Tensor:
    """Return the valid pairs of query and key, bool [rows, L, L]: neither is padding, and the query may see the key.

    Args:
        mask: the padding mask, [rows, L].
        causal: whether a query sees only keys at or before its own position.
    """
    real = mask.bool()
    valid = real.unsqueeze(1) & real.unsqueeze(2)
    return valid.tril() if causal else valid


def count_pairs(mask: Tensor, causal: bool = False) -> Tensor:
    """Return the number of valid pairs of each row, [rows]: n², or n(n+1)/2 in a causal model."""
    n = mask.bool().sum(1)
    return n * (n + 1) // 2 if causal else n.square()


def _positions(model: Any, tokens: nn.Embedding) -> Tensor | None:
    """Return the position embeddings of the model, from its first position on, or None where it has none."""
    for name, module in model.named_modules():
        is_known = any(word in name for word in ("position_embeddings", "embed_positions", "wpe"))
        if is_known and isinstance(module, nn.Embedding) and module.weight.shape[1] == tokens.weight.shape[1]:
            first = getattr(module, "offset", None)
            if first is None:
                first = 0 if module.padding_idx is None else module.padding_idx + 1
            return module.weight[first:]
    return None


def _sinusoids(length: int, like: Tensor) -> Tensor:
    """Sinusoidal position embeddings [length, d], for models without learned ones."""
    width = like.shape[-1]
    position = torch.arange(length, device=like.device, dtype=like.dtype)[:, None]
    rate = torch.exp(torch.arange(0, width, 2, device=like.device, dtype=like.dtype) * (-math.log(10000.0) / width))
    embeddings = torch.zeros(length, width, device=like.device, dtype=like.dtype)
    embeddings[:, 0::2] = torch.sin(position * rate)
    embeddings[:, 1::2] = torch.cos(position * rate[: width // 2])
    return embeddings * 0.02
