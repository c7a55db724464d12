"""The Subscriptions page: keep what a watch asks for, see how it is doing, and mend it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.browser.visit import Visit
from tests.harness import Server
from tests.subscriptions.receiver import Got, Receiver, Reply
from tests.subscriptions.scene import Api, configuration, publish

ON_TOP = """button => {
    button.scrollIntoView({block: "end"});
    const {x, y, width, height} = button.getBoundingClientRect();
    return document.elementFromPoint(x + width / 2, y + height / 2) === button;
}"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(configuration("in_memory"), tmp_path_factory.mktemp("kept")) as running:
        yield running


def test_many_come_in_pages(server: Server, visit: Visit) -> None:
    api = Api(server.client)
    names = [f"s{number:03}" for number in range(101)]
    for name in names:
        api.make(name)
    visit.open("subscriptions")
    rows = visit.page.get_by_role("table", name="Subscriptions").get_by_role("row")
    expect(rows).to_have_count(101)  # with the head
    visit.page.get_by_role("button", name="s000").click()
    visit.page.get_by_role("button", name="Show more").click()
    expect(rows).to_have_count(102)
    expect(visit.page.get_by_role("button", name="Show more")).to_have_count(0)
    for name in names:
        api.ok("DELETE", f"/{name}")


def test_keep_see_and_mend(server: Server, visit: Visit) -> None:
    def answer(got: Got) -> Reply:
        (event,) = got.events
        bad = event["type"].endswith("wave") and event["data"]["payload"]["height"] == 2 and not healed
        return Reply(500 if bad else 200, body=b"not today")

    healed = False
    with Receiver(answer) as receiver:
        page = visit.page
        visit.open("live")
        page.get_by_role("button", name="Keep this").click()
        page.get_by_label("Name", exact=True).fill("mine")
        page.get_by_label("Send to").fill(receiver.url)
        page.get_by_role("button", name="Keep", exact=True).click()
        expect(page.get_by_text("mine is active")).to_be_visible()
        expect(page.get_by_text("whsec_")).to_be_visible()
        server.client.request(
            "PATCH",
            "/api/v1/subscriptions/mine",
            b'{"on_failure": "park", "max_attempts": 1}',
            (("Content-Type", "application/json"),),
        )
        publish(server.client, "x", 1, 2, 3)
        receiver.wait_for(3)
        row = page.get_by_role("table", name="Subscriptions").get_by_role("row", name="mine")
        expect(row).to_contain_text("ok")
        expect(row.get_by_role("cell").nth(5)).to_have_text("1")
        row.get_by_role("button", name="mine").click()
        letters = page.get_by_role("table", name="Dead letters")
        expect(letters).to_contain_text("not today")
        expect(page.get_by_role("table", name="Last deliveries").get_by_role("row")).to_have_count(4)
        tried = page.get_by_role("table", name="Last deliveries").get_by_role("row").nth(1)
        tried.locator("summary").click()
        expect(tried.locator("pre")).to_contain_text("webhook-id: msg_")
        page.set_viewport_size({"width": 1280, "height": 500})
        assert page.get_by_role("button", name="Pause").evaluate(ON_TOP), "another button lies over it"
        healed = True
        assert visit.accessibility() == []
        page.get_by_role("button", name="Retry all").click()
        receiver.wait_for(4)
        page.get_by_role("button", name="Send a test").click()
        expect(page.get_by_text("Test sent: the sink answered 200")).to_be_visible()
        expect(page.get_by_role("table", name="Dead letters")).to_have_count(0)
        page.get_by_role("button", name="Pause").click()
        expect(row).to_contain_text("paused")
        page.once("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name="Delete").click()
        expect(page.get_by_text("None yet.")).to_be_visible()
