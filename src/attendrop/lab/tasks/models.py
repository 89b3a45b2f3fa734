"""Load tokenizers and models from the Hub or a folder. Every error is one sentence that says what to do.

Weights are loaded from safetensors only, because loading a pickle runs the code in it. Code from the repository of a
model is run only if the user allows it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

from ...errors import UserError
from ...model.pooled_config import SCALES, pooling_of
from ...utils.limits import check_model, check_parameters
from ...utils.loading import wrong_weights
from ...utils.manifest import check_sealed
from ...utils.quiet import quiet_transformers
from .catalogue import Task
from .dropout import set_dropout
from .hub import error_chain, is_path, offline_if_unreachable
from .kinds import kind_of
from .max_length import own_length
from .modalities import modality_of
from .pooling import AUTO, OWN_HEAD, choose_pooling, set_pooling

T = TypeVar("T")

# Suggested if a name is misspelt.
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
_SMALL = 2**26  # bytes of weights; a larger file is no small input
_FEW = 0.1  # of the tensors of the layers may be missing, with a note
_OTHER_PICKLES = ("training_args", "optimizer", "scheduler", "scaler", "rng_state")  # of a Trainer, without weights
_PROCESSOR_FILE = "preprocessor_config.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def load_tokenizer(name: str | Path, *, trust_remote_code: bool = False) -> Any:
    """Load a tokenizer that pads on the right, as training needs it.

    A tokenizer without a padding token (GPT-2) pads with its end-of-text token.

    Args:
        name: A name on the Hub, or a folder.
        trust_remote_code: Whether code from the repository may be run.
    """
    import transformers

    source = _locate(name)
    tokenizer = _load(
        name, lambda: transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
    )
    # Without any tokenizer file, transformers creates a tokenizer with an empty vocabulary.
    if len(tokenizer) <= len(tokenizer.all_special_tokens):
        raise UserError(f"{name} has no tokenizer: its vocabulary is empty.")
    tokenizer.padding_side = "right"
    tokenizer.model_max_length = own_length(tokenizer)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_processor(name: str | Path, task: Task, *, trust_remote_code: bool = False) -> Any:
    """Load the processor of a model: its tokenizer, image processor or feature extractor.

    Args:
        name: A name on the Hub, or a folder.
        task: The task, whose modality decides.
        trust_remote_code: Whether code from the repository may be run.
    """
    return modality_of(task).load_processor(str(name), trust_remote_code=trust_remote_code)


def load_processor_of(auto: Any, name: str, called: str, trust_remote_code: bool) -> Any:
    """Load the processor of a model for images or sounds.

    Args:
        auto: The class of transformers that loads it.
        name: A name on the Hub, or a folder.
        called: Its name in messages.
        trust_remote_code: Whether code from the repository may be run.
    """
    source = _locate(name)
    try:
        return _load(name, lambda: auto.from_pretrained(source, trust_remote_code=trust_remote_code))
    except UserError as error:
        is_folder = Path(source).is_dir()
        if "Unrecognized" not in str(error) and not (is_folder and not Path(source, _PROCESSOR_FILE).is_file()):
            raise
        raise UserError(
            f"{name} has no {called} ({_PROCESSOR_FILE}), which these data need; is it a model for them?"
        ) from None


def load_config(name: str | Path, *, trust_remote_code: bool = False) -> Any:
    """Load the configuration of a model.

    Args:
        name: A name on the Hub, or a folder.
        trust_remote_code: Whether code from the repository may be run.
    """
    import transformers

    source = _locate(name)

    def load() -> Any:
        check_model(name, transformers.PreTrainedConfig.get_config_dict(source)[0])
        config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code)
        part = config.get_text_config()
        if not isinstance(part, transformers.PreTrainedConfig):
            field = next(field for field, value in vars(config).items() if value is part)
            raise UserError(
                f"config.json of {name} has {field} = {part!r:.40}, and a {config.model_type} model has no such part; "
                "leave it out."
            )
        return config

    return _load(name, load)


def head_modules(model: Any) -> list[str]:
    """Return the modules on top of the pretrained model that have weights.

    Args:
        model: A model with a head.
    """
    from ...model.sites import pretrained_part

    pretrained = pretrained_part(model)
    return [
        name
        for name, module in model.named_children()
        if module is not pretrained and any(True for _ in module.parameters())
    ]


def load_model(
    name: str | Path,
    task: Task,
    labels: Sequence[str] | None = None,
    *,
    trust_remote_code: bool = False,
    tokenizer: Any = None,
    notes: list[str] | None = None,
    quantization: Any = None,
    pooling: str = AUTO,
    dropout: float | None = None,
    attention_dropout: float | None = None,
    is_finished: bool = False,
) -> Any:
    """Load the model with the head for `task`, in float32.

    A head of another size is re-initialised, and a line is added to `notes`. The head of a text classifier may read a
    pooling of the hidden states; the class of the model is then one of ours (`attendrop.load_classifier`).

    Args:
        name: A name on the Hub, or a folder.
        task: The task, whose kind selects the head.
        labels: The label names; None = those of the task.
        trust_remote_code: Whether code from the repository may be run.
        tokenizer: The tokenizer, or the image processor or feature extractor, if the model is to be checked against it.
        notes: A list to which sentences about new or reused weights are added.
        quantization: A quantisation configuration of transformers, for weights that stay frozen.
        pooling: What the head of a text classifier reads: "mean", "cls", "model" for the head of the model's own class,
            or "auto".
        dropout: The model's own dropout of hidden states; None = that of its configuration.
        attention_dropout: The model's own dropout of attention weights; None = that of its configuration.
        is_finished: Whether this is the model of a finished run, in which no weight may be missing.

    Example:
        ```python
        task = find_task("glue/rte")
        tokenizer = load_tokenizer("roberta-base")
        model = load_model("roberta-base", task, tokenizer=tokenizer)
        ```
    """
    import torch
    import transformers

    notes = [] if notes is None else notes
    source, options = _locate(name), {"trust_remote_code": trust_remote_code}
    config = load_config(name, trust_remote_code=trust_remote_code)
    old_labels = dict(getattr(config, "id2label", None) or {})
    new_labels = tuple(task.labels if labels is None else labels) if kind_of(task).has_named_labels else ()
    kind_of(task).set_head(config, new_labels)
    set_dropout(str(name), config, dropout, attention_dropout)
    modality = modality_of(task)
    class_name = modality.model_class(task)
    auto = getattr(transformers, class_name)
    is_remote = trust_remote_code and class_name in getattr(config, "auto_map", {})
    # BART and T5 count as masked language models too, but predict a text of their own instead of the masked words.
    writes_text = kind_of(task).is_masked and getattr(config, "is_encoder_decoder", False)
    if (type(config) not in auto._model_mapping and not is_remote) or writes_text:
        raise UserError(
            f"{name} is a {config.model_type} model, for which transformers has no head of kind {task.kind}"
            f"{'' if modality.name == 'text' else f' of {modality.noun}s'}."
        )
    if pooling == AUTO and is_finished:
        pooling = pooling_of(config) or OWN_HEAD
    pooled = set_pooling(config, choose_pooling(name, config, task, pooling, is_remote).pooling, task)

    def skeleton() -> Any:
        with torch.device("meta"):
            return pooled(config) if pooled else auto.from_config(config, trust_remote_code=trust_remote_code)

    if quantization is not None:
        quantization.llm_int8_skip_modules = head_modules(skeleton())  # for 4 bits too; a new head is trained
        options["quantization_config"] = quantization

    def load() -> Any:
        stored = sum(path.stat().st_size for path in Path(source).glob("*.safetensors"))
        if 0 < stored < _SMALL:
            check_parameters(name, sum(tensor.numel() for tensor in skeleton().parameters()), stored)
        return (pooled or auto).from_pretrained(
            source,
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **options,
        )

    with quiet_transformers(hide_progress=Path(source).is_dir()):
        model, report = _load(name, load)
    _check_weights(name, model, report)
    if is_finished:
        _check_complete(name, report, old_labels, new_labels)
    notes += _loading_notes(name, report, old_labels, new_labels) + _unused_layers(name, model, report)
    model.new_weights = frozenset(report["missing_keys"]) | {key for key, *_ in report["mismatched_keys"]}
    if tokenizer is not None:
        modality.match(str(name), model, tokenizer, notes)
    _restore_pruned(model)
    return model


def _restore_pruned(model: Any) -> None:
    """Make the fast layers that the configuration names."""
    from ...prune.layer_plan import restore  # needs torch, which `attendrop tasks` does not load

    try:
        restore(model)
    except ValueError as error:
        raise UserError(str(error)) from None


def _check_weights(name: str | Path, model: Any, report: dict[str, Any]) -> None:
    """Refuse weights of which none is for this model, and weights that are not finite."""
    random = {*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])}
    prefix = f"{model.base_model_prefix}."
    encoder = [key for key in model.state_dict() if key.startswith(prefix)]
    if encoder and random.issuperset(encoder):
        others = sorted(report["unexpected_keys"])
        known = f" (its tensors are called {others[0]}, and not {encoder[0]})" if others else ""
        raise UserError(f"{name} has no weights for a {type(model).__name__}{known}, so that all would be random.")
    if misfits := [key for key, *_ in report["mismatched_keys"] if key.startswith(prefix)]:
        raise UserError(
            f"the weights of {name} are not of the shapes that its config.json says ({', '.join(sorted(misfits)[:3])});"
            " copy both from the same model."
        )
    layers = [key for key in encoder if re.search(r"\.\d+\.", key)]
    if (missing := sorted(random.intersection(layers))) and len(missing) > _FEW * len(layers):
        raise UserError(
            f"{name} lacks {len(missing):,} of the {len(layers):,} tensors of its layers, such as {missing[0]}, which "
            "would be random; copy it again, or correct its config.json."
        )
    for key, tensor in model.state_dict().items():
        if key not in random and tensor.is_floating_point() and not tensor.isfinite().all():
            raise UserError(
                f"{name} has weights that are no numbers (NaN or infinite, in {key}): they were damaged, or saved when "
                "training had diverged; use another model or checkpoint."
            )


def _unused_layers(name: str | Path, model: Any, report: dict[str, Any]) -> list[str]:
    """Return a warning if the checkpoint has more layers than the model."""

    def place(key: str) -> str:
        return re.sub(r"\.\d+\.", ".N.", key)

    prefix = f"{model.base_model_prefix}."  # a checkpoint without a head leaves it out
    used = {name for key in model.state_dict() for name in (place(key), place(key).removeprefix(prefix))}
    has_layers = any(".N." in key for key in used)
    layers = (key for key in report["unexpected_keys"] if place(key) != key)
    if not (unused := sorted(key for key in layers if place(key) in used or not has_layers)):
        return []
    return [
        f"warning: {name} has {len(unused):,} tensors of layers that its config.json leaves out, such as {unused[0]}"
    ]


def _check_complete(
    name: str | Path, report: dict[str, Any], old_labels: dict[int, str], labels: tuple[str, ...]
) -> None:
    """Refuse the model of a finished run if its weights or its labels are not those of its configuration."""
    if problem := wrong_weights(report):
        raise UserError(f"{name} is no whole model of a finished run: {problem}; copy it again, or train again.")
    if written := _other_labels(old_labels, labels):
        raise UserError(
            f"{name} is no whole model of a finished run: the record of the run has the labels {', '.join(labels)}, "
            f"and config.json {', '.join(written)}; copy it again, or train again."
        )


def _other_labels(old_labels: dict[int, str], labels: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names that a configuration has for the labels, if they are others."""
    old = tuple(old_labels[index] for index in sorted(old_labels))
    has_names = any(label != f"LABEL_{index}" for index, label in enumerate(old))
    return old if labels and has_names and old != labels else ()


