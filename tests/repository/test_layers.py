"""Imports inside the package point downwards: a module imports from its own layer and from the layers below it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "attendrop"

# Top to bottom, as in docs/design/tree.md. Names on one line are side by side: neither imports the other.
LAYERS = """\
    lab.cli
    lab.reproduction
    lab.compression, lab.dropped, lab.exporting
    lab.robustness, lab.serving, lab.studies
    lab.runs
    lab.evaluation
    lab.report
    lab.tasks
    lab.records
    lab.statistics
    trainer
    methods
    prune
    capture
    core
    model
    random
    kernels
    utils
    errors
"""
RANK = {name: rank for rank, line in enumerate(LAYERS.splitlines()) for name in re.findall(r"[\w.]+", line)}

Module = tuple[str, ...]  # the path of a module below the package: ("core", "engine")


def imports_of(module: Module, path: Path) -> Iterator[Module]:
    """Yields what a module imports from the package, also inside functions and under `if TYPE_CHECKING:`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[list[str]] = []
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = ["attendrop", *module][: -node.level] if node.level else []
            package += node.module.split(".") if node.module else []
            names = [[*package, alias.name] for alias in node.names]
        yield from (tuple(name[1:]) for name in names if name[0] == "attendrop")


def all_imports() -> list[tuple[Module, Module]]:
    files = {path.relative_to(PACKAGE).with_suffix("").parts: path for path in PACKAGE.rglob("*.py")}
    del files[("__init__",)]  # its names are lazy
    return [(module, target) for module, path in files.items() for target in imports_of(module, path)]


def layer_of(module: Module) -> str:
    """The layer of a module: its folder, and on the upper storey the folder inside of `lab`."""
    return ".".join(module[:2]) if module[:1] == ("lab",) else ".".join(module[:1])


def is_allowed(module: Module, target: Module) -> bool:
    """The rule of the layers, and inside `methods`: a method imports `_shared` and its own package, no other method."""
    if target == ("__version__",):
        return True
    if layer_of(target) not in RANK:  # a public name, which hides the layer that it comes from
        return False
    if layer_of(module) != layer_of(target):
        return RANK.get(layer_of(module), -1) < RANK[layer_of(target)]  # `__main__` is above all layers
    return module[0] != "methods" or module[1] == "__init__" or target[1] in ("_shared", module[1])


def test_imports_point_downwards() -> None:
    wrong = {(module, target) for module, target in all_imports() if not is_allowed(module, target)}
    assert not wrong, "\n".join(f"{'.'.join(module)} imports {'.'.join(target)}" for module, target in sorted(wrong))


def test_library_never_imports_the_workbench() -> None:
    wrong = {
        (module, target)
        for module, target in all_imports()
        if module[0] not in ("lab", "__main__") and target[:1] == ("lab",)
    }
    assert not wrong


def test_rule_for_imports_on_examples() -> None:
    engine, addrop = ("core", "engine"), ("methods", "addrop")
    assert is_allowed(engine, ("model", "plan"))
    assert is_allowed(engine, ("core", "regularizer"))
    assert is_allowed(addrop, ("methods", "_shared", "patterns"))
    assert is_allowed(("__main__",), ("lab", "cli", "main"))
    assert is_allowed(("lab", "tasks", "hub"), ("model", "plan"))
    for module, target in ((engine, ("methods",)), (engine, ("ADDrop",)), (engine, ()),
                           (("lab", "tasks", "hub"), ("lab", "report", "page")),
                           (engine, ("lab", "tasks")), (("lab", "studies", "soup"), ("lab", "robustness", "measure")),
                           (addrop, ("methods", "rdrop", "RDrop")), (addrop, ("trainer",))):  # fmt: skip
        assert not is_allowed(module, target)


def test_only_one_module_names_foreign_trainer_libraries() -> None:
    names = re.compile(r"\btrl\b|\bTRL|SFTTrainer|setfit|sentence[-_]transformers(?!/)")  # "…/" is the name of a model
    files = (path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if names.search(path.read_text("utf-8")))
    # the second one writes and loads files; it knows no trainer
    assert sorted(files) == [Path("model", "sentence_files.py"), Path("trainer", "foreign.py")]


def test_every_module_has_a_layer_and_the_root_has_few_files() -> None:
    files = [path for path in PACKAGE.iterdir() if path.is_file()]
    folders = [path for path in PACKAGE.iterdir() if path.is_dir() and path.name not in ("__pycache__", "lab")]
    rooms = [path for path in (PACKAGE / "lab").iterdir() if path.is_dir() and path.name != "__pycache__"]
    layers = {path.stem for path in [*folders, *files] if path.suffix in ("", ".py")} | {f"lab.{p.name}" for p in rooms}
    assert layers == {*RANK, "__init__", "__main__"}
    assert [path.name for path in (PACKAGE / "lab").glob("*.py")] == ["__init__.py"]
    assert len(files) <= 8


def test_design_shows_the_same_layers() -> None:
    """The page about the tree lists them in a block; two spaces may separate a name and its description."""
    text = (ROOT / "docs/design/tree.md").read_text(encoding="utf-8")
    blocks = [block.splitlines() for block in re.findall(r"(?:^    .*\n)+", text, re.MULTILINE)]
    assert LAYERS.split("\n")[:-1] in [[re.sub(r"(?<=\w) {2,}.*", "", line) for line in lines] for lines in blocks]
