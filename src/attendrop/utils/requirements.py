"""What attendrop needs, as its own metadata say it, beside what is installed."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version


@cache
def unmet() -> str | None:
    """Return a sentence about packages that are missing or too old; None if there are none.

    Nothing is imported. Where attendrop itself is not installed (a source tree on the path), nothing is known.
    """
    from packaging.requirements import Requirement

    try:
        needed = [Requirement(line) for line in requires("attendrop") or [] if ";" not in line]  # no extras
    except PackageNotFoundError:
        return None
    problems = []
    for requirement in needed:
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            problems.append((requirement, "which is not installed"))
            continue
        if not requirement.specifier.contains(installed, prereleases=True):
            problems.append((requirement, f"and {installed} is installed"))
    if not problems:
        return None
    listed = "; ".join(f"{requirement}, {problem}" for requirement, problem in problems)
    return f"attendrop needs {listed}: pip install {' '.join(repr(str(requirement)) for requirement, _ in problems)}."
