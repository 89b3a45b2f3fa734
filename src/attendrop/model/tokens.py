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
    """Whether the keys of the site are those of the decoder, in a model that has an encoder too."""
    config = unwrapped(model).config
    return bool(getattr(config, "is_encoder_decoder", False)) and "decoder" in site.stack and site.kind == "self"


def real_keys(model: nn.Module, site: Site, batch: Mapping[str, Any]) -> Tensor:
    """The keys of the site that are not padding: bool [rows, K]. In a decoder these are the positions with a label."""
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
