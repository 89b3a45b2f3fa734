"""Settings that are known beforehand.

paper           those of the papers, for the model families and tasks that they report. AD-DROP: Table 11 of arXiv
                2210.05883 and the layers of its section 4, and for NER and translation the scripts of its authors;
                AttendOut: section 5 of arXiv 2104.04692, v2, and v1 for self-pruning
recommended     plain fine-tuning by the default recipe: docs/verdict.md says why it sets no method
"""

from __future__ import annotations

from typing import Any

from ...errors import UserError
from ..tasks import find_task
from .losses import UNWEIGHTED
from .settings import RunConfig

FAMILIES = ("bert", "roberta")

# task -> learning rate, batch size, maximum length, p, q; a pair is (BERT-base, RoBERTa-base)
_ADDROP: dict[str, tuple[Any, Any, int, Any, Any]] = {
    "glue/sst2": (1e-5, (16, 64), 120, (0.6, 0.3), (0.8, 0.7)),
    "glue/mnli": (1e-5, (16, 32), 128, (0.5, 0.4), (0.9, 0.2)),
    "glue/qnli": (1e-5, 16, 128, 0.8, (0.8, 0.4)),
    "glue/qqp": (1e-5, 16, 120, (0.2, 0.7), (0.7, 0.9)),
    "glue/cola": ((1e-5, 2e-5), 16, 47, (0.3, 0.8), (0.4, 0.3)),
    "glue/stsb": ((1e-5, 2e-5), 16, 100, (0.9, 0.1), (0.7, 0.5)),
    "glue/mrpc": ((1e-5, 2e-5), 16, 100, (0.5, 0.8), (0.8, 0.3)),
    "glue/rte": (1e-5, 16, 128, (0.6, 0.7), (0.7, 0.1)),
}
_ALL_LAYERS = ("glue/cola", "glue/mrpc", "glue/rte")
_EPOCHS = {"glue/sst2": 20, "glue/mnli": 10, "glue/qnli": 10, "glue/qqp": 10}  # 50 for all others, with early stopping
_BASE = (12, 768)  # layers and width of the base models, of which Table 11 has the values
# task -> family, p, q, layers, learning rate, batch size, epochs, maximum length: the scripts of AD-DROP's authors
_OF_SCRIPTS: dict[str, tuple[str, float, float, str, float, int, int, int | None]] = {
    "conll2003": ("electra", 0.8, 0.1, "all", 2e-5, 32, 9, None),
    "wmt16/en-ro": ("marian", 0.2, 0.2, "encoder", 2e-5, 16, 5, 128),
    "wmt16/tr-en": ("marian", 0.6, 0.1, "encoder", 2e-5, 16, 5, 128),
}
_LARGE = ("glue/mnli", "glue/qnli", "glue/qqp")
_ATTENDOUT = "T=15,samples=0,credit=paired,init_drop=0.55,layer_offsets=False,normalize=False"
# what the user writes -> the method of that version of the paper
_ATTENDOUTS = {"attendout": f"attendout:{_ATTENDOUT}", "attendout:mode=prune": f"attendout:mode=prune,{_ATTENDOUT}"}


def paper_layers(task: str | None) -> str:
    """Return the layers in which the AD-DROP paper drops on a task; for other tasks the first one.

    Args:
        task: The name of the task; None = the user's own data.
    """
    if task is None:
        return "first"
    name = find_task(task).name
    if name in _OF_SCRIPTS:
        return _OF_SCRIPTS[name][3]
    return "all" if name in _ALL_LAYERS else "first"


def _other_size(model: Any) -> str:
    """Say that the values are those of base models, where the model is none."""
    size = getattr(model, "num_hidden_layers", None), getattr(model, "hidden_size", None)
    own = f"this one has {size[0]} layers of width {size[1]}"
    return "" if size == _BASE else f"; its values are for base models, and {own}"


def apply_preset(config: RunConfig, model: Any) -> tuple[RunConfig, list[str]]:
    """Return the configuration with the settings of its preset that the user did not set, and a note for each group.

    The new configuration has no preset, because a resumed or repeated run reads its values.

    Args:
        config: The configuration of the run, with a preset.
        model: The configuration of the model.
    """
    return _apply_recommended(config) if config.preset == "recommended" else _apply_paper(config, model)


def _apply_recommended(config: RunConfig) -> tuple[RunConfig, list[str]]:
    if config.method:
        raise UserError(
            f"preset is 'recommended' and method is {', '.join(config.method)!r}; leave the method out, because the "
            "preset is plain fine-tuning."
        )
    note = (
        "preset recommended: plain fine-tuning by the default recipe, because no method has been shown to gain on it "
        "(docs/verdict.md)"
    )
    return config.replaced({"preset": None}), [note]


def _open(config: RunConfig, settings: dict[str, Any]) -> dict[str, Any]:
    """Those of the settings that the user did not set."""
    return {name: value for name, value in settings.items() if name not in config.explicit}


