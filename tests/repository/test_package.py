"""The wheel, installed into an empty environment that has the dependencies but not the checkout."""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import attendrop

# one process runs them all, so that the wheel is built once
pytestmark = pytest.mark.xdist_group("package")

ROOT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "src")

TINY_TRAINING = """
import torch
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

import attendrop
from attendrop import ADDrop, RegularizedTrainer

size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
model = BertForSequenceClassification(BertConfig(vocab_size=20, **size))
before = model.classifier.weight.detach().clone()
trainer = RegularizedTrainer(
    model=model,
    args=TrainingArguments("out", max_steps=2, use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no"),
    train_dataset=[{"input_ids": torch.arange(5, 11) + i, "labels": i % 2} for i in range(8)],
    regularizers=[ADDrop(p=0.5, q=0.5, cross_tuning=False)],
)
trainer.train()
trainer.save_model("out")
assert not torch.equal(before, model.classifier.weight)
print(attendrop.__file__)
"""


def test_grouped_tests_share_one_process(request: pytest.FixtureRequest) -> None:
    """Otherwise the fixtures of a group, which train models, would be made in each process, and nobody would notice."""
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("the tests run in one process")
    assert request.node.nodeid.endswith("@package")


def build_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the wheel as `make dist` does, from a copy of the sources: nothing is written into the checkout."""
    sources, target = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("dist")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(ROOT / name, sources / name)
    build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(target), str(sources)]
    variables = {**os.environ, "SOURCE_DATE_EPOCH": "1767225600"}
    done = subprocess.run(build, capture_output=True, text=True, env=variables, umask=0o022)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = target.iterdir()
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory)


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel.

    A .pth file adds the packages of the running environment. Python does not read the .pth files that it finds there,
    so the checkout, which an editable install adds with one, is not on the path.
    """
    folder = tmp_path_factory.mktemp("environment") / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()), encoding="utf-8")
    install = ["-m", "pip", "--python", str(folder), "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([sys.executable, *install], check=True)
    return folder


def run(environment: Path, folder: Path, *command: str) -> str:
    """Runs a program of the environment in `folder`; returns what it prints."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    program, *arguments = command
    done = subprocess.run(
        [environment / "bin" / program, *arguments], cwd=folder, env=variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_wheel_contains_every_module_and_the_type_information(wheel: Path) -> None:
    package = ROOT / "src" / "attendrop"
    modules = {str(path.relative_to(package.parent)) for path in package.rglob("*.py")}
    page = {str(path.relative_to(package.parent)) for path in package.glob("lab/report/page/*/*") if path.is_file()}
    page = {name for name in page if "__pycache__" not in name}
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    others = {"py.typed", "__init__.pyi", "lab/cli/flags.json", "lab/serving/page.html"}
    assert names == modules | page | {f"attendrop/{name}" for name in others}
    assert wheel.name.startswith(f"attendrop-{attendrop.__version__}-")


def test_description_of_the_wheel_has_no_relative_link(wheel: Path) -> None:
    """On the package index there are no files beside it."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        description = archive.read(name).decode().partition("\n\n")[2]
    links = re.findall(r"\]\(([^)\s]+)\)", description)
    files = [
        re.fullmatch(rf".*/(?:blob|raw)/v{re.escape(attendrop.__version__)}/([^#]+)(#.*)?", link) for link in links
    ]
    assert len(links) > 15
    assert all(file or link.startswith("#") for file, link in zip(files, links, strict=True)), links
    assert all((ROOT / file[1]).is_file() for file in files if file)


@pytest.mark.slow
def test_wheel_is_the_same_to_the_byte_when_built_again(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert build_wheel(tmp_path_factory).read_bytes() == wheel.read_bytes()


def test_installed_wheel_prints_its_version(environment: Path, tmp_path: Path) -> None:
    expected = f"attendrop {attendrop.__version__}\n"
    assert run(environment, tmp_path, "attendrop", "--version") == expected
    assert run(environment, tmp_path, "python", "-m", "attendrop", "--version") == expected


def test_installed_wheel_trains_a_tiny_model(environment: Path, tmp_path: Path) -> None:
    output = run(environment, tmp_path, "python", "-c", TINY_TRAINING)
    assert Path(output.splitlines()[-1]).is_relative_to(environment)
    assert (tmp_path / "out" / "regularizers.json").is_file()


# ---- what is too old or missing ------------------------------------------------------------------------------------


def test_python_that_is_too_old_is_refused_by_pip_in_one_sentence(wheel: Path) -> None:
    python = next((path for path in pythons("3.10")), None)
    if python is None:
        pytest.skip("there is no Python 3.10")
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--dry-run",
        "--no-deps",
        "--no-index",
        wheel,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert re.fullmatch(
        r"ERROR: Package 'attendrop' requires a different Python: 3\.10\.\d+ not in '>=3\.11'\n", done.stderr
    )


def pythons(version: str) -> Iterator[str]:
    """The interpreters of a version, on the path or of pyenv."""
    named = [shutil.which(f"python{version}"), *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))]
    for path in filter(None, named):
        if subprocess.run([path, "--version"], capture_output=True).returncode == 0:  # a shim may have no version
            yield path


