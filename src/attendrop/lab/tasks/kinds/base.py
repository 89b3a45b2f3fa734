"""The facts and parts of a kind of task, so that the rest of the package never compares kinds.

A kind is made of parts. Each is a small class that a module of a kind extends where it differs:

    Kind        facts and the head of the model                                   (this module)
    Reading     the user's files: columns, labels, rows that cannot be used       reading.py
    Encoder     texts → token ids                                                 encoder.py
    Codec       labels → numbers, outputs of the Trainer → predictions, metrics   codec.py
    Answers     predictions and gold answers of a split: losses, columns      answers.py
    LinearHead  a linear model of features: a baseline, and the first weights of a head    heads.py
    Members     what is stored of a run so that seeds can be averaged             members.py
    Snippet     lines of Python on the card that use the model                    snippets.py
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from .answers import Answers
from .codec import Codec
from .encoder import Encoder
from .heads import LinearHead
from .members import Members
from .reading import Reading, Request
from .snippets import Snippet

if TYPE_CHECKING:
    from datasets import Dataset

    from ..catalogue import Task

__all__ = ["Kind", "Request"]


class Kind:
    """A kind of task. Every fact has the value that most kinds have; a subclass names the others.

    Attributes:
        name: The value of `Task.kind` and of --kind.
        spoken: Its name in sentences; empty = `name`.
        modalities: The possible modalities of its examples.
        metrics: The metrics of a task from the user's files. The first one selects the best model.
        further_metrics: Metrics that an evaluation has besides those of the task.
        model_class: The class of transformers that loads a model of texts with its head.
        pipeline_tag: The name of such a task on the Hub, for texts.
    """

    name: ClassVar[str]
    spoken: ClassVar[str] = ""
    modalities: ClassVar[Collection[str]] = ("text",)
    metrics: ClassVar[tuple[str, ...]] = ("accuracy",)
    further_metrics: ClassVar[tuple[str, ...]] = ()
    model_class: ClassVar[str] = "AutoModelForSequenceClassification"
    pipeline_tag: ClassVar[str] = "text-classification"

    # ---- facts about the labels ------------------------------------------------------------------------------------

    has_one_class: ClassVar[bool] = False  # each example has one class: it can be stratified and balanced by class
    has_named_labels: ClassVar[bool] = False  # the head has an output for each label, which has a name
    has_numbers: ClassVar[bool] = False  # labels are numbers and not indices of names
    has_several_labels: ClassVar[bool] = False  # each example has any number of the labels
    is_per_word: ClassVar[bool] = False  # an example is a list of words, and each word has a label
    has_endings: ClassVar[bool] = False  # an example has one row of tokens for each answer to choose from
    is_generated: ClassVar[bool] = False  # the model writes a text, and the last text column has the right one
    is_masked: ClassVar[bool] = False  # the labels are words of the text that are hidden
    divides_texts: ClassVar[bool] = False  # a text that is too long becomes several examples
    has_answers: ClassVar[bool] = True  # the model can be used as it is, and its predictions are evaluated

    # ---- facts about training --------------------------------------------------------------------------------------

    has_new_head: ClassVar[bool] = True  # the head is no part of the pretrained model, and averages over its batch
    is_scored_from_logits: ClassVar[bool] = True  # metrics need no more than the logits of one forward pass
    can_be_pooled: ClassVar[bool] = False  # the head may read a pooling of the hidden states of texts
    can_weigh_classes: ClassVar[bool] = False
    weighs_rare_classes: ClassVar[bool] = False  # classes of different sizes have weights unless the user says no
    can_focus: ClassVar[bool] = False  # the focal loss
    can_smooth: ClassVar[bool] = False  # label smoothing
    learning_rate: ClassVar[float] = 2e-5  # for a model of the width of BERT-base
    fixed_recipe: ClassVar[tuple[int, float] | None] = None  # epochs and learning rate for all data and models

    # ---- parts -----------------------------------------------------------------------------------------------------

    reading: ClassVar[Reading] = Reading()
    encoder: ClassVar[type[Encoder]] = Encoder
    codec: ClassVar[type[Codec]] = Codec
    answers: ClassVar[type[Answers]] = Answers
    linear: ClassVar[LinearHead | None] = None  # None = no linear model of features is fitted
    members: ClassVar[Members | None] = None  # None = predictions of several runs cannot be averaged
    snippet: ClassVar[Snippet | None] = None  # None = the card only says how a model of texts is loaded

    @property
    def labels_are_lists(self) -> bool:
        """Whether an example has a list of labels."""
        return self.is_per_word or self.has_several_labels

    # ---- columns ---------------------------------------------------------------------------------------------------

    def inputs(self, task: Task) -> tuple[str, ...]:
        """Return the text columns that the model reads."""
        return task.text

    def target(self, task: Task) -> str | None:
        """Return the column with the gold answers."""
        return task.label

    def corpus(self, task: Task) -> tuple[str, ...]:
        """Return the text columns to learn masked words from."""
        return task.text

    def from_hub(self, split: Dataset) -> Dataset:
        """Return a split of the Hub with one column for each text and label."""
        return split

    # ---- labels and predictions as users see them ------------------------------------------------------------------

    def default_metrics(self, labels: Sequence[str]) -> tuple[str, ...]:
        """Return the metrics of a task from the user's files.

        Args:
            labels: The label names.
        """
        return self.metrics

    def label_name(self, task: Task, value: Any) -> Any:
        """Return the label of an example by name, of its value in `Data`."""
        return value

    def separator(self, task: Task) -> str:
        """Return the separator of the labels of one example in a table."""
        return task.label_separator or ","

    def on_command_line(self, task: Task, example: str) -> str:
        """Return an example of the task as arguments of `attendrop predict`.

        Args:
            task: The task.
            example: An example of its modality.
        """
        return f'{example} "a second text"' if len(self.inputs(task)) == 2 else example

    # ---- the model -------------------------------------------------------------------------------------------------

    def set_head(self, config: Any, labels: tuple[str, ...]) -> None:
        """Set the fields of a configuration that decide the size of the head and its loss.

        Args:
            config: The configuration of the model.
            labels: The label names, for a kind with named labels.
        """
        if self.has_named_labels:
            config.id2label = dict(enumerate(labels))
            config.label2id = {label: index for index, label in enumerate(labels)}

    def collator(self, tokenizer: Any, seed: int, mlm_probability: float) -> Any:
        """Return a function that makes a batch of encoded examples.

        Args:
            tokenizer: The tokenizer, which pads.
            seed: The seed of the collator's draws.
            mlm_probability: The share of the words that is hidden.
        """
        import transformers

        return transformers.DataCollatorWithPadding(tokenizer)

    def example_inputs(self, ids: Any) -> dict[str, Any]:
        """Return the inputs of the model for one text.

        Args:
            ids: Its token ids, `[1, L]`.
        """
        return {"input_ids": ids}

    def reduction(self) -> Any:
        """Return the Trainer's `preprocess_logits_for_metrics`; None = nothing is reduced."""
        return keep_logits

    def as_values(self, outputs: Any) -> Any:
        """Return the outputs of the model in the shape of `Answers.values`."""
        return outputs


def keep_logits(outputs: Any, labels: Any) -> Any:
    """Keep the logits only, for the Trainer's `preprocess_logits_for_metrics`: hidden states would fill the memory.

    Args:
        outputs: The outputs of the model: the logits, or a tuple that begins with them.
        labels: Not used.
    """
    return outputs[0] if isinstance(outputs, (tuple, list)) else outputs
