"""The page to try texts: one HTML document without anything from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from pathlib import Path

from ..runs.predict import Finished
from ..tasks import kind_of

_PAGE = Path(__file__).with_name("page.html").read_text(encoding="utf-8")


def _hashes(element: str) -> str:
    blocks = re.findall(rf"<{element}>(.*?)</{element}>", _PAGE, re.DOTALL)
    digests = (base64.b64encode(hashlib.sha256(block.encode()).digest()).decode() for block in blocks)
    return " ".join(f"'sha256-{digest}'" for digest in digests)


# The browser runs and loads nothing but what is in the page, and sends only to where it came from.
CONTENT_POLICY = (
    f"default-src 'none'; script-src {_hashes('script')}; style-src {_hashes('style')}; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def make_page(run: Finished, most: int) -> str:
    """Make the page of a run.

    Args:
        run: The run.
        most: The largest number of examples of a request.
    """
    task = run.task
    inputs = kind_of(task).inputs(task)
    several = len(inputs) > 1
    fields = "".join(
        f'<p><label for="text{place}">{html.escape(name)}</label>'
        f'<textarea id="text{place}" rows="{2 if several else 4}" required></textarea></p>'
        for place, name in enumerate(inputs)
    )
    hint = "" if several else f"One text on each line, at most {most:,}."
    values = {"TASK": html.escape(task.name), "FIELDS": fields, "HINT": hint}
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], _PAGE)
