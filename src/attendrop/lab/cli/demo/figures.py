"""The figures of the demo: the curves of the three runs, and what AD-DROP drops in one review."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from rich.text import Text
from transformers import AutoTokenizer

from ....model.attribution import attribute
from ...report.attendout_figure import plot_run
from ...report.learning_curves import plot_histories
from ...report.masks import draw, panels
from ...runs import Result
from ..console import console, shown
from .folder import Reviews
from .options import RUNS, DemoOptions, P, Q


def draw_figures(options: DemoOptions, results: dict[str, Result], dev_reviews: Reviews) -> None:
    """Draw the three figures and print what each shows.

    Args:
        options: The options of the command; the figures are written to its folder.
        results: The result of each run, by its name in `RUNS`.
        dev_reviews: The reviews from which one is chosen for the figure of AD-DROP.
    """
    folder = options.output_dir
    histories = {RUNS[name].title: result.record.history for name, result in results.items() if result.record}
    plot_histories(histories, folder / "runs.png", "accuracy")
    plot_run(folder / "attendout/attendout_run.json", folder / "attendout.png", histories["AttendOut"])
    console.print("\nOne review under AD-DROP", style="bold")
    _draw_review(results["addrop"].model, folder, dev_reviews, options.seed)
    console.print("\nFigures", style="bold")
    for figure, description in (
        ("runs.png", "loss and accuracy of the three runs"),
        ("attendout.png", "how often AttendOut drops in each layer, and its two networks"),
        ("sentence.png", "that review: attention, attribution, candidates and what is dropped"),
    ):
        console.print(f"{shown(folder / figure)}: {description}")


def _draw_review(model: Any, folder: Path, dev_reviews: Reviews, seed: int) -> None:
    """Draw the head of the first layer with the largest attribution, and print what one word cannot attend to."""
    model = model.cpu().eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "addrop")
    batch, label, prediction = _choose_review(model, tokenizer, dev_reviews)
    tokens = tokenizer.convert_ids_to_tokens(batch["input_ids"][0])
    scores = attribute(model, batch, layers=[0])[0][0]
    head = int(scores.abs().amax((1, 2)).argmax())
    maps = panels(model, batch, 0, head, P, Q, seed)
    title = f"AD-DROP, layer 0, head {head}: a {label} review, predicted {prediction}"
    draw(maps, tokens, title, folder / "sentence.png")
    dropped = list(maps.values())[-1]
    words = [i for i, token in enumerate(tokens) if token.isalpha()]
    query = max(words, key=lambda i: int(dropped[i].sum()))
    console.print(
        f"A {label} review, predicted {prediction}. In layer 0, head {head}, this draw drops {int(dropped.sum())} of "
        f"{dropped.numel()} attention positions. The word {tokens[query]!r} cannot attend to the marked tokens:"
    )
    marked = Text(" ").join(
        Text(f"<{token}>", style="bold red") if is_dropped else Text(token)
        for token, is_dropped in zip(tokens, dropped[query].tolist(), strict=True)
    )
    console.print(marked)


def _choose_review(model: Any, tokenizer: Any, dev_reviews: Reviews) -> tuple[dict[str, Any], str, str]:
    """Return inputs, label and prediction of a correctly predicted review of ten or more words, if there is one."""
    for text, label in [review for review in dev_reviews if len(review[0].split()) >= 10] or dev_reviews:
        batch = dict(tokenizer(text, return_tensors="pt", truncation=True, max_length=64))
        with torch.no_grad():
            prediction = model.config.id2label[int(model(**batch).logits[0].argmax())]
        if prediction == label:
            break
    return batch, label, prediction