def _loading_notes(
    name: str | Path, report: dict[str, Any], old_labels: dict[int, str], labels: tuple[str, ...]
) -> list[str]:
    """Return the loading report of transformers as sentences."""
    notes = []
    resized = sorted(key for key, *_ in report["mismatched_keys"])
    if resized:
        notes.append(f"{name} has a head of another size; {', '.join(resized)} are re-initialised")
    missing = sorted(key for key in report["missing_keys"] if key not in SCALES)
    if missing:
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        notes.append(f"{', '.join(missing[:4])}{more} are not in {name}: they are new")
    if not resized and not missing and (old := _other_labels(old_labels, labels)):
        notes.append(
            f"the head of {name} was trained for the labels {', '.join(old)} and is now used for {', '.join(labels)}"
        )
    return notes


def _locate(name: str | Path) -> str:
    """Return the path of a folder that holds a model, or what may be a name on the Hub."""
    text, path = str(name), Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            is_adapter = (path / "adapter_config.json").is_file()
            content = "an adapter; merge it into its model first" if is_adapter else "no model of transformers"
            raise UserError(f"the folder {text} has no config.json: it holds {content}.")
        check_sealed(path)
        return str(path)
    if path.exists():
        raise UserError(
            f"model is {text}, which is a file; use the folder that holds config.json and model.safetensors."
        )
    if isinstance(name, Path) or is_path(text):
        siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        near = difflib.get_close_matches(path.name, siblings, n=1)
        raise UserError(
            f"the folder {text} does not exist{f'; did you mean {path.parent / near[0]}?' if near else '.'}"
        )
    return text


