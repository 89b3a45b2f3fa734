"""docs/flags.md, made from the flags themselves: `python -m attendrop.cli.reference > docs/flags.md`."""

from __future__ import annotations

from ..experiments.settings import DEFAULTS, TRAINING, Setting, all_settings
from .app import train_command
from .flags import own_parameters

_HEAD = """# Every flag of `attendrop train`

Made from the code by `python -m attendrop.cli.reference`. Each flag is also a key of the YAML file for `--config`
(`learning_rate: 2e-5`) and an argument of `attendrop.fine_tune(learning_rate=2e-5)`. A list is given by repeating
the flag. The training arguments are those of transformers, whose help this is; defaults in **bold** are ours.
"""


def reference() -> str:
    settings = list(all_settings().values())
    panels = list(dict.fromkeys(setting.panel for setting in settings))
    parts = [_HEAD]
    for panel in panels:
        parts.append(f"\n## {panel}\n\n| flag | type | default | what it is |\n|---|---|---|---|\n")
        parts += [_row(setting) for setting in settings if setting.panel == panel]
    parts.append("\n## Of the command line alone\n\n| flag | default | what it is |\n|---|---|---|\n")
    for parameter in own_parameters(train_command):
        help = parameter.annotation.__metadata__[0].help
        default = "" if parameter.default is None else str(parameter.default)
        parts.append(f"| `--{parameter.name.replace('_', '-')}` | {default} | {help} |\n")
    return "".join(parts)


def _row(setting: Setting) -> str:
    default = "" if setting.default in (None, "", []) else str(setting.default)
    if setting.panel == TRAINING and setting.name in DEFAULTS:
        default = f"**{default}**"
    flag = f"`--{setting.name.replace('_', '-')}`"
    return f"| {flag} | {setting.type.__name__} | {default} | {setting.help.replace('|', chr(92) + '|')} |\n"


if __name__ == "__main__":
    print(reference(), end="")
