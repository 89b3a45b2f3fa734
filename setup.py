"""The long description: README.md, whose links name files of the repository, with addresses that work elsewhere too."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]
(VERSION,) = re.findall(r'__version__ = "(.+)"', (ROOT / "src/attendrop/__init__.py").read_text(encoding="utf-8"))


def absolute(link: re.Match[str]) -> str:
    """Return the link to a file of the repository with the address of the file in this version."""
    sign, text, path = link.groups()
    return f"{sign}[{text}]({REPOSITORY}/{'raw' if sign else 'blob'}/v{VERSION}/{path})"


README = (ROOT / "README.md").read_text(encoding="utf-8")
setup(
    long_description=re.sub(r"(!?)\[([^\]]*)\]\((?!#|\w+:)([^)\s]+)\)", absolute, README),
    long_description_content_type="text/markdown",
)
