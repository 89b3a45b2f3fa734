"""`attendrop compress`: a finished run made faster, and no worse if it can be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import UserError
from ..compression.listener import Listener
from .console import announced, console, errors, print_sentence, quiet_libraries, shown, timed_bar
from .signals import exits_on_interrupt

if TYPE_CHECKING:
    from ...prune import Stage


@announced("loading the model")
@quiet_libraries()
def command(
    folder: Annotated[str, typer.Argument(help="The folder that `attendrop train` wrote.")],
    target: Annotated[
        str | None, typer.Option(help="How many times faster, measured on this machine, such as 2x.")
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="As fast as possible with at most this loss of the score, such as 0.01.")
    ] = None,
    count: Annotated[int | None, typer.Option(help="This number of edits, however fast and good the model is.")] = None,
    unlabelled: Annotated[
        str | None, typer.Option(help="A file with further texts to train on, with the columns of the training file.")
    ] = None,
    teacher: Annotated[
        str | None,
        typer.Option(help="A study of `attendrop compare --keep-models`, whose seeds together are the teacher."),
    ] = None,
    teacher_method: Annotated[
        str | None, typer.Option(help="The method of the study whose runs are the teacher, if it has several.")
    ] = None,
    output_dir: Annotated[str | None, typer.Option(help="Folder to write. [FOLDER-compressed]")] = None,
    ways: Annotated[
        str | None,
        typer.Option(
            help="What may be done, first things first: tail, constant (attention), remove (blocks). "
            "[tail,constant; constant where a criterion chooses the layers]"
        ),
    ] = None,
    layers: Annotated[
        str,
        typer.Option(help="How layers are chosen: top, greedy, similarity, gradient, or gate (of an AttendOut run)."),
    ] = "top",
    gate_threshold: Annotated[
        float | None,
        typer.Option(help="With --layers gate: layers with at most this drop probability keep their attention."),
    ] = None,
    stage_epochs: Annotated[float, typer.Option(help="Passes over the texts after each change.")] = 1.0,
    final_epochs: Annotated[float, typer.Option(help="Passes over the texts at the end.")] = 3.0,
    learning_rate: Annotated[float | None, typer.Option(help="Learning rate; by default a short search.")] = None,
    batch_size: Annotated[int, typer.Option(help="Texts in a step.")] = 16,
    seed: Annotated[int, typer.Option(help="Seed of the selection and of the order of the texts.")] = 0,
    best_effort: Annotated[
        bool, typer.Option("--best-effort", help="Write the fastest model also if the target is not reached.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier run in the output folder.")
    ] = False,
) -> None:
    with exits_on_interrupt():
        from ..compression.run_folder import compress_run

    speed = _speed(target)
    terminal = _Terminal()
    try:
        done = compress_run(
            folder, output_dir, overwrite=overwrite, listener=terminal, target=speed, tolerance=tolerance,
            unlabelled=unlabelled, teacher=teacher, teacher_method=teacher_method,
            ways=None if ways is None else _parts(ways), layers=layers, gate_threshold=gate_threshold, count=count,
            stage_epochs=stage_epochs, final_epochs=final_epochs, learning_rate=learning_rate, batch_size=batch_size,
            seed=seed, best_effort=best_effort,
        )  # fmt: skip
    except KeyboardInterrupt:
        terminal.bar.stop()
        console.print("stopped; the same command goes on after the last whole stage", soft_wrap=True)
        raise typer.Exit(130) from None
    finally:
        terminal.bar.stop()
    for sentence in done.compression.sentences:
        print_sentence(shown(sentence))
    place = shown(done.folder)
    console.print(f"the model is in {place}; predict with: attendrop predict {place} TEXT", soft_wrap=True)


def _speed(target: str | None) -> float | None:
    if target is None:
        return None
    try:
        return float(target.strip().lower().removesuffix("x").removesuffix("×"))
    except ValueError:
        raise UserError(f"target is {target!r}; it must be a speed-up such as 2x or 1.5.") from None


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


class _Terminal(Listener):
    """Shows what is pruned, the speed and the score so far."""

    def __init__(self) -> None:
        self.bar = timed_bar(errors, transient=True)
        self.state = ""

    def note(self, text: str) -> None:
        print_sentence(f"[yellow]warning:[/yellow] {shown(text[9:])}" if text.startswith("warning: ") else shown(text))

    def progress(self, what: str, done: int, total: int) -> None:
        if not self.bar.tasks:
            self.bar.add_task(what, total=total)
            self.bar.start()
        self.bar.update(self.bar.task_ids[0], description=f"{what}{self.state}", completed=done, total=total)

    def stage(self, stage: Stage) -> None:
        score: Any = "" if stage.score is None else f", score {abs(stage.score):.4f}"
        self.state = f" ({stage.speedup:.2f}×{score})"
        console.print(f"{stage.edit}: {stage.speedup:.2f}×{score}, divergence {stage.divergence:.4f}", soft_wrap=True)
