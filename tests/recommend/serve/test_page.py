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
