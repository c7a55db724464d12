"""A real page of another origin: it reads streams, and publishes and removes nothing."""

from __future__ import annotations

import json

from playwright.sync_api import Browser

from tests.browser.events import storm
from tests.harness import Server
from tests.harness.client import body
from tests.harness.web_service import Said, WebService

# what a page can send without asking first; the answer is hidden from it
SEND = """async ([url, body]) => (await fetch(url, {method: "POST", body, mode: "no-cors"})).type"""
READ = """async ([url, body]) => (await fetch(url, {method: "POST", body})).text()"""
PAGE = Said(200, b"<!doctype html><title>elsewhere</title>", (("Content-Type", "text/html"),))


def test_a_page_of_another_origin_reads_streams_and_publishes_nothing(browser: Browser, server: Server) -> None:
    server.client.publish("storm", storm(), "from its publisher")
    publish = json.dumps(body("storm", storm(), payload="from elsewhere"))
    replay = json.dumps(body("storm", storm(), from_id="1"))
    with WebService(lambda _: PAGE) as elsewhere:
        page = browser.new_page()
        try:
            page.goto(elsewhere.url)
            assert page.evaluate(SEND, [f"{server.url}/api/v1/notification", publish]) == "opaque"
            frames = page.evaluate(READ, [f"{server.url}/api/v1/replay", replay])
        finally:
            page.close()
    assert "from its publisher" in frames
    assert "from elsewhere" not in frames
