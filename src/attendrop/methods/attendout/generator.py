"""AttendOut's generator: a small network that predicts which attention positions to drop.

    h_0 = LN(token + position embedding)          of an image: LN(its patches, as the model embeds them)
    S_i = q(h_i) k(h_i)ᵀ / √d             the logits of dropping in layer i: P(drop) = sigmoid(S_i / temperature + c_i)
    h_{i+1} = LN(h_i + o(softmax(S_i) v(h_i)))

One single-head attention block, without feed-forward, applied once for each layer with shared weights; no output layer.
(Not All Attention Is All You Need, arXiv 2104.04692 v2, section 4.)

Two options are not in the paper. With several `heads` the softmax is that of each head, of q_h k_hᵀ / √(d/heads), and
the logits stay the products of all of q and k. With `feed_forward` the block goes on with h ← LN(h + W₂ gelu(W₁ h)).
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn import functional

from ...errors import UserError, on_one_line
from ...model.sites import unwrapped
from ...utils.files import write_whole

GENERATOR_FILE = "attendout_generator.safetensors"
_SETTINGS = "settings"  # in the header of the file


class Generator(nn.Module):
    """Predicts the logits of dropping each position in each layer from the token ids, or from the pixels of an image.

    Args:
        tokens: token embeddings to start from, [V, d]; or the module that embeds the patches of an image, of which the
            generator has a copy without dropout.
        positions: position embeddings to start from, [n, d]; None: sinusoids.
        layers: the number of layers.
        init_drop: P(drop) at the start. The offsets c are set to its logit.
        layer_offsets: whether the offsets are learned, one for each layer. All other weights are shared by the layers
            and can hardly make the layers differ. The paper has no offsets.
        temperature: divides the scores S.
        causal: whether the model's attention is causal. Positions above the diagonal, which the model masks itself, are
            then not valid.
        heads: of the attention that computes the states of the next layer; they must divide the width d.
        feed_forward: the inner width of a feed-forward part of the block; 0: none, as in the paper.
    """

    def __init__(
        self,
        tokens: Tensor | nn.Module,
        positions: Tensor | None,
        layers: int,
        init_drop: float = 0.5,
        layer_offsets: bool = False,
        temperature: float = 1.0,
        causal: bool = False,
        heads: int = 1,
        feed_forward: int = 0,
    ) -> None:
        super().__init__()
        self.layers, self.temperature, self.causal = layers, temperature, causal
        self.heads, self.feed_forward = heads, feed_forward
        self.patches = None if isinstance(tokens, Tensor) else _without_dropout(tokens)
        if isinstance(tokens, Tensor):
            width = tokens.shape[1]
            self.tokens = nn.Parameter(tokens.detach().float().clone())
        else:
            width = _width_of_patches(tokens)
        self.positions = None if positions is None else nn.Parameter(positions.detach().float().clone())
        self.norm = nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        for linear in (self.q, self.k, self.v, self.o):
            nn.init.normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)
        self.inner = nn.ModuleList()
        if feed_forward:
            linears = [nn.Linear(width, feed_forward), nn.Linear(feed_forward, width)]
            for linear in linears:
                nn.init.normal_(linear.weight, std=0.02)
                nn.init.zeros_(linear.bias)
            self.inner.extend([*linears, nn.LayerNorm(width)])
        offsets = torch.full((layers,), math.log(init_drop / (1 - init_drop)))
        self._counts: dict[tuple[int, ...], int] = {}
        if layer_offsets:
            self.offsets = nn.Parameter(offsets)
        else:
            self.register_buffer("offsets", offsets)

    @classmethod
    def from_model(cls, model: Any, layers: int, **options: Any) -> Generator:
        """Return a generator with the embeddings of `model`; `options` as for the class."""
        if reads_pixels(model):
            return cls(patch_embeddings(model), None, layers, **options)
        tokens = model.get_input_embeddings()
        return cls(tokens.weight, _positions(model, tokens), layers, **options)

    @property
    def settings(self) -> dict[str, Any]:
        """The options with which `from_model` makes a generator of the same shape."""
        return {
            "layers": self.layers,
            "temperature": self.temperature,
            "causal": self.causal,
            "heads": self.heads,
            "feed_forward": self.feed_forward,
            "layer_offsets": isinstance(self.offsets, nn.Parameter),
        }

    @property
    def device(self) -> torch.device:
        return self.norm.weight.device

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the logits of dropping, [layers, B, L, L].

        Args:
            ids: token ids [B, L], or pixels [B, C, H, W].
            mask: the padding mask, [B, L].
        """
        if self.patches is None:
            h = functional.embedding(ids, self.tokens)
            h = self.norm(h + self._position(ids.shape[1], h))
        else:
            h = self.norm(self.patches(ids))
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
                h = self.norm(h + self.o(self._attend(s, q, k, v, is_padding)))
                if self.inner:
                    first, second, norm = self.inner
                    h = norm(h + second(functional.gelu(first(h))))
        return torch.stack(scores).div_(self.temperature).add_(self.offsets.view(-1, 1, 1, 1))

    def _attend(self, s: Tensor, q: Tensor, k: Tensor, v: Tensor, is_padding: Tensor) -> Tensor:
        """Return the attention over v: by the logits s, or of each head by those of its own parts of q and k."""
        least = torch.finfo(s.dtype).min
        if self.heads == 1:
            return s.masked_fill(is_padding, least).softmax(-1) @ v
        q, k, v = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in (q, k, v))
        of_heads = q @ k.transpose(-1, -2) * math.sqrt(self.heads)  # q has been divided by √d
        attention = of_heads.masked_fill(is_padding.unsqueeze(1), least).softmax(-1)
        return (attention @ v).transpose(1, 2).flatten(2)

    def read(self, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Return what `forward` takes of a batch: ids and padding mask [rows, L], or pixels and a mask of ones."""
        if self.patches is None:
            return ids_and_mask(batch)
        pixels = batch["pixel_values"]
        return pixels, pixels.new_ones((len(pixels), self._patches_of(pixels)), dtype=torch.bool)

    def _patches_of(self, pixels: Tensor) -> int:
        """Return the number of positions of an image, with those of tokens that the model adds."""
        size = tuple(pixels.shape[1:])
        if size not in self._counts:
            with torch.no_grad():
                self._counts[size] = self.patches(pixels[:1]).shape[1]  # type: ignore[misc]
        return self._counts[size]

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
        ids, mask = self.read(batch)
        valid = pairs(mask, self.causal)
        of_examples = (self(ids, mask).sigmoid() * valid).flatten(2).sum(2) / valid.flatten(1).sum(1).clamp(min=1)
        return of_examples.mean(1)


def reads_pixels(model: Any) -> bool:
    """Return whether the model takes images whose patches one of its modules embeds."""
    return getattr(model, "main_input_name", "input_ids") == "pixel_values" and patch_embeddings(model) is not None


def patch_embeddings(model: nn.Module) -> Any:
    """Return the module that makes the positions of a vision transformer from pixels, or None."""
    return next((module for module in model.modules() if hasattr(module, "patch_embeddings")), None)


def embedding_width(model: Any) -> int:
    """Return the width of the generator of a model."""
    if reads_pixels(model):
        return _width_of_patches(patch_embeddings(model))
    return int(model.get_input_embeddings().weight.shape[1])


def save_weights(generator: Generator, folder: Path) -> None:
    """Write a generator into the folder of a run: its weights, and its settings in the header of the file."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in generator.state_dict().items()}
    write_whole(folder / GENERATOR_FILE, save(tensors, {_SETTINGS: json.dumps(generator.settings)}))


def load_generator(run: str | Path, model: Any) -> Generator:
    """Return the generator of a finished AttendOut run, to predict masks or to score the layers of the model.

    Args:
        run: the folder of the run.
        model: the model of the run, or one of the same shape.

    Example:
        scores = prune.score_layers(model, batches, by="gate", generator=load_generator("runs/attendout", model))
    """
    settings, _ = _read(run, "run")
    generator = Generator.from_model(unwrapped(model), **settings)
    load_weights(generator, run, "run")
    return generator.to(next(model.parameters()).device)


def load_weights(generator: Generator, run: str | Path, field: str) -> None:
    """Give a generator the weights of that of a run.

    Args:
        generator: the generator, made for the model that it will serve.
        run: the folder of the run, or the file in it.
        field: what the user set to `run`, for the error message.
    """
    _, tensors = _read(run, field)
    own = {name: tuple(tensor.shape) for name, tensor in generator.state_dict().items()}
    stored = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if different := sorted(name for name in own.keys() | stored.keys() if own.get(name) != stored.get(name)):
        name = different[0]
        raise UserError(
            f"{field} is {str(run)!r}, whose generator has {name} of shape {stored.get(name)}, and that of this model "
            f"and its fields has {own.get(name)}; both need the same vocabulary, width, layers, heads and feed_forward."
        )
    generator.load_state_dict(tensors)


def _read(run: str | Path, field: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the settings and the weights of the generator of a run."""
    path = Path(run)
    path = path / GENERATOR_FILE if path.is_dir() else path
    given = f"{field} is {str(run)!r}"
    if not path.is_file():
        raise UserError(f"{given}, which has no {GENERATOR_FILE}; it must be the folder of a finished AttendOut run.")
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no dict
            return json.loads(file.metadata()[_SETTINGS]), tensors
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{given}, whose {GENERATOR_FILE} is damaged ({on_one_line(error)}).") from None


def _width_of_patches(embeddings: Any) -> int:
    return int(next(m for m in embeddings.patch_embeddings.modules() if isinstance(m, nn.Conv2d)).out_channels)


def _without_dropout(embeddings: nn.Module) -> nn.Module:
    """Return a copy in fp32 that learns and does not drop."""
    own = copy.deepcopy(embeddings).float()
    for module in own.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return own.requires_grad_()


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
