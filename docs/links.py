"""Checks the built site: `python -m docs.links site` lists links to pages, files or anchors that do not exist.

Links to other sites are not followed.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        of = dict(attributes)
        self.anchors |= {value for name in ("id", "name") if (value := of.get(name))}
        self.links += [value for name in ("href", "src") if tag != "link" and (value := of.get(name))]


def broken(site: Path) -> list[str]:
    """Return "page: link" for each link inside of the site that leads nowhere.

    Args:
        site: The folder of the built site.
    """
    pages = {path.resolve(): Page(path) for path in sorted(site.rglob("*.html"))}
    problems = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue
            goal = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            goal = goal / "index.html" if goal.is_dir() else goal
            anchor = unquote(parts.fragment)
            if not goal.is_file() or (anchor and goal in pages and anchor not in pages[goal].anchors):
                problems.append(f"{path.relative_to(site.resolve())}: {link}")
    return problems


def main() -> int:
    site = Path(sys.argv[1] if len(sys.argv) > 1 else "site")
    problems = broken(site)
    print("\n".join(problems) or "all links of the site lead somewhere")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
