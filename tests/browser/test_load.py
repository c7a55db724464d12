"""A thousand events per second: all of them are counted, and the page can be used meanwhile in bounded memory.

How quick it stays is measured by `python -m bench console`.
"""

from __future__ import annotations

import http.client
import json
import threading
import time

from playwright.sync_api import expect

from tests.browser.events import storms
from tests.browser.visit import Visit
from tests.harness import Server
from tests.harness.patience import PATIENCE

RATE = 1000
SECONDS = 5
PUBLISHERS = 2


def publish(server: Server, number: int) -> None:
    """Publish at an even pace over one connection."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=PATIENCE)
    started = time.monotonic()
    for place, (identifier, payload) in enumerate(storms(number)):
        body = json.dumps({"event_type": "storm", "identifier": identifier, "payload": payload})
        connection.request("POST", "/api/v1/notification", body)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        answer.read()
        time.sleep(max(0.0, started + place * PUBLISHERS / RATE - time.monotonic()))
    connection.close()


def test_a_thousand_per_second_leave_the_page_usable(visit: Visit, server: Server) -> None:
    view = visit.open("live")
    view.get_by_role("button", name="Watch", exact=True).click()
    expect(view.locator(".stream-state")).to_have_attribute("data-phase", "live")
    publishers = [
        threading.Thread(target=publish, args=(server, RATE * SECONDS // PUBLISHERS)) for _ in range(PUBLISHERS)
    ]
    for publisher in publishers:
        publisher.start()
    visit.page.wait_for_timeout(1000)
    search = view.get_by_label("Search notifications")
    search.fill('"severity":"7"')  # somebody works with it meanwhile
    expect(view.locator(".counts")).to_contain_text("match")
    expect(view.locator(".card", has_not_text="severity 7")).to_have_count(0)
    expect(view.locator(".card").first).to_be_visible()
    visit.page.wait_for_timeout(1000)
    search.fill("")
    visit.screenshot("load")
    for publisher in publishers:
        publisher.join()
    expect(view.locator(".counts")).to_contain_text(f"{RATE * SECONDS:,} notifications")
    assert view.locator(".card").count() <= 60
