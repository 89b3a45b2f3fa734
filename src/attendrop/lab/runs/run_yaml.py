"""The settings of a run as a YAML file: what `--config` reads, and the run.yaml that every run writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import UserError, on_one_line
from ...methods._own import with_absolute_file
from ...utils.files import write_whole
from ...utils.limits import MOST_YAML, check_nodes, read_bytes
from ...utils.secrets import is_secret
from .settings import RUN_SETTINGS, RunConfig, all_settings

# Settings of one invocation, not of the run.
INVOCATION_ONLY = ("overwrite", "resume", "resume_changed", "resume_from_checkpoint")
# Training arguments that are made of the output folder, the machine or the number of processes.
MACHINE_SPECIFIC = ("logging_dir", "run_name", "local_rank", "ddp_backend", "dataloader_pin_memory")

# Training arguments that stand in the first part of run.yaml although nobody set them: they decide the result.
_WRITTEN_DEFAULTS = (
    "num_train_epochs", "max_steps", "seed", "per_device_train_batch_size", "gradient_accumulation_steps",
    "learning_rate", "lr_scheduler_type", "warmup_steps", "weight_decay", "optim", "adam_beta1", "adam_beta2",
    "adam_epsilon", "max_grad_norm", "label_smoothing_factor", "bf16", "fp16", "gradient_checkpointing",
)  # fmt: skip
# Settings that may be a file or a folder.
_PATHS = ("model", "data_dir", "train_file", "validation_file", "test_file", "output_dir")


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Read the settings of a YAML file, for `make_config`.

    Args:
        path: A file of `name: value` lines.
    """
    import yaml

    file = Path(path)
    if not file.exists() or file.is_dir():
        problem = "is a folder; give the file itself" if file.is_dir() else "does not exist"
        raise UserError(f"the configuration {str(path)!r} {problem}.")
    try:
        text = read_bytes(file, MOST_YAML).decode("utf-8")
        document = yaml.compose(text, yaml.SafeLoader)
        check_nodes(path, document)
        _check_keys(path, document)
        settings = yaml.safe_load(text)
    except OSError as error:
        raise UserError(f"the configuration {str(path)!r} cannot be read: {error.strerror or error}.") from None
    except UserError:
        raise
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"the configuration {str(path)!r} is not YAML: {on_one_line(error)}.") from None
    if settings is None:
        raise UserError(f"the configuration {str(path)!r} is empty; it must hold `name: value` lines.")
    if not isinstance(settings, dict):
        raise UserError(f"the configuration {str(path)!r} must hold `name: value` lines, but holds {settings!r:.60}.")
    return settings


def _check_keys(path: str | Path, node: Any) -> None:
    """Refuse a name that stands twice in one mapping, of which YAML takes the last one."""
    import yaml

    names = set()
    for item in node.value if isinstance(node, yaml.CollectionNode) else ():
        if isinstance(item, tuple):
            key, item = item
            name = str(key.value).replace("-", "_")
            if name in names and name != "<<":
                line = key.start_mark.line + 1
                raise UserError(f"the configuration {str(path)!r} has {key.value} a second time, in line {line}.")
            names.add(name)
        _check_keys(path, item)


def write_yaml(
    config: RunConfig, arguments: Any, path: Path, versions: Mapping[str, str], notes: Sequence[str] = ()
) -> None:
    """Write the configuration for `--config`, with the versions of the libraries and notes as comments.

    Files and folders are written as absolute paths, so that the run can be repeated from any directory. Settings that
    nobody set are written too, because their defaults may be others in a later version.
    """
    import yaml

    used = {name: getattr(arguments, name) for name in _WRITTEN_DEFAULTS}
    settings = {**config.settings(), **{name: getattr(value, "value", value) for name, value in used.items()}}
    for name in INVOCATION_ONLY:
        settings.pop(name, None)
    for name in _PATHS:
        if name in settings and (name == "output_dir" or Path(settings[name]).exists()):
            settings[name] = str(Path(settings[name]).absolute())
    if "method" in settings:
        settings["method"] = [with_absolute_file(method) for method in settings["method"]]
    heading = "".join(f"# {name} {version}\n" for name, version in versions.items())
    heading += "".join(f"# {note}\n" for note in notes)
    text = heading + yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
    others = {name: value for name, value in _unset(config, arguments).items() if name not in settings}
    text += "\n# All other settings have their defaults.\n"
    write_whole(path, text + yaml.safe_dump(others, sort_keys=False, allow_unicode=True), flush=False)


def _unset(config: RunConfig, arguments: Any) -> dict[str, Any]:
    """Return the values of all settings that can be written and read again, those without a value as null."""
    values = {}
    for name, setting in all_settings().items():
        if name in (*INVOCATION_ONLY, *MACHINE_SPECIFIC) or is_secret(name):
            continue
        value = getattr(config, name) if name in RUN_SETTINGS else getattr(arguments, name)
        value = getattr(value, "value", value)
        try:
            if setting.parse(value) == value:
                values[name] = value
        except UserError:
            continue  # an object that the library makes of a setting, such as the settings of accelerate
    return values
