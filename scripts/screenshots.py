"""The pictures of the docs: the report of the first run, and the page of a server whose clients adapt.

    make run
    python scripts/screenshots.py [--run runs/first] [--out docs/screens]

They need Chromium (scripts/install-chromium.sh) and the dev extra. Each is a PNG of at most 150 kB.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

import acclimate as ac
from acclimate import store

NAMES = ("chromium", "chromium-browser", "google-chrome")
LARGEST = 150_000


def kept(page: Page, path: Path) -> None:
    """What the window shows, in few colours."""
    image = Image.open(io.BytesIO(page.screenshot(timeout=120_000)))
    small = io.BytesIO()
    image.convert("RGB").quantize(96, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    if small.tell() > LARGEST:
        raise SystemExit(f"{path} would have {small.tell():,} bytes; make the window smaller")
    store.write(path, small.getvalue())
    print(f"wrote {path}: {image.width} x {image.height}, {small.tell():,} bytes")


def report(browser: Browser, run: Path, out: Path) -> None:
    """The first screen of a run's report, and its table with the ranks."""
    if not (run / "report.html").is_file():
        raise SystemExit(f"{run / 'report.html'} does not exist; `make run` writes it")
    page = browser.new_page(viewport={"width": 1100, "height": 860}, color_scheme="light")
    page.goto((run / "report.html").resolve().as_uri())
    page.wait_for_timeout(500)
    kept(page, out / "report.png")
    page.set_viewport_size({"width": 1260, "height": 780})
    page.locator("#results").evaluate("section => section.scrollIntoView()")
    page.wait_for_timeout(500)
    kept(page, out / "report-table.png")


def deployed() -> dict[int, Any]:
    """Four live models, as in the tutorial."""
    data, model = ac.data.Digits(clients=4), ac.models.MLP(hidden=(64,), norm="batch")
    fit = ac.train(ac.Experiment(data=data, model=model, method=ac.methods.FedAvg(work=ac.Work(epochs=2)), rounds=8))
    digits = {c: fit.world.examples.x[fit.world.test[c]] for c in range(4)}
    return {c: (fit.deploy(c, adapter=ac.adapters.Tent()), digits[c]) for c in digits}


@contextlib.contextmanager
def served(lives: list[Any], folder: Path) -> Iterator[tuple[Any, str]]:
    """A server in a thread, and its address."""
    import uvicorn

    from acclimate.serving import Host, Service, checkpoint
    from acclimate.serving.app import Front

    checkpoint.begin(folder, lives, "digits")
    front = Front(Service(Host(lives), folder), "digits")
    server = uvicorn.Server(uvicorn.Config(front.application(), port=0, log_config=None, ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.05)
    yield front, f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


def live(browser: Browser, out: Path) -> None:
    """The page of a server after some requests: the digits of clients 1 and 3 fade, client 2 is frozen."""
    import httpx

    found = deployed()
    with tempfile.TemporaryDirectory() as folder, served([m for m, _ in found.values()], Path(folder)) as (_, url):
        page = browser.new_page(viewport={"width": 1000, "height": 800}, color_scheme="light")
        page.goto(url)
        for n in range(5):
            for client, (_, x) in found.items():
                part = x[16 * n : 16 * n + 16]
                part = (0.35 * part + 0.3 * 255).byte() if client in (1, 3) else part
                one = {"name": "input", "shape": list(part.shape), "datatype": "UINT8", "data": part.tolist()}
                at = f"{url}/v2/models/digits/versions/{client}/infer"
                httpx.post(at, json={"inputs": [one]}, timeout=60).raise_for_status()
            page.wait_for_timeout(2_500)  # so that the page's curves see every request
        page.locator("article[data-client='2']").get_by_role("button", name="Freeze").click()
        page.locator("article.frozen[data-client='2']").wait_for()
        page.evaluate("scrollTo(0, 0)")
        kept(page, out)


def main() -> None:
    """Take both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path("runs/first"))
    parser.add_argument("--out", type=Path, default=Path("docs/screens"))
    args = parser.parse_args()
    chromium = os.environ.get("CHROMIUM") or next((p for n in NAMES if (p := shutil.which(n))), None)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        live(browser, args.out / "live.png")
        report(browser, args.run, args.out)
        browser.close()


if __name__ == "__main__":
    main()
