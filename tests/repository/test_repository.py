"""The repository: names of variables, independent tests, valid YAML files, and each version in one place."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml

import attendrop

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SOURCES = sorted(
    path
    for folder in ("src", "tests", "benchmarks", "studies", "docs", "examples")
    for path in (ROOT / folder).rglob("*.py")
)
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.mark.parametrize("path", sorted((ROOT / "tests").rglob("*.py")), ids=lambda path: path.stem)
def test_no_test_file_is_imported(path: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported |= {f"{node.module or ''}.{name.name}" for name in node.names}
    assert [name for name in imported if re.search(r"(^|\.)(test_\w+|conftest)(\.|$)", name)] == []


def test_no_variable_is_called_found_or_chances() -> None:
    """CONTRIBUTING.md: variables are named for their values."""
    uses = []
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if re.search(r"\b(found|chances)\b", text) else ():
            names = (getattr(node, part, None) for part in ("id", "arg", "attr", "name"))
            uses += [f"{path.relative_to(ROOT)}:{node.lineno}" for name in names if name in ("found", "chances")]  # type: ignore[attr-defined]
    assert uses == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_existing_make_targets(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    schema = ["--builtin-schema", "vendor.github-workflows"]
    checked = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", *schema, str(path)], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    workflow = read_yaml(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert True in workflow  # YAML 1.1 reads the key `on` as True
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 60
        named = {step["run"].split()[1] for step in job["steps"] if step.get("run", "").startswith("make ")}
        named |= {case["target"] for case in job.get("strategy", {}).get("matrix", {}).get("include", [])}
        assert {name for name in named if name != "${{"} <= targets


def test_issue_forms_have_what_github_requires() -> None:
    config, *forms = (read_yaml(path) for path in sorted(FORMS, key=lambda path: path.stem != "config"))
    assert config["contact_links"]
    assert len(forms) == 2
    for form in forms:
        assert {"name", "description", "body"} <= form.keys()
        identifiers = [field["id"] for field in form["body"]]
        assert len(set(identifiers)) == len(identifiers)
        assert all(field["attributes"]["label"] for field in form["body"])


def test_pre_commit_runs_ruff() -> None:
    (repository,) = read_yaml(ROOT / ".pre-commit-config.yaml")["repos"]
    assert [hook["id"] for hook in repository["hooks"]] == ["ruff-check", "ruff-format"]


def test_version_has_one_source() -> None:
    assert "version" in project()["dynamic"]
    citation = read_yaml(ROOT / "CITATION.cff")
    assert citation["version"] == attendrop.__version__
    assert citation["repository-code"] == project()["urls"]["Repository"]
    assert f"## [{attendrop.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_oldest_constraints_are_the_lower_bounds() -> None:
    extras = {name: of for name, of in project()["optional-dependencies"].items() if name not in ("dev", "docs")}
    bounds = dict(
        requirement.split(">=")
        for requirement in {*project()["dependencies"], *chain(*extras.values())}
        if ">=" in requirement
    )
    pins = dict(re.findall(r"^([\w-]+)==(.+)$", (ROOT / "constraints-oldest.txt").read_text(), re.MULTILINE))
    assert pins.keys() == bounds.keys()
    assert all(f"{pins[name]}.".startswith(f"{bound}.") for name, bound in bounds.items())


def test_conda_recipe_has_the_version_and_the_requirements_of_the_package() -> None:
    rattler_build = pytest.importorskip("rattler_build")
    (rendered,) = rattler_build.Stage0Recipe.from_file(ROOT / "recipe/recipe.yaml").render()  # refuses unknown fields
    assert rendered.recipe.package.version == attendrop.__version__
    extras = project()["optional-dependencies"]
    ours = [*project()["dependencies"], *(line for name in ("data", "plot", "cli") for line in extras[name])]
    named = {"torch": "pytorch", "matplotlib": "matplotlib-base"}  # what conda calls them
    wanted = {re.match(r"[\w-]+", line)[0]: line for line in ours if "attendrop[" not in line}  # type: ignore[index]
    wanted = {f"{named.get(name, name)}{line.removeprefix(name)}" for name, line in wanted.items()}
    listed = {str(line).replace(" ", "") for line in rendered.recipe.requirements.run}
    assert listed == wanted | {f"python{project()['requires-python']}"}
