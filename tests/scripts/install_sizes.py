"""Lists what each extra of attendrop adds to an installation: packages and megabytes, the largest ones by name.

python tests/scripts/install_sizes.py [--markdown]

It reads the packages of the environment that runs it, which needs all extras (`make setup`), and adds up the sizes of
their files as the wheels brought them, without bytecode. "adds" counts what neither the library nor an extra that this
one includes needs. So nothing is downloaded; torch counts as the build that is installed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

EXTRAS = ("plot", "data", "cli", "peft", "audio", "tune", "serve", "onnx", "ray", "trainers")
INCLUDED = {"tune": "cli", "ray": "cli", "serve": "cli"}  # what an extra brings besides its own packages


def needed(name: str, extras: Iterable[str] = ()) -> set[str]:
    """Return the packages that an installed package needs with these extras, itself included."""
    packages: set[str] = set()
    waiting = [(name, frozenset(extras))]
    seen = set()
    while waiting:
        package, wanted = waiting.pop()
        if (package, wanted) in seen:
            continue
        seen.add((package, wanted))
        try:
            requirements = distribution(package).requires or []
        except PackageNotFoundError:  # a package for another platform
            continue
        packages.add(package)
        for requirement in map(Requirement, requirements):
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in (wanted or {""})):
                waiting.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return packages


@cache
def megabytes(package: str) -> float:
    of: Distribution = distribution(package)
    files = [file for file in of.files or [] if file.suffix != ".pyc"]
    return sum(path.stat().st_size for file in files if (path := of.locate_file(file)).is_file()) / 1e6  # type: ignore[attr-defined]


def row(name: str, packages: set[str]) -> list[str]:
    total = sum(map(megabytes, packages))
    largest = sorted(packages, key=megabytes, reverse=True)[:4]
    shown = ", ".join(f"{package} {megabytes(package):.0f}" for package in largest if megabytes(package) >= 1)
    return [name, str(len(packages)), f"{total:.0f}", shown]


def rows() -> list[list[str]]:
    """Return a row for the library, and for what each extra adds to it."""
    library = needed("attendrop")
    lines = [row("the library", library)]
    for extra in EXTRAS:
        before = library | (needed("attendrop", [INCLUDED[extra]]) if extra in INCLUDED else set())
        name = f"`{extra}`" + (f", beside `{INCLUDED[extra]}`" if extra in INCLUDED else "")
        lines.append(row(name, needed("attendrop", [extra]) - before))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    titles = ["extra", "packages", "MB", "largest packages, MB"]
    if options.markdown:
        for line in (titles, ["---"] * len(titles), *rows()):
            print(f"| {' | '.join(line)} |")
    else:
        for line in (titles, *rows()):
            print("{:26}{:>9}{:>7}  {}".format(*line))


if __name__ == "__main__":
    main()
