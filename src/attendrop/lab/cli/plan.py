"""`attendrop plan`: write what a comparison will do before it is run."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ...utils.secrets import is_secret
from ..runs import read_yaml
from ..studies.plan import make_plan, write_plan
from ..tasks.outcomes import SCORE
from .compare import NOT_FOR_STUDIES
from .comparison_options import DEFAULTS, ComparisonOptions
from .console import console, quiet_libraries, shown
from .flags import ConfigFile, with_flags


@quiet_libraries()
def plan_command(
    settings: dict[str, Any],
    file: Annotated[str, typer.Argument(help="The file to write, such as plan.yaml.")],
    primary: Annotated[str, typer.Option(help="The outcome that decides; all others are exploratory.")] = SCORE.name,
    options: ComparisonOptions = DEFAULTS,
    config: ConfigFile = None,
) -> None:
    """Write the plan of the comparison that `attendrop compare` would start with the same flags."""
    shared = {**(read_yaml(config) if config else {}), **settings}
    chosen = options.choose({name: value for name, value in shared.items() if not is_secret(name)})
    plan = make_plan(chosen.design, chosen.seeds, chosen.max_seeds, chosen.deltas, primary)
    write_plan(plan, file)
    console.print(
        f"the plan {plan.hash} is {shown(file)}; run it with: attendrop compare --plan {shown(file)}", soft_wrap=True
    )


command = with_flags(
    plan_command,
    without=(*NOT_FOR_STUDIES, "output_dir"),
    shown=("file", "primary", "data", "seeds", "fraction", "shots", "keep", "until_decided", "delta"),
)
