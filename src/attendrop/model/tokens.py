"""Which positions of a batch hold tokens of the text, or frames of the sound, and which are padding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .objective import IGNORED
from .sites import Site, map_shape, unwrapped
from .sounds import frames_of


def is_decoder_of_two(model: nn.Module, site: Site) -> bool:
    """Return whether the keys of the site are those of the decoder, in a model that has an encoder too."""
    config = unwrapped(model).config
    return bool(getattr(config, "is_encoder_decoder", False)) and "decoder" in site.stack and site.kind == "self"


def real_keys(model: nn.Module, site: Site, batch: Mapping[str, Any]) -> Tensor:
    """Return the keys of the site that are not padding: bool [rows, K].

    In a decoder these are the positions with a label.
    """
    rows, _, keys = map_shape(site, batch)
    if is_decoder_of_two(model, site):
        mask = batch.get("decoder_attention_mask")
        labels = batch.get("labels")
        if mask is None and labels is not None and labels.dim() > 1:
            mask = labels != IGNORED
    else:
        mask = batch.get("attention_mask")
        if mask is not None and site.convolutions:  # it counts samples
            mask = torch.arange(keys, device=mask.device) < frames_of(mask.sum(-1, keepdim=True), site.convolutions)
    if mask is None or mask.numel() != rows * keys:
        return torch.ones(rows, keys, dtype=torch.bool, device=next(model.parameters()).device)
    return mask.reshape(rows, keys).bool()


def text_lengths(model: nn.Module, site: Site, batch: Mapping[str, Any]) -> Tensor:
    """Return the number of tokens in the text that each key belongs to: [rows, 1], or [rows, K] where texts are packed.

    Packed texts share a row without a mask, and their positions begin at 0 again.
    """
    positions = batch.get("position_ids")
    rows, _, keys = map_shape(site, batch)
    if batch.get("attention_mask") is not None or positions is None or positions.shape != (rows, keys):
        return real_keys(model, site, batch).sum(-1, keepdim=True)
    text = (positions == 0).cumsum(-1)
    counts = torch.zeros(rows, keys + 1, dtype=torch.long, device=text.device).scatter_add_(
        1, text, text.new_ones(text.shape)
    )
    return counts.gather(1, text)
