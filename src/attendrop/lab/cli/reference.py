"""Generates docs/flags.md from the flags of `attendrop train`.

python -m attendrop.lab.cli.reference > docs/flags.md
"""

from __future__ import annotations

from ..runs.settings import CHOSEN, DEFAULTS, TRAINING, Setting, all_settings
from .arguments import flag_of
from .flags import own_parameters
from .train import train_command

_HEAD = """# Every flag of `attendrop train`

Generated from the code by `python -m attendrop.lab.cli.reference`. Each flag is also a key of the YAML file for
`--config` (`learning_rate: 2e-5`) and an argument of `attendrop.fine_tune(learning_rate=2e-5)`. To give a list,
repeat the flag. The training arguments are those of transformers, described in its own words;
defaults in **bold** are ours.
"""


def reference() -> str:
    """Return the page, in Markdown."""
    settings = list(all_settings().values())
    parts = [_HEAD]
    for panel in dict.fromkeys(setting.panel for setting in settings):
        parts.append(f"\n## {panel}\n\n| flag | type | default | what it is |\n|---|---|---|---|\n")
        parts += [_row(setting) for setting in settings if setting.panel == panel]
    parts.append("\n## Only on the command line\n\n| flag | default | what it is |\n|---|---|---|\n")
    for parameter in own_parameters(train_command):
        description = parameter.annotation.__metadata__[0].help
        default = "" if parameter.default is None else str(parameter.default)
        parts.append(f"| `{flag_of(parameter.name)}` | {default} | {description} |\n")
    return "".join(parts)


def _row(setting: Setting) -> str:
    default = "" if setting.default in (None, "", []) else str(setting.default)
    if setting.panel == TRAINING and setting.name in {*DEFAULTS, *CHOSEN}:
        default = f"**{default}**"
    description = setting.help.replace("|", r"\|")
    return f"| `{flag_of(setting.name)}` | {setting.type.__name__} | {default} | {description} |\n"


if __name__ == "__main__":
    print(reference(), end="")