def _listed(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def _apply_paper(config: RunConfig, model: Any) -> tuple[RunConfig, list[str]]:
    if "class_weights" not in config.explicit:  # the papers have none
        config = config.replaced({"class_weights": [UNWEIGHTED]})
    name = config.method[0].replace(" ", "") if config.method else "addrop"
    if len(config.method) > 1 or name not in ("addrop", *_ATTENDOUTS):
        raise UserError(
            f"preset is 'paper' and method is {', '.join(config.method)!r}; it must be 'addrop' or 'attendout' alone, "
            "without fields, because the preset sets them, or 'attendout:mode=prune' (self-pruning, version 1)."
        )
    if name in _ATTENDOUTS:
        version = "v1" if "prune" in name else "v2"
        note = (
            f"preset paper: {_ATTENDOUTS[name]} (AttendOut, arXiv 2104.04692 {version}; T and the generator's rate: "
            "v1, section 5.1)"
        )
        return config.replaced({"method": [_ATTENDOUTS[name]], "preset": None}), [note]
    task = find_task(config.task).name if config.task else ""
    if task in _OF_SCRIPTS:
        return _apply_script(config, task, model)
    if task not in _ADDROP:
        raise UserError(
            f"preset is 'paper' and task is {config.task or config.train_file!r}; AD-DROP's Table 11 has "
            f"{', '.join(_ADDROP)}, and the scripts of its authors have {', '.join(_OF_SCRIPTS)}."
        )
    family = model.model_type
    if family not in FAMILIES:
        raise UserError(
            f"preset is 'paper' and {config.model!r} is of the family {family!r}; AD-DROP's Table 11 has "
            f"{' and '.join(FAMILIES)}."
        )
    fields, settings = paper_values(task, family)
    method = method_of(fields)
    settings = _open(config, settings)
    return config.replaced({"method": [method], "preset": None, **settings}), [
        f"preset paper: {method} (Table 11 of arXiv 2210.05883{_other_size(model)})",
        f"preset paper: {_listed(settings)} (Table 11; epochs, patience, constant learning rate, no clipping, ε and "
        "shuffled batches from its public code)",
    ]


def paper_values(task: str, family: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return AD-DROP's p, q and layers on a task of its paper, and the settings of its runs.

    Args:
        task: The name of a task of Table 11, or of the scripts of the authors.
        family: The family of the model; all but BERT have the values of RoBERTa.
    """
    if task in _OF_SCRIPTS:
        _, p, q, layers, rate, batch, epochs, length = _OF_SCRIPTS[task]
        return {"p": p, "q": q, "layers": layers}, {
            "learning_rate": rate,
            "per_device_train_batch_size": batch,
            "num_train_epochs": epochs,
            "weight_decay": 0.01,
            "warmup_steps": 0,
            "train_sampling_strategy": "random",
            **({} if length is None else {"max_length": length}),
        }
    place = FAMILIES.index(family if family in FAMILIES else "roberta")
    rate, batch, length, p, q = (value[place] if isinstance(value, tuple) else value for value in _ADDROP[task])
    return {"p": p, "q": q, "layers": paper_layers(task)}, {
        "learning_rate": rate,
        "per_device_train_batch_size": batch,
        "max_length": length,
        "num_train_epochs": _EPOCHS.get(task, 50),
        "patience": 3 if task in _LARGE else 5,
        "lr_scheduler_type": "constant",
        "warmup_steps": 0,
        "max_grad_norm": 0.0,
        "adam_epsilon": 1e-6,
        "train_sampling_strategy": "random",
    }


def has_paper_values(task: str) -> bool:
    """Return whether the AD-DROP paper or the scripts of its authors have settings for a task."""
    return task in _ADDROP or task in _OF_SCRIPTS


def method_of(fields: dict[str, Any]) -> str:
    """Return AD-DROP with these fields, in the order of epochs of the paper, as users write it."""
    return f"addrop:{','.join(f'{name}={value}' for name, value in fields.items())},end_on=either"


def _apply_script(config: RunConfig, task: str, model: Any) -> tuple[RunConfig, list[str]]:
    """Apply the settings of the public scripts, which leave all others at the defaults of the Trainer."""
    family = _OF_SCRIPTS[task][0]
    if model.model_type != family:
        raise UserError(
            f"preset is 'paper' and {config.model!r} is of the family {model.model_type!r}; for {task} the "
            f"scripts of AD-DROP's authors have {family}."
        )
    fields, settings = paper_values(task, family)
    settings = _open(config, settings)
    method = method_of(fields)
    source = "public code of arXiv 2210.05883, which evaluates on the test set"
    note = f"preset paper: {method}, {_listed(settings)} ({source})"
    return config.replaced({"method": [method], "preset": None, **settings}), [note]
