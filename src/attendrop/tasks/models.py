"""Tokenizers and models from the Hub or a folder; whatever can go wrong is told in one sentence.

Weights are read as safetensors only: loading a pickle runs the code in it. Code of a model's own repository is not run
unless the user allows it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from ..errors import UserError
from .catalogue import Task
from .hub import causes, reaching

T = TypeVar("T")

CLASSES = {
    "classification": "AutoModelForSequenceClassification",
    "regression": "AutoModelForSequenceClassification",
    "tokens": "AutoModelForTokenClassification",
    "choice": "AutoModelForMultipleChoice",
    "translation": "AutoModelForSeq2SeqLM",
}

# Suggested where a name is misspelt.
WELL_KNOWN = (
    "albert-base-v2",
    "answerdotai/ModernBERT-base",
    "bert-base-cased",
    "bert-base-multilingual-cased",
    "bert-base-uncased",
    "bert-large-uncased",
    "distilbert-base-uncased",
    "distilroberta-base",
    "facebook/bart-base",
    "google-t5/t5-small",
    "google/electra-base-discriminator",
    "google/electra-small-discriminator",
    "gpt2",
    "Helsinki-NLP/opus-mt-en-de",
    "Helsinki-NLP/opus-mt-en-ro",
    "Helsinki-NLP/opus-mt-tr-en",
    "microsoft/deberta-v3-base",
    "microsoft/mpnet-base",
    "roberta-base",
    "roberta-large",
    "sentence-transformers/all-MiniLM-L6-v2",
    "xlm-roberta-base",
)
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def load_tokenizer(name: str | Path, *, trust_remote_code: bool = False) -> Any:
    """Pads on the right, as training wants it, with the end-of-text token where there is no token for it (GPT-2)."""
    import transformers

    found, options = _located(name), {"trust_remote_code": trust_remote_code}
    tokenizer = _loaded(name, lambda: transformers.AutoTokenizer.from_pretrained(found, **options))
    # Without any file of a tokenizer the library makes one that knows no words.
    if len(tokenizer) <= len(tokenizer.all_special_tokens):
        raise UserError(f"{name} has no tokenizer: its vocabulary is empty.")
    tokenizer.padding_side = "right"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_model(
    name: str | Path,
    task: Task,
    labels: Sequence[str] | None = None,
    *,
    trust_remote_code: bool = False,
    tokenizer: Any = None,
    notes: list[str] | None = None,
) -> Any:
    """The model with the head of the task, in float32; a head that does not fit is made anew, which `notes` say.

    `labels` are the names of the labels, those of the task unless given.
    """
    import torch
    import transformers

    notes = [] if notes is None else notes
    found, options = _located(name), {"trust_remote_code": trust_remote_code}
    config = _loaded(name, lambda: transformers.AutoConfig.from_pretrained(found, **options))
    before = dict(getattr(config, "id2label", None) or {})
    names = tuple(task.labels if labels is None else labels)
    if task.kind == "regression":
        config.num_labels, config.problem_type = 1, "regression"
    elif task.kind in ("classification", "tokens"):
        config.id2label = dict(enumerate(names))
        config.label2id = {label: place for place, label in enumerate(names)}
        if task.kind == "classification":
            config.problem_type = "single_label_classification"
    auto = getattr(transformers, CLASSES[task.kind])
    remote = trust_remote_code and CLASSES[task.kind] in getattr(config, "auto_map", {})
    if type(config) not in auto._model_mapping and not remote:
        raise UserError(
            f"{name} is a {config.model_type} model, which transformers cannot give a head for {task.kind}."
        )

    def load() -> Any:
        return auto.from_pretrained(
            found,
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **options,
        )

    with _silent(bars=Path(found).is_dir()):
        model, report = _loaded(name, load)
    notes += _told(name, report, before, names if task.kind in ("classification", "tokens") else ())
    if tokenizer is not None:
        _fit_tokenizer(name, model, tokenizer)
    return model


def _told(name: str | Path, report: dict[str, Any], before: dict[int, str], labels: tuple[str, ...]) -> list[str]:
    """The library's loading report as sentences."""
    told = []
    resized = sorted(key for key, *_ in report["mismatched_keys"])
    if resized:
        told.append(f"{name} has a head of another size; {', '.join(resized)} start anew")
    missing = sorted(report["missing_keys"])
    if missing:
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        told.append(f"{', '.join(missing[:4])}{more} are not in {name} and start at random")
    if not resized and not missing and labels:
        old = tuple(before[place] for place in sorted(before))
        meant = any(label != f"LABEL_{place}" for place, label in enumerate(old))
        if meant and old != labels:
            told.append(f"the head of {name} was trained for {', '.join(old)} and goes on as {', '.join(labels)}")
    return told


