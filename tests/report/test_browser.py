"""A real browser shows the page: no request, no error, values on hover, no overflow on a phone, contrast in both schemes."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.report.page import write_page
from headway.report.summary import summarize

from . import run_directory as build
from .browser import Browser

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here; apt-get install chromium"),
]

# Every element with its own text and a contrast with its background below 4.5 (WCAG 2.2, 1.4.3 level AA).
FAINT_TEXT = """
(() => {
  const rgb = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = rgb(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const contrast = (node) => {
    const [a, b] = [light(rgb(getComputedStyle(node).color)), light(ground(node))].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  };
  const own = (node) => [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
  return [...document.querySelectorAll("body *")].filter((node) => own(node) && node.tagName !== "SCRIPT" && contrast(node) < 4.5)
    .map((node) => `${node.className || node.tagName}: ${contrast(node).toFixed(2)}`);
})()
"""
FRAME = "document.querySelector('.frame').getBoundingClientRect()"


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    assert CHROMIUM is not None
    with Browser(CHROMIUM, tmp_path / "profile") as found:
        yield found


@pytest.fixture
def page(runs: Path) -> Path:
    build.two_failures_and_a_refusal(runs / "run")
    write_page(summarize(runs / "run"), runs / "report.html")
    return runs / "report.html"


def test_page_requests_nothing_and_logs_no_errors(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert [url for url in browser.requests() if not url.startswith("data:")] == [page.as_uri()]
    assert browser.complaints() == []


def test_hovering_over_the_curve_shows_the_nearest_step(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.evaluate("document.querySelector('.tip').hidden") is True
    browser.evaluate("document.querySelector('.frame').scrollIntoView()")
    left, width, top = (browser.evaluate(f"{FRAME}.{name}") for name in ("left", "width", "top"))
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=left + width * (25 - 1) / 39, y=top + 20)
    loss = next(point.loss for point in summarize(page.parent / "run").curve if point.step == 25 and point.stands)
    assert browser.evaluate("document.querySelector('.tip').textContent") == f"step 25, loss {loss:.6g}, generation 4"
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    assert browser.evaluate("document.querySelector('.tip').hidden") is True


@pytest.mark.parametrize("width", [360, 420, 800, 1400])
def test_page_does_not_scroll_horizontally_at_any_width(browser: Browser, page: Path, width: int) -> None:
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    browser.open(page)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_enough_contrast(browser: Browser, page: Path, scheme: str) -> None:
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    browser.open(page)
    body = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert body == {"light": "rgb(246, 247, 249)", "dark": "rgb(18, 22, 28)"}[scheme]
    assert browser.evaluate(FAINT_TEXT) == []


def test_printed_page_is_light_even_in_dark_mode(browser: Browser, page: Path) -> None:
    browser.call("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    browser.open(page)
    assert browser.evaluate("getComputedStyle(document.querySelector('section')).backgroundColor") == "rgb(255, 255, 255)"
