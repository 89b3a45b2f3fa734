"""Draw one sentence under AD-DROP as a PNG: attention, attribution, candidate region and dropped positions.

python -m attendrop.lab.report.masks "The film is not bad at all." --model distilbert-base-uncased
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...methods.addrop import ADDrop
from ...prune.classifier import load_classifier
from .explorer import attention_maps
from .style import saved

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"


def panels(
    model: Any, batch: dict[str, Tensor], layer: int, head: int, p: float, q: float, seed: int
) -> dict[str, Tensor]:
    """Compute the four maps of one layer and head, by their titles in the figure.

    Args:
        model: A model with a classification head, in eval mode.
        batch: The inputs of one sentence.
        layer: The index of the layer.
        head: The index of the head.
        p: The size of the candidate region.
        q: The probability that a candidate is dropped.
        seed: The seed of the draw.

    Returns:
        Attention, attribution, candidate region and dropped positions, each `[Q, K]`.
    """
    (maps,) = attention_maps(model, batch, ADDrop(p=p, q=q), [layer], seed)
    if not 0 <= head < len(maps.attention):
        raise ValueError(f"head is {head}; this model has heads 0 to {len(maps.attention) - 1}.")
    return {
        "attention": maps.attention[head],
        "attribution ∂F/∂A": maps.attribution[head],
        f"candidates, p = {p:g}": maps.candidates[head],
        f"dropped, q = {q:g}": maps.dropped[head],
    }


def draw(maps: dict[str, Tensor], tokens: list[str], title: str, path: str | Path | None = None) -> Figure:
    """Draw the four maps next to each other, with the tokens on both axes.

    Args:
        maps: The result of `panels`.
        tokens: The tokens of the sentence.
        title: The title of the figure.
        path: The image file to write; None = none.
    """
    from matplotlib.figure import Figure

    side = max(3.2, 0.26 * len(tokens))
    figure = Figure(figsize=(4 * side + 1.5, side + 1.4), layout="compressed")
    axes = figure.subplots(1, 4)
    attention, attribution, region, dropped = (values.float().cpu() for values in maps.values())
    limit = attribution.abs().max().item() or 1.0
    images = [
        axes[0].imshow(attention, cmap="Blues", vmin=0, vmax=attention.max() or 1),
        axes[1].imshow(attribution, cmap="RdBu_r", vmin=-limit, vmax=limit),
        axes[2].imshow(region, cmap="Blues", vmin=0, vmax=region.max() or 1),
        axes[3].imshow(dropped, cmap="Greys", vmin=0, vmax=1),
    ]
    explanations = ("", "", "\ndark: may be dropped", "\nblack: dropped")
    for axis, name, explanation in zip(axes, maps, explanations, strict=True):
        axis.set_title(name + explanation, fontsize=10)
        axis.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=7)
        axis.set_yticks(range(len(tokens)), tokens if axis is axes[0] else [""] * len(tokens), fontsize=7)
        axis.set_xlabel("key", fontsize=8)
    for axis, image in zip(axes[:2], images[:2], strict=True):
        figure.colorbar(image, ax=axis, shrink=0.75)
    axes[0].set_ylabel("query", fontsize=8)
    figure.suptitle(title, fontsize=10)
    return saved(figure, path, dpi=130)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line of this module.

    Args:
        arguments: The arguments; None = those of the process.
    """
    description = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m attendrop.lab.report.masks", description=description)
    parser.add_argument("sentence")
    parser.add_argument(
        "--model",
        default=DEFAULT_MODEL,
        help="name on the Hub, or a folder, of a sequence classifier; a model without a classification head gets a "
        "randomly initialised one (default: %(default)s)",
    )
    parser.add_argument("--layer", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--head", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--p", type=float, default=0.3, help="size of the candidate region (default: %(default)s)")
    parser.add_argument(
        "--q", type=float, default=0.3, help="probability that a candidate is dropped (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--output", type=Path, default=Path("addrop.png"), help="default: %(default)s")
    options = parser.parse_args(arguments)
    try:
        _run(options)
    except (ValueError, OSError, ImportError) as error:
        print(f"error: {str(error).splitlines()[0]}", file=sys.stderr)
        raise SystemExit(2) from None


def _run(options: argparse.Namespace) -> None:
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer
    from transformers.utils import logging

    ADDrop(p=options.p, q=options.q)  # checks both numbers
    if not options.sentence.strip():
        raise ValueError("the sentence is empty; write one in quotes.")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(options.seed)
    config = AutoConfig.from_pretrained(options.model)
    has_head = any("Classification" in name for name in config.architectures or [])
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    if has_head:
        model = load_classifier(options.model)
    else:
        model = AutoModelForSequenceClassification.from_pretrained(options.model).eval()
    batch = dict(tokenizer(options.sentence, return_tensors="pt", truncation=True, max_length=64))
    maps = panels(model, batch, options.layer, options.head, options.p, options.q, options.seed)
    tokens = tokenizer.convert_ids_to_tokens(batch["input_ids"][0])
    name = Path(options.model).name
    title = f"{name}, layer {options.layer}, head {options.head}" + ("" if has_head else ", with a random head")
    draw(maps, tokens, title, options.output)
    dropped = int(maps[f"dropped, q = {options.q:g}"].sum())
    print(f"{options.output}: {dropped} of {len(tokens) ** 2} positions dropped ({title})")


if __name__ == "__main__":
    main()
