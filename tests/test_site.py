"""The documentation site builds without a warning, and its links, its files and its reference are all there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import zlib
from collections.abc import Iterator
from functools import reduce
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
from docs import report_pictures
from tests import browser
from tests.pages import ROOT, png_size

import gloronet as gn
from gloronet import verbs

LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}
"""What a browser fetches without being asked; `a` is what a reader may follow."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make docs` does, into a folder of our own."""
    out = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", *command(out / "site", out / "doctrees")],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not done.stderr.strip()
    return out / "site"


def command(site: Path, doctrees: Path) -> list[str]:
    (recipe,) = re.findall(r"^docs:.*\n\t\$\(BIN\)/python -m (.*)", (ROOT / "Makefile").read_text(), re.M)
    return shlex.split(recipe.replace("build/doctrees", str(doctrees)).replace("build/site", str(site)))


class Page(HTMLParser):
    """What a page loads and links to, and the names that can be linked to on it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.loads, self.links, self.ids = path, list[str](), list[str](), set[str]()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        if values.get(LOADS.get(tag, ""), ""):
            self.loads.append(values[LOADS[tag]])
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])


def read(site: Path) -> Iterator[Page]:
    yield from map(Page, sorted(site.rglob("*.html")))


def test_every_link_leads_to_a_page_and_a_place_on_it(site: Path) -> None:
    pages = {page.path: page for page in read(site)}
    broken = []
    for page in pages.values():
        for link in (*page.links, *page.loads):
            if re.match(r"\w+:", link):
                continue
            to, place = urldefrag(unquote(link))
            target = (page.path.parent / to.partition("?")[0]).resolve() if to else page.path
            if not target.is_file() or (place and target in pages and place not in pages[target].ids):
                broken.append(f"{page.path.name}: {link}")
    assert broken == []
    assert sum(len(page.links) for page in pages.values()) > 1000


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    outside = r"(?:https?:)?//"
    assert [link for page in read(site) for link in page.loads if re.match(outside, link)] == []
    for style in site.rglob("*.css"):
        assert not re.findall(rf"(?:url\(|@import)\s*[\"']?{outside}", style.read_text(encoding="utf-8")), style
    assert not [path for path in site.rglob("*") if path.suffix in (".woff", ".woff2", ".ttf", ".otf", ".eot")]


def test_the_reference_has_every_public_name(site: Path) -> None:
    lines = zlib.decompress((site / "objects.inv").read_bytes().split(b"\n", 4)[4]).decode().splitlines()
    named = [line.split()[0] for line in lines if line.split()[1].startswith("py:")]
    documented = [found for name in named if (found := value(name)) is not None]
    missing = [name for name in gn.__all__ if not any(getattr(gn, name) is found for found in documented)]
    assert missing == []
    assert len(named) > 150


def value(name: str) -> object:
    """What a dotted name of the reference is; None for an attribute that only instances have."""
    return reduce(lambda found, part: getattr(found, part, None), name.split(".")[1:], gn)


def test_notebooks_are_shown_with_what_they_printed(site: Path) -> None:
    text = (site / "notebooks" / "first_steps.html").read_text(encoding="utf-8")
    assert text.count("data:image/png;base64,") == 4
    assert "K up to the last hidden layer" in text


# In a browser, where there is one


@pytest.fixture(scope="module")
def tab() -> Iterator[browser.Page]:
    if browser.executable() is None:
        pytest.skip("there is no Chromium on this machine")
    with browser.browser() as page:
        yield page


def visit(tab: browser.Page, path: Path, width: int, query: str = "") -> None:
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    tab.call("Emulation.setDeviceMetricsOverride", **size)
    tab.call("Page.navigate", url=path.as_uri() + query)
    tab.until(f"location.pathname === {path.as_uri().removeprefix('file://')!r} && document.readyState === 'complete'")


def test_no_page_is_wider_than_a_phone(tab: browser.Page, site: Path) -> None:
    for path in sorted(site.glob("*.html")) + sorted(site.glob("[a-z]*/*.html")):
        visit(tab, path, width=360)
        assert tab.evaluate("document.documentElement.scrollWidth") <= 360, path.name
    assert tab.problems == []


def test_the_search_works_without_a_server(tab: browser.Page, site: Path) -> None:
    visit(tab, site / "search.html", width=1000, query="?q=Standardize")
    for found in ("faq.html", "api/networks.html#gloronet.Standardize"):
        tab.until(f"document.querySelector('ul.search a[href*=\"{found}\"]') !== null")


def test_the_pictures_of_a_report_can_be_taken(tmp_path: Path) -> None:
    if browser.executable() is None:
        pytest.skip("there is no Chromium on this machine")
    run = verbs.train("digits", tmp_path / "run", changes=["train.epochs=2"], attacked=0, device="cpu")
    report_pictures.main(run, tmp_path)
    for name in report_pictures.PARTS:
        drawn, shown = (png_size(folder / f"{name}.png") for folder in (tmp_path, ROOT / "docs"))
        assert drawn[0] == shown[0]
        assert drawn[1] == pytest.approx(shown[1], rel=0.2)  # fewer images, other numbers