def bare(environment: Path, folder: Path, *names: str) -> Path:
    """A folder for sys.path with attendrop as it is installed, and with these other modules only."""
    (installed,) = environment.glob("lib/python*/site-packages")
    packages = Path(site.getsitepackages()[0])
    for path in (*installed.glob("attendrop*"), *(path for name in names for path in packages.glob(f"{name}*"))):
        (folder / path.name).symlink_to(path)
    return folder


def in_bare(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-S", *arguments]
    return subprocess.run(command, env={"PYTHONPATH": str(folder)}, cwd=folder, capture_output=True, text=True)


def test_missing_torch_is_one_sentence_on_first_use(environment: Path, tmp_path: Path) -> None:
    folder = bare(environment, tmp_path, "lazy_loader", "packaging")
    assert in_bare(folder, "-c", "import attendrop; print(attendrop.__version__)").stdout.strip()
    done = in_bare(folder, "-c", "from attendrop import ADDrop")
    sentence = done.stderr.splitlines()[-1]
    assert sentence.startswith("ImportError: attendrop needs torch>=2.11, which is not installed; ")
    assert "pip install 'torch>=2.11' 'transformers>=" in sentence


def test_old_transformers_is_one_sentence_in_python_and_on_the_command_line(environment: Path, tmp_path: Path) -> None:
    (installed,) = environment.glob("lib/python*/site-packages")
    old = installed / "transformers-5.17.0.dist-info"
    old.mkdir()
    try:
        (old / "METADATA").write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 5.17.0\n")
        sentence = "attendrop needs transformers>=5.19, and 5.17.0 is installed: pip install 'transformers>=5.19'."
        python = [environment / "bin" / "python", "-c", "from attendrop import RegularizedTrainer"]
        done = subprocess.run(python, cwd=tmp_path, capture_output=True, text=True)
        assert done.stderr.splitlines()[-1] == f"ImportError: {sentence}"
        command = [environment / "bin" / "attendrop", "train", "--model", "m", "--train-file", "f.csv"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, done.stderr, done.stdout) == (2, f"error: {sentence}\n", "")
    finally:
        shutil.rmtree(old)


@pytest.mark.slow
def test_steps_of_the_workflows_run_in_clean_clones() -> None:
    """Of those that need no GPU, and without the lanes that run these tests."""
    jobs = ["ci/lint", "ci/docs", "ci/package", "release"]
    script = ROOT / "tests" / "scripts" / "workflow_steps.py"
    out = ["--set", "PIP_EXTRA_INDEX_URL="]  # it may be out of reach; pip has the torch of its own settings
    done = subprocess.run([sys.executable, script, *jobs, *out], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("  ok, ") >= 7
