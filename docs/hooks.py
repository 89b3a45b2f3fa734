"""What the site shows beside the pages in docs/: files from the root of the repository, and the API reference.

MkDocs calls the functions whose names begin with `on_`. Nothing here imports attendrop: names and docstrings are read
from the source.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src/attendrop"

# Files that belong at the root of the repository, and the pages that show them.
ROOT_PAGES = {
    "README.md": "index.md",
    "DESIGN.md": "design.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
# Scripts, each shown as a page of code.
SCRIPT_PAGES = {f"examples/{path.name}": f"examples/{path.stem}.md" for path in sorted(ROOT.glob("examples/*.py"))}
_PAGES = ROOT_PAGES | SCRIPT_PAGES
_FILES = {page: file for file, page in _PAGES.items()}


@dataclass(frozen=True)
class Group:
    """One page of the API reference.

    Args:
        page: Name of the page, without its ending.
        title: Title of the page.
        about: One or two sentences under the title.
        modules: Modules of attendrop. A public name belongs to the group that has the longest prefix of its module.
        package: A public subpackage, whose own names are listed too.
    """

    page: str
    title: str
    about: str
    modules: tuple[str, ...] = ()
    package: str | None = None


GROUPS = (
    Group(
        "training",
        "Training",
        "The Trainer with regularisers, the engine for a training loop of your own, and the base class of a method.",
        ("trainer", "core.engine", "core", "errors"),
    ),
    Group(
        "methods",
        "Methods",
        "The regularisers. Each has a [card](../methods/index.md) with its formula, its cost and its limits.",
        ("methods",),
    ),
    Group(
        "attribution",
        "Attribution",
        "How much a prediction depends on each attention position, and a model's score without some of them.",
        ("model.attribution", "lab.robustness", "kernels.attribution_mask"),
    ),
    Group(
        "models",
        "Plans and models",
        "How attendrop reaches into a model, and the description of what a forward pass changes.",
        ("model",),
    ),
    Group("pruning", "Pruning", "Attention layers, heads and blocks removed from a model.", ("prune",), "prune"),
    Group("tasks", "Tasks", "Data sets by name or from files, their metrics, tokenizers and models.", (), "lab.tasks"),
    Group("report", "Report", "Figures, model cards, and the report of a study.", (), "lab.report"),
    Group(
        "runs",
        "Runs",
        "Whole runs from Python: what `attendrop train` does on the command line.",
        ("lab.runs",),
        "lab.runs",
    ),
)


# ---- public names ---------------------------------------------------------------------------------------------


def public_names() -> dict[str, str]:
    """The public names of `attendrop` and the module of each, as `__init__.pyi` lists them."""
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: node.module or "" for node in imports for alias in node.names}


def group_of(module: str) -> Group:
    """The group with the longest prefix of `module`."""
    prefixes = {prefix: group for group in GROUPS for prefix in group.modules if _is_within(module, prefix)}
    if not prefixes:
        raise ValueError(f"no page of the API reference takes attendrop.{module}; add it to GROUPS in docs/hooks.py.")
    return prefixes[max(prefixes, key=len)]


def _is_within(module: str, prefix: str) -> bool:
    return f"{module}.".startswith(f"{prefix}.")


def entries(group: Group) -> list[str]:
    """The names on a page of the API reference, from `attendrop.` on."""
    names = [(name, module) for name, module in public_names().items() if group_of(module) is group]

    def order(item: tuple[str, str]) -> int:
        return next(i for i, prefix in enumerate(group.modules) if _is_within(item[1], prefix))

    listed = [f"attendrop.{name}" for name, _ in sorted(names, key=order)]
    if group.package:
        public = {name for name, _ in names}
        listed += [path for path in _package_names(group.package) if path.rpartition(".")[2] not in public]
    return listed


@cache
def _source() -> griffe.Module:
    """The package as griffe reads it; once, because reading a subpackage reads all of it."""
    root = griffe.load("attendrop", search_paths=[str(ROOT / "src")], allow_inspection=False)
    assert isinstance(root, griffe.Module)
    return root


def _package_names(package: str) -> Iterator[str]:
    """The names in `__all__`, or the public functions and classes of each module where the package has no `__all__`."""
    root = _source()[package]
    if root.exports is not None:
        yield from (f"{root.path}.{name}" for name in root.exports)
        return
    for module in (module for name, module in root.modules.items() if not name.startswith("_")):
        if module.exports is not None:
            yield from (f"{module.path}.{name}" for name in module.exports)
            continue
        for name, member in module.members.items():
            is_api = not name.startswith("_") and name != "main" and not member.is_alias
            if is_api and (member.is_function or member.is_class):
                yield member.path


def api_page(group: Group) -> str:
    """The page of a group: one mkdocstrings entry for each name."""
    return f"# {group.title}\n\n{group.about}\n\n" + "\n".join(f"::: {name}\n" for name in entries(group))


def api_index() -> str:
    """The first page of the API reference: all names, by group."""
    parts = [
        "# API reference\n\nEverything that can be imported from `attendrop` itself, and the public subpackages "
        "`attendrop.prune`, `attendrop.lab.tasks`, `attendrop.lab.report` and `attendrop.lab.runs`. Other modules may "
        "change without notice.\n"
    ]
    for group in GROUPS:
        links = " · ".join(f"[`{name.removeprefix('attendrop.')}`][{name}]" for name in entries(group))
        parts.append(f"\n## [{group.title}]({group.page}.md)\n\n{group.about}\n\n{links}\n")
    return "".join(parts)


# ---- hooks of MkDocs ------------------------------------------------------------------------------------------


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages that are not in docs/."""
    for file, page in ROOT_PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / file)))
    for file, page in SCRIPT_PAGES.items():
        code = (ROOT / file).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=f"# {file}\n\n```python\n{code}```\n"))
    files.append(File.generated(config, "api/index.md", content=api_index()))
    for group in GROUPS:
        files.append(File.generated(config, f"api/{group.page}.md", content=api_page(group)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Rewrites links between files of the repository, which work on GitHub, into links between pages."""
    uri = page.file.src_uri
    return _LINK.sub(lambda link: _link_on_site(link, uri), markdown)


_LINK = re.compile(r"(!?\[(?P<text>[^\]]*)\])\((?P<target>[^)\s]+)\)")


def _link_on_site(link: re.Match[str], page: str) -> str:
    target, hash_, anchor = link["target"].partition("#")
    if not target or ":" in target:
        return link[0]
    file = _FILES.get(page, f"docs/{page}")
    goal = posixpath.normpath(posixpath.join(posixpath.dirname(file), target))
    if goal not in _PAGES and (not goal.startswith("docs/") or goal.startswith("docs/results/")):
        return link["text"]  # a file of the repository that has no page
    uri = _PAGES.get(goal) or goal.removeprefix("docs/")
    return f"{link[1]}({posixpath.relpath(uri, posixpath.dirname(page) or '.')}{hash_}{anchor})"
