"""`attendrop soup`: one model whose weights are the average of the runs of one method."""

from __future__ import annotations

import statistics
from typing import Annotated

import typer

from ..studies.soup import Soup, make_soup
from .console import console, plain_table, quiet_libraries, shown


@quiet_libraries()
def command(
    folder: Annotated[str, typer.Argument(help="The folder of `attendrop compare --keep-models`.")],
    output_dir: Annotated[str, typer.Option(help="Folder to write the model to.")],
    kind: Annotated[
        str,
        typer.Option(help="uniform: all runs; greedy: those with which the validation score rises."),
    ] = "greedy",
    method: Annotated[str | None, typer.Option(help="The method whose runs are averaged, as in the study.")] = None,
    task: Annotated[str | None, typer.Option(help="The task, if the study has several.")] = None,
    size: Annotated[
        str | None, typer.Option(help="The amount of data, if the study has several, such as fraction=0.1.")
    ] = None,
) -> None:
    def say(text: str) -> None:
        console.print(shown(text), style="dim", soft_wrap=True)

    print_soup(make_soup(folder, output_dir, kind, method, task, size, say))


def print_soup(soup: Soup) -> None:
    """Print the scores of a soup beside those of its runs.

    Args:
        soup: The soup.
    """
    parts = [part for part, scores in soup.scores.items() if soup.metric in scores]
    titles = [f"{part} {name}" for part in parts for name in dict.fromkeys((soup.metric, "loss"))]
    table = plain_table("", *titles)
    table.add_row(f"{soup.kind} soup of {len(soup.seeds)}", *_cells(soup, [soup.scores], parts))
    members = soup.members
    table.add_row(f"mean of {len(members)} runs", *_cells(soup, list(members.values()), parts))
    if soup.kind == "greedy":
        table.add_row(f"best run, seed {soup.seeds[0]}", *_cells(soup, [members[soup.seeds[0]]], parts))
    console.print(table)
    for sentence in soup.sentences:
        console.print(shown(sentence), soft_wrap=True)
    place = shown(soup.folder)
    console.print(f"the model is in {place}; predict with: attendrop predict {place} TEXT", soft_wrap=True)


def _cells(soup: Soup, scores: list[dict[str, dict[str, float]]], parts: list[str]) -> list[str]:
    names = dict.fromkeys((soup.metric, "loss"))
    return [f"{statistics.fmean(of[part][name] for of in scores):.4f}" for part in parts for name in names]
