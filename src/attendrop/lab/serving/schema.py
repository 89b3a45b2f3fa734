"""The JSON of requests and answers, as pydantic classes, which OpenAPI describes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from ..tasks import Task, kind_of

Columns = dict[str, list[Any]]


class Answer(BaseModel):
    """The prediction for one example. What a kind of task does not have is left out."""

    prediction: str | int | float | list[str] = Field(
        description="The class, the number, the labels, or one tag for each word."
    )
    probabilities: dict[str, float] | None = Field(None, description="The probability of each class or label.")
    decision: str | None = Field(None, description="The prediction, or `unsure`; see --min-confidence.")
    prediction_set: list[str] | None = Field(None, description="The classes that are possible; see --coverage.")
    words: list[str] | None = Field(None, description="The words that have tags.")
    probability: list[float | None] | None = Field(None, description="Of each word's tag; null = it was cut off.")


class Answers(BaseModel):
    """One answer for each example, in order."""

    answers: list[Answer]


class Problem(BaseModel):
    """Why a request was refused, as a sentence."""

    error: str


class Health(BaseModel):
    """The served model."""

    status: str
    task: str
    kind: str
    inputs: list[str]
    labels: list[str]
    max_length: int
    attendrop: str


def request_class(task: Task, most: int) -> Any:
    """Return the class of requests: a text for each example, or a list of texts where an example has several.

    Args:
        task: The task.
        most: The largest number of examples.
    """
    inputs = kind_of(task).inputs(task)
    example: Any = str
    shown: Any = "a text"
    if len(inputs) > 1:
        example = Annotated[list[str], Field(min_length=len(inputs), max_length=len(inputs))]
        shown = [f"a text for {name}" for name in inputs]
    elif kind_of(task).is_per_word:
        example, shown = str | list[str], "a sentence, which is split at its spaces, or a list of words"
    field = Field(min_length=1, max_length=most, description=f"The examples: {shown}.", examples=[[shown]])
    config = ConfigDict(extra="forbid", strict=True)
    return create_model("Examples", __config__=config, texts=(list[example], field))


def answers_of(task: Task, columns: Columns) -> list[dict[str, Any]]:
    """Return the predictions as JSON has them, from the columns of `Predictor.columns`.

    Args:
        task: The task.
        columns: The columns of the texts and of the predictions.
    """
    added = [name for name in columns if name not in task.text]
    of_labels = {name: label for label in task.labels if (name := f"probability_{label}") in columns}
    answers = []
    for place, prediction in enumerate(columns[added[0]]):
        answer: dict[str, Any] = {"prediction": prediction}
        if kind_of(task).is_per_word:
            answer |= {"words": columns[task.text[0]][place], "probability": columns["probability"][place]}
        elif of_labels:
            answer["probabilities"] = {label: columns[name][place] for name, label in of_labels.items()}
        answer |= {name: columns[name][place] for name in ("decision", "prediction_set") if name in columns}
        answers.append(answer)
    return answers
