"""Takes pictures of the report page in Chromium: both themes, at 1440 and at 390 pixels.

python tests/scripts/page_screenshots.py FOLDER [--page report.html] [--protocol paper] [--seeds 3]
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from helpers.analyses import make_analysis

WIDTHS, THEMES = (1440, 390), ("light", "dark")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--page", type=Path, help="a page; by default that of a synthetic study")
    parser.add_argument("--protocol", default="honest")
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    from attendrop.lab.report.page import write_report

    options.folder.mkdir(parents=True, exist_ok=True)
    page_path = options.page or write_report(
        make_analysis(seeds=options.seeds, protocol=options.protocol), options.folder / "report"
    )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for width in WIDTHS:
            for theme in THEMES:
                page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
                page.on("console", lambda message: print(message.type, message.text))
                page.on("pageerror", lambda error: print("error", error))
                page.goto(page_path.resolve().as_uri())
                page.wait_for_timeout(300)
                page.screenshot(path=options.folder / f"{width}-{theme}.png", full_page=True)
                page.close()
        browser.close()


if __name__ == "__main__":
    main()
