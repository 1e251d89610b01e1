"""The page at /, in a browser: with the keyboard alone, without anything from elsewhere."""

import shutil
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the page needs fastapi: pip install 'prism-sequence[serve]'")
uvicorn = pytest.importorskip("uvicorn", reason="the page needs uvicorn: pip install 'prism-sequence[serve]'")
browsers = pytest.importorskip("playwright.sync_api", reason="`make test-services` gets playwright and chromium")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium: `make test-services` gets it")


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    from support import tiny

    from prism.recommend.data.splits import split
    from prism.recommend.recommender import Recommender
    from prism.recommend.serve.app import create_app
    from prism.recommend.serve.engine import Engine
    from prism.recommend.serve.service import Limits, Service
    from prism.recommend.serve.stores.sqlite import SqliteStore

    config = replace(tiny.CONFIG, heads=2)
    made = Recommender._untrained(split(tiny.log(), config.protocol), config)
    engine = Engine(made, SqliteStore(tmp_path / "e.db"), capacity=2000)
    engine.warm()
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    app = create_app(Service(engine=engine, folder=tmp_path / "tiny", limits=Limits(seconds=60)))
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{port}/"
    server.should_exit = True
    thread.join()
    engine.stop()


def test_a_customer_is_opened_and_takes_a_product_by_keyboard_and_the_reasons_are_shown(address: str) -> None:
    with browsers.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        wrong, asked = [], set()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: asked.add(request.url.split("/")[2]))
        page.goto(address)
        page.wait_for_selector("#products .take")
        page.fill("#user", "somebody")
        page.keyboard.press("Enter")
        page.wait_for_selector("#recommended .take")
        before = page.inner_text("#recommended")
        page.focus("#products .take")
        page.keyboard.press("Enter")
        browsers.expect(page.locator("#events")).to_have_text("1")
        assert page.inner_text("#recommended") != before
        assert page.locator("#recommended .moved").count()  # where each item stood before is shown, and read aloud
        assert page.locator("#recommended .aloud").first.inner_text().startswith(", ")
        assert page.locator("#history li").count() == 1
        assert "ms" in page.inner_text("#latency")
        page.locator("#recommended button", has_text="Why?").first.click()
        page.wait_for_selector("#why table")
        assert not page.evaluate("[...document.querySelectorAll('input')].filter((one) => !one.labels.length).length")
        page.click("#forget")
        browsers.expect(page.locator("#events")).to_have_text("0")
        browser.close()
    assert not wrong
    assert asked == {address.split("/")[2]}
