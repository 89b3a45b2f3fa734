"""Refuse a flag that is given several times and has one value, of which the program would silently take the last."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

from ...errors import UserError
from ...utils.secrets import is_secret

# Flag -> what a user who gives it several times may want.
_REMEDIES = {
    "train_file": ", or compare on several data sets with `attendrop compare --train-file A --train-file B`",
    "task": ", or compare on several data sets with `attendrop compare`",
    "label": ", with commas between several columns of 0 and 1: --label anger,joy",
    "seed": ", or run several seeds with `attendrop compare --seeds`",
}


class OnceCommand(TyperCommand):
    """A command that refuses a repeated flag, unless it is one that may be repeated."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for parameter in dict.fromkeys(given):
            may_repeat = parameter.param_type_name != "option" or getattr(parameter, "multiple", False)
            if given.count(parameter) > 1 and not may_repeat and not ctx.resilient_parsing:
                raise UserError(_sentence(parameter, args))
        return super().parse_args(ctx, args)


def _sentence(parameter: Any, args: list[str]) -> str:
    names = (*parameter.opts, *parameter.secondary_opts)
    values = []
    for place, word in enumerate(args):
        name, equals, value = word.partition("=")
        if name in names:
            values.append(value if equals else name if parameter.is_flag else args[place + 1])
    shown = "" if is_secret(parameter.name) else f", {', '.join(map(repr, values[:-1]))} and {values[-1]!r}"
    return f"{parameter.opts[0]} is given {len(values)} times{shown}; give it once{_REMEDIES.get(parameter.name, '')}."
