"""The pictures of docs/reading-a-report.md: parts of a real report in a real browser.

    python -m docs.report_pictures runs/digits

Needs Chromium. Colours are cut down to a palette, which a page of few colours does not miss.
"""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image
from tests.browser import Page, browser

PARTS = {
    "report_head": ["header", ".cards", ".share", ".key", ".claim"],
    "report_accuracy": ["section:nth-of-type(1) h2", "section:nth-of-type(1) > :last-child"],
    "report_radii": ["section:nth-of-type(2) h2", "section:nth-of-type(2) > :last-child"],
    "report_gallery": ["section:nth-of-type(3) h2", "section:nth-of-type(3) > :last-child"],
    "report_bound": ["section:nth-of-type(6) h2", "section:nth-of-type(6) > :last-child"],
}
"""Each picture holds these elements, from the first to the last."""
MARGIN = 12


def main(run: str | Path, out: str | Path = Path(__file__).parent) -> None:
    with browser() as page:
        size = {"width": 840, "height": 900, "deviceScaleFactor": 1.5, "mobile": False}
        page.call("Emulation.setDeviceMetricsOverride", **size)
        page.call("Page.navigate", url=(Path(run).resolve() / "report.html").as_uri())
        page.until("document.readyState === 'complete' && document.querySelectorAll('section').length >= 6")
        for name, selectors in PARTS.items():
            path = Path(out) / f"{name}.png"
            page.screenshot(path, _around(page, selectors))
            Image.open(path).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)


def _around(page: Page, selectors: list[str]) -> dict[str, float]:
    """The rectangle that holds the first and the last of these elements, with a margin."""
    boxes = [page.evaluate(f"document.querySelector('main {s}').getBoundingClientRect().toJSON()") for s in selectors]
    top = min(box["top"] for box in boxes) - MARGIN
    bottom = max(box["bottom"] for box in boxes) + MARGIN
    left, right = boxes[0]["left"] - MARGIN, boxes[0]["right"] + MARGIN
    return {"x": left, "y": top, "width": right - left, "height": bottom - top}


if __name__ == "__main__":
    main(*sys.argv[1:])
