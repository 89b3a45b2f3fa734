"""How a model is used, for its card: with transformers, in plain Python and as ONNX, as `attendrop predict` would.

Every snippet runs as it stands, with the folder of the model in the place of FOLDER.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...errors import UserError
from ..records import FolderRecord
from ..tasks import Task, kind_of, load_tokenizer, modality_of

_KINDS = ("classification", "regression", "multilabel", "token_classification")


def usage(record: FolderRecord, task: Task, folder: Path) -> str:
    """Return the section of the card.

    Args:
        record: The record of the run.
        task: Its task.
        folder: Its output folder; the tokenizer in it decides how words are written.
    """
    modality, kind = modality_of(task), kind_of(task)
    predict = f"`attendrop predict FOLDER {modality.on_command_line(task)}`"
    command = predict if kind.has_answers else "`attendrop train --model FOLDER`, to fine-tune it"
    if modality.name != "text" or task.kind not in _KINDS:
        return f"{_code(_loading(record, task))}\nor {command}."
    parts = [f"On the command line: {command}; as a service with a page to try texts: `attendrop serve FOLDER`."]
    texts = _texts(task, folder)
    if not task.is_encoded_apart:
        parts += [_pipeline_sentence(record, task), _code(_pipeline(record, task, texts))]
    parts += [_python_sentence(record, task), _code(f"{_loading(record, task)}\n{_python(record, task, texts)}")]
    parts += ["With ONNX, after the lines above (`pip install 'attendrop[onnx]'`):", _code(_ONNX)]
    if is_pooled(record) and not task.is_encoded_apart:
        from ...model.sentence_files import LIBRARY, SNIPPET

        parts += [f"With {LIBRARY}, the same logits:", _code(SNIPPET)]
    return "\n\n".join(part.rstrip("\n") for part in parts)


def is_pooled(record: FolderRecord) -> bool:
    """Return whether the head reads a pooling, which no class of transformers does."""
    return "PooledFor" in record.model_class


def _code(lines: str) -> str:
    return f"```python\n{lines.strip()}\n```\n"


def _loading(record: FolderRecord, task: Task) -> str:
    """Return how the model and its processor are loaded in Python."""
    modality = modality_of(task)
    processor = f'{modality.processor_called} = {modality.processor_class}.from_pretrained("FOLDER")'
    if is_pooled(record):
        return (
            f"from attendrop import load_classifier\nfrom transformers import {modality.processor_class}\n\n"
            f'{processor}\nmodel = load_classifier("FOLDER")\n'
        )
    model_class = modality.model_class(task)
    return (
        f"from transformers import {modality.processor_class}, {model_class}\n\n{processor}\n"
        f'model = {model_class}.from_pretrained("FOLDER")\n'
    )


def _texts(task: Task, folder: Path) -> str:
    """Return the line with the examples."""
    if kind_of(task).is_per_word:
        line = 'words = "a sentence that is split into words".split()'
        return f'{line}\nwords[1:] = [f" {{word}}" for word in words[1:]]' if _needs_spaces(task, folder) else line
    if len(task.text) == 2:
        return 'first, second = ["a text", "another one"], ["its second text", "the second text of the other"]'
    return 'texts = ["a text", "another one"]'


def _needs_spaces(task: Task, folder: Path) -> bool:
    """Return whether the tokenizer joins words without spaces; see `WordEncoder`."""
    try:
        encoder: Any = kind_of(task).encoder(task, load_tokenizer(folder), None)
    except UserError:  # there is no tokenizer yet
        return False
    return bool(encoder.needs_spaces)


# ---- transformers ----------------------------------------------------------------------------------------------------


def _pipeline_sentence(record: FolderRecord, task: Task) -> str:
    cut = f"It truncates to {record.max_length} tokens, as the run did"
    if task.kind == "token_classification":
        return f"With transformers. {cut}; the tag of a word is that of its first token:"
    scaled = f"; its scores are not divided by the temperature, {record.temperature:.3g}" * (record.temperature != 1)
    above = f", and a label is predicted where its score is above {record.threshold:g}"
    stranger = " It logs that it does not know the class of the model, and uses it all the same." * is_pooled(record)
    return f"With transformers. {cut}{above * kind_of(task).has_several_labels}{scaled}.{stranger}"


def _pipeline(record: FolderRecord, task: Task, texts: str) -> str:
    name = modality_of(task).pipeline_tag(task)
    if is_pooled(record):
        imports = "from attendrop import load_classifier\nfrom transformers import AutoTokenizer, pipeline\n\n"
        made = (
            'tokenizer = AutoTokenizer.from_pretrained("FOLDER")\n'
            f'pipe = pipeline("{name}", model=load_classifier("FOLDER"), tokenizer=tokenizer)'
        )
    else:
        imports, made = "from transformers import pipeline\n\n", f'pipe = pipeline("{name}", model="FOLDER")'
    if task.kind == "token_classification":
        call = "pipe([words], is_split_into_words=True)[0]"
    elif len(task.text) == 2:
        pairs = '[{"text": one, "text_pair": other} for one, other in zip(first, second)]'
        call = f"pipe({pairs}, truncation=True{', top_k=None' * kind_of(task).has_several_labels})"
    else:
        call = f"pipe(texts, truncation=True{', top_k=None' * kind_of(task).has_several_labels})"
    return f"{imports}{texts}\n{made}\nanswers = {call}"


# ---- Python ----------------------------------------------------------------------------------------------------------


def _python_sentence(record: FolderRecord, task: Task) -> str:
    loaded = ""
    if is_pooled(record):
        read = "the first token" if record.settings.get("pooling") == "cls" else "the mean over the tokens"
        apart = ", of each of the two texts by itself (`input_ids` are `[examples, 2, tokens]`)" * task.is_encoded_apart
        loaded = (
            f" The class of the model is `{record.model_class}`: its head reads {read}{apart}, which no class of "
            "transformers does. `AutoModel` loads the encoder without the head."
        )
    scaled = ", with the temperature that was fitted on the validation data" * (record.temperature != 1)
    return f"In Python{scaled}.{loaded}"


def _python(record: FolderRecord, task: Task, texts: str) -> str:
    cut = f'truncation=True, max_length={record.max_length}, padding=True, return_tensors="pt"'
    if task.kind == "token_classification":
        inputs = f"batch = tokenizer([words], is_split_into_words=True, {cut})"
    elif task.is_encoded_apart:
        inputs = (
            f"batch = tokenizer([text for pair in zip(first, second) for text in pair], {cut})\n"
            "batch = {name: tensor.unflatten(0, (-1, 2)) for name, tensor in batch.items()}"
        )
    else:
        inputs = f"batch = tokenizer({'first, second' if len(task.text) == 2 else 'texts'}, {cut})"
    lines = [texts, inputs, "logits = model(**batch).logits.detach()"]
    scaled = f"(logits / {record.temperature:.6g})" if record.temperature != 1 else "logits"
    if task.kind == "regression":
        lines += ["numbers = logits.squeeze(-1).tolist()"]
    elif task.kind == "multilabel":
        lines += [
            f"probabilities = {scaled}.sigmoid()",
            "labels = [",
            f"    [model.config.id2label[i] for i, p in enumerate(row) if p > {record.threshold!r}]",
            "    for row in logits.sigmoid().tolist()",
            "]",
        ]
    elif task.kind == "token_classification":
        lines += [
            "first = {word: place for place, word in reversed([*enumerate(batch.word_ids(0))]) if word is not None}",
            f"probabilities = {scaled}[0].softmax(-1)",
            "tags = {word: model.config.id2label[int(logits[0, place].argmax())] for word, place in first.items()}",
        ]
    else:
        lines += [
            f"probabilities = {scaled}.softmax(-1)",
            "labels = [model.config.id2label[i] for i in probabilities.argmax(-1).tolist()]",
        ]
    return "\n".join(lines)


_ONNX = """import onnxruntime
from attendrop.prune import export_onnx

session = onnxruntime.InferenceSession(export_onnx(model, "model.onnx", batch))
logits = session.run(["logits"], {name: tensor.numpy() for name, tensor in batch.items()})[0]"""
