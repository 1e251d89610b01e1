"""The page at /, in a browser: with the keyboard alone, without anything from elsewhere."""
# ruff: noqa: E402  (what may be absent is asked for first)

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="the page needs uvicorn: pip install 'prism-sequence[serve]'")
pytest.importorskip("httpx", reason="the tests of the service need httpx: pip install httpx")
browsers = pytest.importorskip("playwright.sync_api", reason="`make test-services` gets playwright and chromium")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium: `make test-services` gets it")

from support.service import models, running

# [text, contrast to the nearest background] of every element that has text of its own
CONTRASTS = """() => {
  const light = (color) => {
    const [r, g, b] = color.match(/[\\d.]+/g).slice(0, 3)
      .map((x) => x / 255).map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (one) => {
    const color = getComputedStyle(one).backgroundColor;
    return /, 0\\)$/.test(color) && one.parentElement ? behind(one.parentElement) : color;
  };
  const own = (one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  return [...document.querySelectorAll("body *")].filter((one) => own(one) && one.checkVisibility()).map((one) => {
    const [a, b] = [light(getComputedStyle(one).color), light(behind(one))].sort((x, y) => y - x);
    return [one.textContent, (a + 0.05) / (b + 0.05)];
  });
}"""


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Any]:
    """The page, open; no script of it may fail, and nothing may be asked of anyone else."""
    wrong, asked = [], set()
    with running(models(tmp_path / "models"), tmp_path / "e.db") as client, browsers.sync_playwright() as play:
        address = str(client.base_url)
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        made = browser.new_page()
        made.on("pageerror", lambda error: wrong.append(str(error)))
        made.on("request", lambda request: asked.add(request.url.split("/")[2]))
        made.goto(address)
        made.wait_for_selector("#recommended .take")
        yield made
        browser.close()
    assert not wrong
    assert asked == {address.split("/")[2]}


def test_a_customer_is_opened_and_takes_a_product_by_keyboard_and_the_reasons_are_shown(page: Any) -> None:
    browsers.expect(page.locator("#user")).to_have_value(re.compile("^visitor-"))  # someone new is there at once
    page.fill("#user", "somebody")
    page.keyboard.press("Enter")
    said = browsers.expect(page.locator("#said"))
    said.to_have_text("somebody is open.")
    before = page.inner_text("#recommended")
    page.focus("#products .take")
    page.keyboard.press("Enter")
    browsers.expect(page.locator("#events")).to_have_text("1")
    said.to_contain_text("taken. Most likely next: ")  # read aloud
    assert page.inner_text("#recommended") != before
    assert page.locator("#recommended .moved").count()  # where each item stood before is shown, and read aloud
    assert page.locator("#recommended .aloud").first.inner_text().startswith(", ")
    assert page.locator("#history li").count() == 1
    assert "ms" in page.inner_text("#latency")
    why = page.locator("#recommended .why").first
    why.press("Enter")
    browsers.expect(why).to_have_attribute("aria-expanded", "true")
    assert page.locator("#recommended li").first.locator(".reasons tbody tr").count() == 1
    why.press("Enter")
    browsers.expect(page.locator(".reasons")).to_have_count(0)
    assert not page.evaluate("[...document.querySelectorAll('input')].filter((one) => !one.labels.length).length")


def test_a_known_customer_is_there_after_a_reload_and_is_deleted_by_two_presses(page: Any) -> None:
    page.fill("#user", "somebody")
    page.keyboard.press("Enter")
    browsers.expect(page.locator("#said")).to_have_text("somebody is open.")
    page.locator("#products .take").first.click()
    browsers.expect(page.locator("#events")).to_have_text("1")
    page.reload()
    browsers.expect(page.locator("#count")).to_have_text("(1 event)")
    browsers.expect(page.locator("#user")).to_have_value("somebody")
    page.click("#forget")
    browsers.expect(page.locator("#forget")).to_contain_text("Press again")
    assert page.inner_text("#events") == "1"
    page.click("#forget")
    browsers.expect(page.locator("#events")).to_have_text("0")
    page.fill("#search", "nothing at all")
    browsers.expect(page.locator("#found")).to_contain_text("No product has")
    page.click("#fresh")
    browsers.expect(page.locator("#user")).to_have_value(re.compile("^visitor-"))
    browsers.expect(page.locator("#nothing")).to_be_visible()


def test_who_takes_a_recommendation_by_keyboard_goes_on_at_the_same_place(page: Any) -> None:
    for n in (1, 2):
        third = page.locator("#recommended .take").nth(2)
        third.press("Enter")
        browsers.expect(page.locator("#events")).to_have_text(str(n))
        browsers.expect(page.locator("#recommended .take").nth(2)).to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 700, 1280])
def test_nothing_is_cut_off_and_every_text_stands_out_from_what_lies_behind_it(
    page: Any, scheme: Any, width: int
) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 800})
    page.locator("#products .take").first.click()
    browsers.expect(page.locator("#events")).to_have_text("1")
    page.locator("#recommended .why").first.click()
    browsers.expect(page.locator(".reasons table")).to_have_count(1)
    page.mouse.move(0, 0)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for text, ratio in page.evaluate(CONTRASTS):
        assert ratio >= 4.5, text  # what WCAG 2 asks of small text


def test_a_key_is_asked_for_only_where_one_is_needed(page: Any, tmp_path: Path) -> None:
    browsers.expect(page.locator("#access")).to_be_hidden()
    page.locator("#products .take").first.click()
    browsers.expect(page.locator("#events")).to_have_text("1")
    page.route("**/recommendations*", lambda route: route.fulfill(status=401, json={"detail": "no key"}))
    page.fill("#user", "somebody")
    page.keyboard.press("Enter")
    browsers.expect(page.locator("#key")).to_be_focused()
    browsers.expect(page.locator("#said")).to_have_text("no key")
    page.locator("#products .take").first.click()  # the customer whose history is shown is still the one who takes
    browsers.expect(page.locator("#events")).to_have_text("2")
