"""How a model is used, for its card: with transformers, in plain Python and as ONNX, as `attendrop predict` would.

Every snippet runs as it stands, with the folder of the model in the place of FOLDER.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...errors import UserError
from ..records import FolderRecord
from ..tasks import Task, kind_of, load_tokenizer, modality_of
from ..tasks.kinds import Snippet


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
    snippet = kind.snippet
    if modality.name != "text" or snippet is None:
        return f"{_code(_loading(record, task))}\nor {command}."
    parts = [f"On the command line: {command}; as a service with a page to try texts: `attendrop serve FOLDER`."]
    texts = snippet.examples(task, kind.is_per_word and _needs_spaces(task, folder))
    if not task.is_encoded_apart and (record.compression is None or _is_classifier(record)):
        parts += [_pipeline_sentence(record, task, snippet), _code(_pipeline(record, task, snippet, texts))]
    python = f"{_loading(record, task)}\n{_python(record, task, snippet, texts)}"
    parts += [_python_sentence(record, task), _code(python)]
    parts += ["With ONNX, after the lines above (`pip install 'attendrop[onnx]'`):", _code(_ONNX)]
    if is_pooled(record) and not task.is_encoded_apart and record.compression is None:
        from ...model.sentence_files import LIBRARY, SNIPPET

        parts += [f"With {LIBRARY}, the same logits:", _code(SNIPPET)]
    return "\n\n".join(part.rstrip("\n") for part in parts)


def is_pooled(record: FolderRecord) -> bool:
    """Return whether the head reads a pooling, which no class of transformers does."""
    return "PooledFor" in record.model_class


def needs_our_loader(record: FolderRecord) -> bool:
    """Return whether plain transformers cannot load the model: its head reads a pooling, or it is compressed."""
    return is_pooled(record) or record.compression is not None


def _is_classifier(record: FolderRecord) -> bool:
    return record.model_class.endswith("ForSequenceClassification")


def _code(lines: str) -> str:
    return f"```python\n{lines.strip()}\n```\n"


def _loading(record: FolderRecord, task: Task) -> str:
    """Return how the model and its processor are loaded in Python."""
    modality = modality_of(task)
    processor = f'{modality.processor_called} = {modality.processor_class}.from_pretrained("FOLDER")'
    if needs_our_loader(record) and _is_classifier(record):
        return (
            f"from attendrop import load_classifier\nfrom transformers import {modality.processor_class}\n\n"
            f'{processor}\nmodel = load_classifier("FOLDER")\n'
        )
    if record.compression is not None:
        return (
            f"from attendrop import prune\nfrom transformers import {modality.processor_class}\n\n"
            f'{processor}\nmodel = prune.load("FOLDER")\n'
        )
    model_class = modality.model_class(task)
    return (
        f"from transformers import {modality.processor_class}, {model_class}\n\n{processor}\n"
        f'model = {model_class}.from_pretrained("FOLDER")\n'
    )


def _needs_spaces(task: Task, folder: Path) -> bool:
    """Return whether the tokenizer joins words without spaces; see `WordEncoder`."""
    try:
        encoder: Any = kind_of(task).encoder(task, load_tokenizer(folder), None)
    except UserError:  # there is no tokenizer yet
        return False
    return bool(encoder.needs_spaces)


# ---- transformers ----------------------------------------------------------------------------------------------------


def _pipeline_sentence(record: FolderRecord, task: Task, snippet: Snippet) -> str:
    cut = f"It truncates to {record.max_length} tokens, as the run did"
    if snippet.truncation:
        return f"With transformers. {cut}; {snippet.truncation}:"
    scaled = f"; its scores are not divided by the temperature, {record.temperature:.3g}" * (record.temperature != 1)
    above = f", and a label is predicted where its score is above {record.threshold:g}"
    stranger = " It logs that it does not know the class of the model, and uses it all the same." * is_pooled(record)
    return f"With transformers. {cut}{above * kind_of(task).has_several_labels}{scaled}.{stranger}"


def _pipeline(record: FolderRecord, task: Task, snippet: Snippet, texts: str) -> str:
    name = modality_of(task).pipeline_tag(task)
    if needs_our_loader(record) and _is_classifier(record):
        imports = "from attendrop import load_classifier\nfrom transformers import AutoTokenizer, pipeline\n\n"
        made = (
            'tokenizer = AutoTokenizer.from_pretrained("FOLDER")\n'
            f'pipe = pipeline("{name}", model=load_classifier("FOLDER"), tokenizer=tokenizer)'
        )
    else:
        imports, made = "from transformers import pipeline\n\n", f'pipe = pipeline("{name}", model="FOLDER")'
    return f"{imports}{texts}\n{made}\nanswers = {snippet.pipeline_call(task)}"


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


def _python(record: FolderRecord, task: Task, snippet: Snippet, texts: str) -> str:
    batch = snippet.batch(task, f'truncation=True, max_length={record.max_length}, padding=True, return_tensors="pt"')
    scaled = f"(logits / {record.temperature:.6g})" if record.temperature != 1 else "logits"
    logits = "logits = model(**batch).logits.detach()"
    return "\n".join([texts, batch, logits, snippet.answers(scaled, record.threshold)])


_ONNX = """import onnxruntime
from attendrop.prune import export_onnx

session = onnxruntime.InferenceSession(export_onnx(model, "model.onnx", batch))
logits = session.run(["logits"], {name: tensor.numpy() for name, tensor in batch.items()})[0]"""
