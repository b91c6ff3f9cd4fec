"""The page in a real browser: drawing, the slider, the attack, errors, the keyboard, a phone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra [serve] is not installed")
pytest.importorskip("websockets", reason="websockets is not installed")

from tests.browser import Page, browser, draw, executable
from tests.serving import Service, service, small_run

if executable() is None:
    pytest.skip("there is no Chromium on this machine", allow_module_level=True)

READY = (
    "document.body.dataset.prediction !== ''"
    " && document.getElementById('verdict').getAttribute('aria-busy') === 'false'"
)
"""There is an answer, and it is about what is drawn."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(small_run(tmp_path_factory.mktemp("page"))) as running:
        yield running


@pytest.fixture(scope="module")
def tab() -> Iterator[Page]:
    with browser() as page:
        yield page


@pytest.fixture
def page(tab: Page, served: Service) -> Iterator[Page]:
    """Freshly loaded, showing the first test sample; whatever the browser complains of fails the test."""
    tab.problems.clear()
    tab.open(served.url)
    tab.until(READY)
    yield tab
    assert not [p for p in tab.problems if "status of 4" not in p]


def prediction(page: Page) -> int:
    return int(page.evaluate("document.body.dataset.prediction"))


def slide(page: Page, share: float) -> None:
    page.evaluate(
        "(() => { const e = document.getElementById('epsilon');"
        f" e.value = e.max * {share}; e.dispatchEvent(new Event('input')); }})()"
    )


def test_drawing_changes_the_answer(page: Page) -> None:
    page.click("clear")
    page.until("document.body.dataset.prediction === ''")
    assert "Nothing yet" in page.text("says")
    disabled = "document.getElementById('attack').disabled"
    assert page.evaluate(disabled)  # there is nothing to attack
    slide(page, 0)
    seen = set()
    for stroke in (((0.5, 0.05), (0.5, 0.95)), ((0.3, 0.05), (0.7, 0.05), (0.7, 0.95)), ((0.2, 0.5), (0.8, 0.5))):
        before = page.text("says")
        draw(page, stroke)
        page.until(f"{READY} && document.getElementById('says').innerText !== {json.dumps(before)}")
        seen.add(prediction(page))
    assert not page.evaluate(disabled)
    assert len(seen) > 1
    assert seen <= set(range(10))


def test_the_slider_moves_the_line_between_answer_and_abstention(page: Page) -> None:
    slide(page, 0)
    label = prediction(page)
    assert page.text("big") == str(label) != "⊥"
    assert "proved within" in page.text("says")
    slide(page, 1)
    assert prediction(page) == -1
    assert page.text("big") == "⊥"
    assert "I abstain" in page.text("says")
    assert page.evaluate("document.getElementById('verdict').dataset.state") == "bottom"
    assert "abstains" in page.evaluate("document.getElementById('epsilon').getAttribute('aria-valuetext')")
    slide(page, 0)
    assert prediction(page) == label


def test_the_attack_stays_outside_the_ring(page: Page, tmp_path: Path) -> None:
    page.click("attack")
    page.until("!document.getElementById('attacked').hidden", 40)
    told = page.evaluate("({...document.getElementById('attacked').dataset})")
    assert float(told["distance"]) >= float(told["radius"]) > 0
    assert "stayed outside" in page.text("attack-says")
    edge, point = page.evaluate(
        "(() => { const p = document.getElementById('point'), r = document.getElementById('edge');"
        " return [Number(r.getAttribute('r')), Math.hypot(p.getAttribute('cx'), p.getAttribute('cy'))]; })()"
    )
    assert point > edge
    page.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 20_000
    draw(page, ((0.2, 0.2), (0.3, 0.3)))  # another input: what was found is no longer about it
    page.until("document.getElementById('attacked').hidden")


def test_what_goes_wrong_is_shown_and_goes_away(page: Page) -> None:
    hidden = "document.getElementById('error').hidden"
    assert page.evaluate(hidden)
    page.evaluate(
        "(() => { const s = document.getElementById('sample'); s.value = 99999;"
        " s.dispatchEvent(new Event('change')); })()"
    )
    page.until(f"!{hidden}")
    assert "numbered 0 to 359" in page.text("error")
    page.click("random")
    page.until(hidden)
    page.evaluate(
        "(() => { const d = new DataTransfer(), f = document.getElementById('file');"
        " d.items.add(new File(['nope'], 'nope.png', { type: 'image/png' }));"
        " f.files = d.files; f.dispatchEvent(new Event('change')); })()"
    )
    page.until(f"!{hidden}")
    assert "nope.png is not an image" in page.text("error")
    assert page.evaluate("document.getElementById('error').getAttribute('role')") == "alert"


def test_an_image_is_taken_and_certified(page: Page) -> None:
    page.evaluate(
        "(async () => { const c = document.createElement('canvas'); c.width = 60; c.height = 40;"
        " const g = c.getContext('2d'); g.fillRect(0, 0, 60, 40); g.fillStyle = '#fff'; g.fillRect(26, 2, 8, 36);"
        " const b = await new Promise((done) => c.toBlob(done)), d = new DataTransfer();"
        " d.items.add(new File([b], 'one.png', { type: 'image/png' }));"
        " const f = document.getElementById('file'); f.files = d.files; f.dispatchEvent(new Event('change')); })()"
    )
    page.until("document.getElementById('truth').innerText.includes('one.png, made 8×8')")
    page.until(READY)


def test_the_keyboard_draws_and_everything_has_a_name(page: Page) -> None:
    page.click("clear")
    page.until("document.body.dataset.prediction === ''")
    page.evaluate("document.getElementById('draw').focus()")
    page.press("ArrowUp")
    page.press(" ", " ")
    for _ in range(4):
        page.press("ArrowDown", modifiers=8)  # with Shift it draws
    page.until(READY)
    tree = page.call("Accessibility.getFullAXTree")["nodes"]
    controls = [n for n in tree if not n["ignored"] and any(p["name"] == "focusable" for p in n.get("properties", ()))]
    controls = [n for n in controls if n["role"]["value"] != "RootWebArea"]
    assert len(controls) >= 7
    assert not [n["role"] for n in controls if not n.get("name", {}).get("value")]


def test_it_fits_a_phone(page: Page, served: Service) -> None:
    page.open(served.url, width=360, height=740)
    page.until(READY)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    small = "[...document.querySelectorAll('button')].filter((b) => b.offsetHeight && b.offsetHeight < 40).length"
    assert page.evaluate(small) == 0


def test_it_says_so_when_the_service_is_gone(tab: Page, served: Service) -> None:
    tab.open(served.url)
    tab.until(READY)
    served.process.terminate()
    served.process.wait(15)
    tab.click("random")
    tab.until("!document.getElementById('error').hidden")
    assert "does not answer" in tab.text("error")
