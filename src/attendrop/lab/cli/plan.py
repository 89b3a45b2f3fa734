"""`attendrop plan`: write what a comparison will do before it is run."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer

from ...utils.secrets import is_secret
from ..runs import read_yaml
from ..studies.plan import make_plan, write_plan
from ..tasks.outcomes import SCORE
from .compare import NOT_FOR_STUDIES, choose, compare_command
from .console import console, quiet_libraries, shown
from .flags import with_flags

_LEFT_OUT = ("plan", "deviate", "keep_models", "executor", "retry_failed")  # they belong to the run of a plan


@quiet_libraries()
def plan_command(settings: dict[str, Any], **options: Any) -> None:
    """Write the plan of the comparison that `attendrop compare` would start with the same flags."""
    path, primary, config = (options.pop(name) for name in ("file", "primary", "config"))
    shared = {**(read_yaml(config) if config else {}), **settings}
    chosen = choose({name: value for name, value in shared.items() if not is_secret(name)}, options)
    plan = make_plan(chosen.design, chosen.seeds, chosen.max_seeds, chosen.deltas, primary)
    write_plan(plan, path)
    console.print(
        f"the plan {plan.hash} is {shown(str(path))}; run it with: attendrop compare --plan {shown(str(path))}",
        soft_wrap=True,
    )


_own = inspect.signature(compare_command, eval_str=True).parameters
_KEYWORD = inspect.Parameter.KEYWORD_ONLY
plan_command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [
        _own["settings"],
        inspect.Parameter(
            "file", _KEYWORD, annotation=Annotated[str, typer.Argument(help="The file to write, such as plan.yaml.")]
        ),
        inspect.Parameter(
            "primary", _KEYWORD, default=SCORE.name,
            annotation=Annotated[str, typer.Option(help="The outcome that decides; all others are exploratory.")],
        ),
        *(
            parameter.replace(kind=_KEYWORD)
            for name, parameter in _own.items()
            if name not in ("settings", *_LEFT_OUT)
        ),
    ]
)  # fmt: skip

command = with_flags(
    plan_command,
    without=(*NOT_FOR_STUDIES, "output_dir"),
    shown=("file", "primary", "data", "seeds", "fraction", "shots", "keep", "until_decided", "delta"),
)
