"""The page of a server in a real Chromium: clients, buttons, a phone; nothing is fetched from elsewhere."""

import threading
import time

import httpx
import pytest
import uvicorn
from federation import lives, stream

from acclimate.serving import checkpoint
from acclimate.serving.app import Front
from acclimate.serving.host import Host
from acclimate.serving.service import Service
from acclimate.serving.tokens import Tokens, hashed
from chromium import CHROMIUM, MARKS, patient, playwright

pytestmark = MARKS


@pytest.fixture
def front(tmp_path):
    """A server with a token for the administrator, in a thread; four clients, one of which was asked."""
    checkpoint.begin(tmp_path, lives(), "digits")
    front = Front(Service(Host(lives()), tmp_path), "digits", tokens=Tokens(hashed("secret"), {1: hashed("mine")}))
    server = uvicorn.Server(uvicorn.Config(front.application(), port=0, log_config=None, ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    front.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    for part in stream(1, 24).split(8):
        one = {"name": "input", "shape": list(part.shape), "datatype": "UINT8", "data": part.tolist()}
        at = f"{front.url}/v2/models/digits/versions/1/infer"
        reply = httpx.post(at, json={"inputs": [one]}, headers={"Authorization": "Bearer mine"}, timeout=30)
        assert reply.status_code == 200
    yield front
    server.should_exit = True
    thread.join()


def test_the_page_shows_clients_and_its_buttons_act(front):
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM)
        page = patient(browser.new_page(viewport={"width": 360, "height": 740}))
        asked, errors = [], []
        page.on("request", lambda r: asked.append(r.url))
        page.on("pageerror", lambda e: errors.append(str(e)))
        page.on("dialog", lambda d: d.accept("secret" if d.type == "prompt" else None))
        page.goto(front.url)
        card = page.locator("article[data-client='1']")
        card.wait_for()
        assert page.locator("article").count() == 4
        text = card.inner_text()
        assert "24" in text and "entropy of answers" in text and "adapting" in text
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 360, "the page is wider than a phone"
        card.get_by_role("button", name="Freeze").click()
        page.locator("article.frozen[data-client='1']").wait_for()
        assert front.host.shells[1].frozen
        card.locator("select").select_option("1")
        card.get_by_role("button", name="Restore").click()
        page.get_by_text("restore step 1").wait_for()
        assert front.host.live(1).step == 4
        page.get_by_role("button", name="Roll back all").click()
        page.get_by_text("restore step 3").wait_for()  # the one before, of the only client that has two
        assert [int(front.host.live(c).step) for c in range(4)] == [0, 5, 0, 0]
        page.get_by_role("button", name="Reset all").click()
        page.locator("article[data-client='0'] li", has_text="reset").wait_for()
        assert [int(front.host.live(c).step) for c in range(4)] == [1, 6, 1, 1]
        assert all(url.startswith((front.url, "data:")) for url in asked) and errors == []
        browser.close()


def test_the_page_asks_for_a_token_once_and_leaves_the_keyboard_where_it_is(front):
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM)
        page = patient(browser.new_page(viewport={"width": 390, "height": 740}))
        asked, replies = [], [None, "secret"]

        def answer(dialog):
            asked.append(dialog.type)
            typed = replies[len(asked) - 1]
            dialog.dismiss() if typed is None else dialog.accept(typed)

        page.on("dialog", answer)
        page.goto(front.url)
        page.get_by_role("button", name="Enter the token").wait_for()
        with page.expect_response("**/clients"):  # it goes on asking the server, and not its reader
            pass
        assert asked == ["prompt"] and page.locator("article").count() == 0
        page.get_by_role("button", name="Enter the token").click()
        page.locator("article[data-client='1']").wait_for()
        assert not page.get_by_role("button", name="Enter the token").is_visible()
        page.locator("article[data-client='2']").get_by_role("button", name="Reset").focus()
        page.evaluate("document.activeElement.closest('article').dataset.old = 1")
        page.locator("article[data-old]").wait_for(state="detached")  # the page has drawn all anew
        held = page.evaluate(
            "[document.activeElement.textContent, document.activeElement.closest('article').dataset.client]"
        )
        assert held == ["Reset", "2"]
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        browser.close()