def _fit_tokenizer(name: str | Path, model: Any, tokenizer: Any) -> None:
    known = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > known:
        raise UserError(f"the tokenizer has {len(tokenizer):,} tokens, and {name} knows {known:,}; give the right one.")
    if getattr(model.config, "pad_token_id", None) is None:
        model.config.pad_token_id = tokenizer.pad_token_id


@contextmanager
def _silent(bars: bool) -> Iterator[None]:
    """Without the library's report and, with `bars`, its progress bars; as they were afterwards."""
    from transformers.utils import logging

    verbosity, shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if bars:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars and shown:
            logging.enable_progress_bar()


def _located(name: str | Path) -> str:
    """A folder that exists, or what may be a name on the Hub."""
    text, path = str(name), Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            held = "an adapter; merge it into its model first" if (path / "adapter_config.json").is_file() else ""
            raise UserError(f"the folder {text} has no config.json: it holds {held or 'no model of transformers'}.")
        return str(path)
    if path.exists():
        raise UserError(f"model is {text}, which is a file; give the folder with config.json and model.safetensors.")
    if isinstance(name, Path) or text.startswith(("/", ".", "~")) or "\\" in text or text.count("/") > 1:
        siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        near = difflib.get_close_matches(path.name, siblings, n=1)
        raise UserError(
            f"the folder {text} does not exist{f'; did you mean {path.parent / near[0]}?' if near else '.'}"
        )
    return text


def _loaded(name: str | Path, load: Callable[[], T]) -> T:
    """Runs `load` and tells what went wrong."""
    try:
        with nullcontext() if Path(name).is_dir() else reaching():
            return load()
    except UserError:
        raise
    except Exception as error:
        raise UserError(_explained(str(name), error)) from error


def _explained(name: str, error: Exception) -> str:
    kinds = {type(cause).__name__ for cause in causes(error)}
    text = " ".join(str(error).split())
    folder = Path(name).expanduser()
    if "trust_remote_code" in text or "custom code" in text:
        return f"{name} needs code from its own repository; read it there, and allow it with --trust-remote-code."
    if kinds & {"GatedRepoError"}:
        return f"{name} is gated on the Hub; ask for access there and log in with `hf auth login`."
    if kinds & {"RepositoryNotFoundError", "HFValidationError"}:
        return f"model is {name!r}, which is neither a folder nor a model on the Hub{_suggestion(name)}"
    if kinds & {"LocalEntryNotFoundError", "OfflineModeIsEnabled", "ConnectionError", "ConnectError", "Timeout"}:
        return (
            f"model is {name!r}, which is no folder here, and the Hub cannot be reached to look for it; check the "
            f"connection or give a folder{_suggestion(name)}"
        )
    if "SafetensorError" in kinds:
        return f"{_broken(folder)} is cut short or is no safetensors file; copy it again."
    if "safetensors" in text and ("no file named" in text or "not appear to have" in text):
        pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern)) if folder.is_dir() else []
        if pickles or not folder.is_dir():
            which = f"{folder / pickles[0]} is a pickle" if pickles else f"{name} has no safetensors, only pickles"
            return f"{which}, and loading one runs the code in it; convert the weights to safetensors."
        return f"the folder {name} has no weights (model.safetensors)."
    if "JSONDecodeError" in kinds:
        return f"a JSON file of {name} is broken: {text.rstrip('.')}."
    return f"{name} cannot be loaded: {text.split('. ')[0].rstrip('.')}."


def _suggestion(name: str) -> str:
    short = {known.split("/")[-1].lower(): known for known in WELL_KNOWN}
    near = difflib.get_close_matches(name.split("/")[-1].lower(), short, n=1, cutoff=0.75)
    return f"; did you mean {short[near[0]]}?" if near and short[near[0]] != name else "."


def _broken(folder: Path) -> Path:
    """The file that cannot be opened."""
    from safetensors import SafetensorError, safe_open

    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt"):
                pass
        except (SafetensorError, OSError):
            return path
    return folder
