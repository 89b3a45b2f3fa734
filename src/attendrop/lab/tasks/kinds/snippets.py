"""Lines of Python that use a model of texts, for its card: their inputs, and how they decode the logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..catalogue import Task


class Snippet:
    """The lines for a class of each text, or of each pair of texts."""

    truncation = ""  # what a reader must know besides the length that texts are truncated to

    def examples(self, task: Task, needs_spaces: bool) -> str:
        """Return the line with the examples.

        Args:
            task: The task.
            needs_spaces: Whether the tokenizer joins words without spaces; see `WordEncoder`.
        """
        if len(task.text) == 2:
            return 'first, second = ["a text", "another one"], ["its second text", "the second text of the other"]'
        return 'texts = ["a text", "another one"]'

    def pipeline_call(self, task: Task) -> str:
        """Return the call of the pipeline `pipe`."""
        options = f"truncation=True{self.pipeline_options()}"
        if len(task.text) == 2:
            return f'pipe([{{"text": one, "text_pair": other}} for one, other in zip(first, second)], {options})'
        return f"pipe(texts, {options})"

    def pipeline_options(self) -> str:
        """Return further arguments of the call, after a comma."""
        return ""

    def batch(self, task: Task, options: str) -> str:
        """Return the lines that make `batch` with `tokenizer`.

        Args:
            task: The task.
            options: The arguments of the tokenizer that truncate and pad.
        """
        if task.is_encoded_apart:
            return (
                f"batch = tokenizer([text for pair in zip(first, second) for text in pair], {options})\n"
                "batch = {name: tensor.unflatten(0, (-1, 2)) for name, tensor in batch.items()}"
            )
        return f"batch = tokenizer({'first, second' if len(task.text) == 2 else 'texts'}, {options})"

    def answers(self, scaled: str, threshold: float) -> str:
        """Return the lines that make answers of `logits`.

        Args:
            scaled: The logits divided by the temperature.
            threshold: The probability above which a label is predicted.
        """
        return (
            f"probabilities = {scaled}.softmax(-1)\n"
            "labels = [model.config.id2label[i] for i in probabilities.argmax(-1).tolist()]"
        )
