"""Draws one sentence under AD-DROP: attention, attribution, candidate region and kept mask, as a PNG.

python -m attendrop.methods.addrop "The film is not bad at all." --model distilbert-base-uncased
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..kernels.attribution_mask import candidates, keep_mask
from ..kernels.draws import uniform
from ..model.attribution import scores
from ..model.probe import Probe
from ..model.seams import bind
from ..random import key_of

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"


def panels(
    model: Any, batch: dict[str, Tensor], layer: int, head: int, p: float, q: float, seed: int
) -> dict[str, Any]:
    """The four maps of one layer and head for a batch of one sentence, each [Q, K]."""
    seams = bind(model)
    try:
        site = seams.select([layer])[0]
        _, score, record = next(scores(Probe(model, seams, batch), [site]))
    finally:
        seams.unbind()
    assert score is not None
    if not 0 <= head < score.shape[1]:
        raise ValueError(f"head is {head}; this model has heads 0 to {score.shape[1] - 1}.")
    draws = uniform(key_of(seed, 0, site), torch.zeros(1, dtype=torch.long), tuple(score.shape[1:]))
    region = candidates(score, record.valid, p)
    keep = keep_mask(score, record.valid, p, q, draws)
    return {
        "attention": record.attention()[0, head],
        "attribution ∂F/∂A": score[0, head],
        f"candidates, p = {p:g}": region[0, head],
        f"kept, q = {q:g}": keep[0, head],
    }


def draw(maps: dict[str, Tensor], tokens: list[str], title: str, path: Path) -> None:
    """Four square panels side by side, tokens on both axes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    side = max(3.2, 0.26 * len(tokens))
    figure, axes = pyplot.subplots(1, 4, figsize=(4 * side + 1.5, side + 1.4), layout="compressed")
    notes = ("", "", "\ndark: may be dropped", "\nblack: dropped")
    for number, (axis, (name, values)) in enumerate(zip(axes, maps.items(), strict=True)):
        values = values.float().cpu()
        if number == 1:
            limit = values.abs().max().item() or 1.0
            image = axis.imshow(values, cmap="RdBu_r", vmin=-limit, vmax=limit)
        else:
            image = axis.imshow(values, cmap="Blues" if number != 3 else "Greys_r", vmin=0, vmax=values.max() or 1)
        if number < 2:
            figure.colorbar(image, ax=axis, shrink=0.75)
        axis.set_title(name + notes[number], fontsize=10)
        axis.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=7)
        axis.set_yticks(range(len(tokens)), tokens if number == 0 else [""] * len(tokens), fontsize=7)
        axis.set_xlabel("key", fontsize=8)
    axes[0].set_ylabel("query", fontsize=8)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m attendrop.methods.addrop", description=__doc__.splitlines()[0])
    parser.add_argument("sentence")
    parser.add_argument(
        "--model",
        default=DEFAULT_MODEL,
        help="a Hub name or a folder with a sequence classifier; a model without such a head gets a fresh one "
        "(default: %(default)s)",
    )
    parser.add_argument("--layer", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--head", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--p", type=float, default=0.3, help="size of the candidate region (default: %(default)s)")
    parser.add_argument("--q", type=float, default=0.3, help="probability of a drop (default: %(default)s)")
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

    from ..methods.addrop import ADDrop

    ADDrop(p=options.p, q=options.q)  # says what is wrong with the numbers
    if not options.sentence.strip():
        raise ValueError("the sentence is empty; write one in quotes.")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(options.seed)
    config = AutoConfig.from_pretrained(options.model)
    fresh = not any("Classification" in name for name in config.architectures or [])
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForSequenceClassification.from_pretrained(options.model).eval()
    batch = dict(tokenizer(options.sentence, return_tensors="pt", truncation=True, max_length=64))
    maps = panels(model, batch, options.layer, options.head, options.p, options.q, options.seed)
    tokens = tokenizer.convert_ids_to_tokens(batch["input_ids"][0])
    name = Path(options.model).name
    title = f"{name}, layer {options.layer}, head {options.head}" + (", with a fresh head" if fresh else "")
    draw(maps, tokens, title, options.output)
    dropped = int((~maps[f"kept, q = {options.q:g}"]).sum())
    print(f"{options.output}: {dropped} of {len(tokens) ** 2} positions dropped ({title})")
