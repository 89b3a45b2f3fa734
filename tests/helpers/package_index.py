"""A package index in a folder: wheels that pip accepts, and settings that make pip use no other index."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from attendrop.lab.tasks.downloads import Package, Pin

INSTALLED_CODE = "raise SystemExit('the code of a package was run')\n"


def make_wheel(folder: Path, name: str, members: Mapping[str, bytes], version: str = "1.0") -> Package:
    """Writes a wheel that pip accepts; returns the package with the checksums of its files."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / f"{module}-{version}-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(f"{module}/__init__.py", INSTALLED_CODE)
        for member, content in members.items():
            wheel.writestr(f"{module}/{member}", content)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    pins = {
        member: Pin(f"{module}/{member}", len(content), hashlib.sha256(content).hexdigest())
        for member, content in members.items()
    }
    return Package(name, version, pins)


def set_index(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `folder` the only package index of pip, and `cache` the cache of attendrop."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("ATTENDROP_CACHE", str(cache))


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
