"""The console in Chromium: how soon it paints, and how it keeps up with a thousand events per second."""

from __future__ import annotations

import json
import threading
from typing import Any

from playwright.sync_api import CDPSession, Page, sync_playwright

from bench import workload
from bench.machine import Bench, Target
from bench.table import Row, single
from tests.browser.chromium import MISSING, find_chromium
from tests.browser.events import configuration, storms

__all__ = ["run"]

RATE = 1000
_FRAMES = """() => {
  window.frameTimes = [];
  let last = performance.now();
  const next = (now) => { window.frameTimes.push(now - last); last = now; requestAnimationFrame(next); };
  requestAnimationFrame(next);
}"""
_PAINT = """() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? null"""


def run(bench: Bench, quick: bool) -> list[Row]:
    """First paint of a fresh visitor, then the Live page while events arrive at an even rate."""
    found = find_chromium()
    if found is None:
        raise RuntimeError(MISSING)
    target = bench.server(configuration(), "console")
    seconds = 3 if quick else 10
    paints: list[float] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        for _ in range(1 if quick else 5):
            page = browser.new_context().new_page()
            page.goto(_address(target), wait_until="load")
            page.wait_for_function(_PAINT)
            paints.append(page.evaluate(_PAINT))
            page.context.close()
        page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        frames, busy, shown = _under_load(bench, target, page, seconds)
        browser.close()
    frames.sort()
    at = f"{shown / seconds:,.0f} events/s"
    return [
        single("console", "first paint of a new visitor", "ms", paints, below=1000),
        single("console", f"median time between frames, {at}", "ms", [frames[len(frames) // 2]]),
        single("console", f"p99 of the time between frames, {at}", "ms", [frames[len(frames) * 99 // 100]], below=100),
        single("console", f"main thread of the page busy, {at}", "%", [100 * busy / seconds]),
    ]


def _under_load(bench: Bench, target: Target, page: Page, seconds: int) -> tuple[list[float], float, int]:
    """Times between frames, seconds that the page's main thread worked, and how many events it counted."""
    page.goto(_address(target))
    view = page.locator("#view-live")
    view.locator(".chooser .field").nth(1).wait_for()
    view.get_by_role("button", name="Watch", exact=True).click()
    view.locator('.stream-state[data-phase="live"]').wait_for()
    bodies = workload.write(
        [
            json.dumps({"event_type": "storm", "identifier": identifier, "payload": payload})
            for identifier, payload in storms(2000)
        ],
        bench.directory / "storms",
    )
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    options: dict[str, Any] = {"publishers": 4, "bodies": bodies, "seconds": seconds, "rate": RATE}
    load = threading.Thread(target=bench.run, args=(target,), kwargs=options)
    before = _worked(session)
    page.evaluate(_FRAMES)
    load.start()
    while load.is_alive():
        page.wait_for_timeout(200)
    frames: list[float] = page.evaluate("window.frameTimes")
    busy = _worked(session) - before
    counted = view.locator(".counts").inner_text()
    return frames, busy, int("".join(character for character in counted.split(" ")[0] if character.isdigit()))


def _worked(session: CDPSession) -> float:
    metrics = session.send("Performance.getMetrics")["metrics"]
    return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))


def _address(target: Target) -> str:
    return f"http://127.0.0.1:{target.port}/#live"