def _load(name: str | Path, load: Callable[[], T]) -> T:
    """Call `load` and turn an error of the libraries into a `UserError`."""
    try:
        with nullcontext() if Path(name).is_dir() else offline_if_unreachable():
            return load()
    except UserError:
        raise
    except Exception as error:
        raise UserError(_explain(str(name), error)) from error


def _explain(name: str, error: Exception) -> str:
    types = {type(cause).__name__ for cause in error_chain(error)}
    text = " ".join(str(error).split())
    if "trust_remote_code" in text or "custom code" in text:
        return f"{name} needs code from its own repository; read it there, and allow it with --trust-remote-code."
    if "GatedRepoError" in types:
        return f"{name} is gated on the Hub; request access there and log in with `hf auth login`."
    if types & {"RepositoryNotFoundError", "HFValidationError"}:
        return f"model is {name!r}, which is neither a folder nor a model on the Hub{_suggestion(name)}"
    if types & {"LocalEntryNotFoundError", "OfflineModeIsEnabled", "ConnectionError", "ConnectError", "Timeout"}:
        return (
            f"model is {name!r}, which is not a folder here, and the Hub cannot be reached to look for it; check the "
            f"connection or use a folder{_suggestion(name)}"
        )
    if "SafetensorError" in types:
        return f"{_unreadable_file(name)} is incomplete or not a safetensors file; download or copy it again."
    if "safetensors" in text and ("no file named" in text or "not appear to have" in text):
        return _explain_no_safetensors(name)
    if "alloc_cpu" in text:
        return f"{name} needs more memory than this machine has, by its config.json."
    if "JSONDecodeError" in types:
        return f"a JSON file of {name} is broken: {text.rstrip('.')}."
    return f"{name} cannot be loaded: {text.split('. ')[0].rstrip('.')}."


def _explain_no_safetensors(name: str) -> str:
    folder = Path(name).expanduser()
    is_folder = folder.is_dir()
    files = (path.name for pattern in _PICKLES for path in folder.glob(pattern)) if is_folder else ()
    pickles = sorted(name for name in files if not name.startswith(_OTHER_PICKLES))
    if is_folder and not pickles:
        return f"the folder {name} has no weights (model.safetensors)."
    what = f"{folder / pickles[0]} is a pickle" if pickles else f"{name} has no safetensors, only pickles"
    return f"{what}, and loading a pickle runs the code in it; convert the weights to safetensors."


def _suggestion(name: str) -> str:
    short = {known.split("/")[-1].lower(): known for known in WELL_KNOWN}
    near = difflib.get_close_matches(name.split("/")[-1].lower(), short, n=1, cutoff=0.75)
    return f"; did you mean {short[near[0]]}?" if near and short[near[0]] != name else "."


def _unreadable_file(name: str) -> Path:
    """Return the safetensors file of the folder that cannot be opened."""
    from safetensors import SafetensorError, safe_open

    folder = Path(name).expanduser()
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt"):
                pass
        except (SafetensorError, OSError):
            return path
    return folder
