"""Runs the `run:` steps of the workflows in clean clones, as a runner of GitHub would, and says which cannot run here.

    python tests/scripts/workflow_steps.py [ci/lint ci/docs ci/package release/build] [--list] [--set NAME=VALUE]

Each job gets a clone of the last commit and a virtual environment of the Python that it asks for. Actions (`uses:`) are
not run: checkout and setup-python are these two, the others are listed. `--set` replaces a variable, such as that of an
index of packages that is out of reach. Without names all jobs are run.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
# What only a runner has: a step with one of these is not run here.
ELSEWHERE = {"nvidia-smi": "a GPU", "test-gpu": "a GPU", "gh release": "GitHub", "git push": "GitHub"}
PROVIDED = ("actions/checkout", "actions/setup-python")


@dataclass
class Job:
    """A job of a workflow, with the values of one row of its matrix."""

    name: str
    steps: list[dict[str, Any]]
    variables: dict[str, str]
    values: dict[str, str] = field(default_factory=dict)

    def filled(self, text: str) -> str:
        """Return the text with the values of the matrix in the place of its expressions."""
        return re.sub(r"\$\{\{ *([\w.]+) *\}\}", lambda name: self.values.get(name[1], ""), text)

    @property
    def python(self) -> str:
        asked = (step["with"]["python-version"] for step in self.steps if "setup-python" in step.get("uses", ""))
        return self.filled(next(asked, "3.11"))


def jobs() -> Iterator[Job]:
    for path in sorted((ROOT / ".github/workflows").glob("*.yml")):
        workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
        for name, job in workflow["jobs"].items():
            variables = {**workflow.get("env", {}), **job.get("env", {})}
            variables = {key: str(value) for key, value in variables.items()}
            for case in job.get("strategy", {}).get("matrix", {}).get("include", [{}]):
                called = "/".join([path.stem, name, *case.values()])
                values = {f"matrix.{key}": value for key, value in case.items()}
                yield Job(called, job["steps"], variables, values)


def needs(command: str) -> str | None:
    """Return what a command needs that is not here; None if it can run."""
    return next((what for sign, what in ELSEWHERE.items() if sign in command), None)


def interpreter(version: str) -> str | None:
    """Return the path of a Python of this version."""
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    paths = [
        *([sys.executable] if version == own else []),
        *Path.home().glob(f".pyenv/versions/{version}.*/bin/python"),
    ]
    return next(map(str, paths), None) or shutil.which(f"python{version}")


def run_job(job: Job, replaced: dict[str, str]) -> int:
    """Run the steps of a job and print a line for each; 1 if one failed, and 0 if all that could run succeeded."""
    print(job.name, flush=True)
    python = interpreter(job.python)
    if python is None:
        print(f"  not run: there is no Python {job.python}")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        clone, environment = Path(folder, "clone"), Path(folder, "python")
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        subprocess.run([python, "-m", "venv", environment], check=True)
        (version,) = re.findall(r'__version__ = "(.+)"', (clone / "src/attendrop/__init__.py").read_text("utf-8"))
        outside = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
        variables = {**outside, "CI": "true", "GITHUB_REF_NAME": f"v{version}", **job.variables, **replaced}
        variables["PATH"] = f"{environment / 'bin'}{os.pathsep}{variables['PATH']}"
        for step in job.steps:
            if "uses" in step:
                if not step["uses"].startswith(PROVIDED):
                    print(f"  not run: {step['uses']}, an action")
                continue
            command = job.filled(step["run"])
            if missing := needs(command):
                print(f"  not run: {command}, which needs {missing}")
                continue
            begun = time.monotonic()
            own = {key: job.filled(str(value)) for key, value in step.get("env", {}).items()}
            options = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", command]
            done = subprocess.run(options, cwd=clone, env={**variables, **own}, capture_output=True, text=True)
            print(
                f"  {'ok' if done.returncode == 0 else 'FAILED'}, {time.monotonic() - begun:.0f} s: {command}",
                flush=True,
            )
            if done.returncode != 0:
                print(done.stdout[-4000:], done.stderr[-4000:], sep="\n")
                return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("jobs", nargs="*", help="workflow/job, with or without the values of the matrix")
    parser.add_argument("--list", action="store_true", help="only print the names of the jobs")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE")
    options = parser.parse_args()
    named = [job for job in jobs() if not options.jobs or any(job.name.startswith(name) for name in options.jobs)]
    if options.list:
        print("\n".join(job.name for job in named))
        return 0
    replaced = dict(item.split("=", 1) for item in options.set)
    return max((run_job(job, replaced) for job in named), default=1)


if __name__ == "__main__":
    sys.exit(main())
