"""Insight: hidden without tables; with an archive the roll-ups as charts, a map and tables, for everybody."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Open
from tests.browser.events import configuration, storms
from tests.browser.visit import Visit
from tests.harness import Server

pytestmark = pytest.mark.timeout(300)  # Spark takes its time to start

SPARK = 240.0  # seconds
STORMS, FIELDS = 40, 12


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose archive has been counted."""
    archive = {"enabled": True, "path": "archive", "work_path": "work", "interval": "1s"}
    settings = configuration("sqlite", archive=archive, insight={"interval": "1s"})
    with Server(settings, tmp_path_factory.mktemp("server")) as running:
        today = datetime.now(UTC).strftime("%Y%m%d")
        running.client.publish_many("storm", storms(STORMS))
        identifiers = [{"class": "od", "expver": "1", "date": today, "step": number} for number in range(FIELDS)]
        running.client.publish_many("field", [(identifier, {}) for identifier in identifiers])
        deadline = time.monotonic() + SPARK
        while counted(running) != {"storm": STORMS, "field": FIELDS}:
            assert time.monotonic() < deadline, running.client.get("/ready").body.decode() + running.stdout[-3000:]
            time.sleep(0.5)
        yield running


def counted(server: Server) -> dict[str, int]:
    found = server.client.get("/api/v1/insight").json()["event_types"]
    return {each["event_type"]: each["notifications"] for each in found}


def test_without_insight_there_is_no_link(visit_to: Open, tmp_path_factory: pytest.TempPathFactory) -> None:
    with Server(configuration(), tmp_path_factory.mktemp("plain")) as plain:
        visit = visit_to(plain)
        visit.open("live")
        visit.page.wait_for_load_state("networkidle")
        expect(visit.page.locator("nav").get_by_role("link", name="Insight")).to_be_hidden()


def test_rollups_are_seen(visit: Visit) -> None:
    visit.open("live")
    visit.page.locator("nav").get_by_role("link", name="Insight").click()
    view = visit.page.locator("#view-insight")
    view.get_by_label("Event type").select_option("storm")
    expect(view.locator(".tile", has_text="Notifications").first).to_contain_text(str(STORMS))
    expect(view.get_by_role("img", name="Notifications per hour")).to_be_visible()
    expect(view.get_by_role("application")).to_be_visible()
    expect(view.locator(".panel", has_text="Where")).to_contain_text("of one degree")
    view.get_by_label("Field", exact=True).select_option("region")
    values = view.get_by_role("table", name="Values of region").locator("tbody tr")
    expect(values).to_have_count(4)
    numbers = [int(row.locator(".number").inner_text()) for row in values.all()]
    assert (sum(numbers), numbers) == (STORMS, sorted(numbers, reverse=True))
    expect(view.get_by_role("table", name="First and last seen").locator("tbody tr")).to_have_count(4)
    visit.screenshot("insight", full_page=True)


def test_delays_are_seen_where_there_is_a_nominal_time(visit: Visit) -> None:
    view = visit.open("insight")
    view.get_by_label("Event type").select_option("field")
    expect(view.get_by_role("heading", name="How late")).to_be_visible()
    expect(view.get_by_role("img", name="5 %, 50 %, 95 % over time")).to_have_count(2)
    expect(view.get_by_role("heading", name="Where")).to_be_hidden()
    view.get_by_label("Event type").select_option("storm")
    expect(view.get_by_role("heading", name="How late")).to_be_hidden()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 390)])
def test_axe_finds_nothing_and_nothing_sticks_out(visit_to: Open, server: Server, scheme: str, width: int) -> None:
    visit = visit_to(server, color_scheme=scheme, viewport={"width": width, "height": 850}, has_touch=width < 500)
    view = visit.open("insight")
    for name in ("storm", "field"):
        view.get_by_label("Event type").select_option(name)
        expect(view.locator(".ranking")).to_be_visible()
        expect(view.get_by_role("heading", name="Where")).to_be_visible(visible=name == "storm")
        assert visit.accessibility() == [], name
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
    visit.screenshot(f"insight-{scheme}-{width}", full_page=True)


def test_the_keyboard_is_enough(visit: Visit) -> None:
    view = visit.open("insight")
    expect(view.locator(".ranking")).to_be_visible()
    focused = visit.page.locator(":focus")
    for _ in range(30):
        visit.page.keyboard.press("Tab")
        if focused.get_attribute("id") == view.get_by_label("Event type").get_attribute("id"):
            break
    before = view.get_by_label("Event type").input_value()
    visit.page.keyboard.press("ArrowDown" if before == "field" else "ArrowUp")
    expect(view.get_by_label("Event type")).not_to_have_value(before)
    visit.page.keyboard.press("Tab")
    expect(view.get_by_label("Time", exact=True)).to_be_focused()
    visit.page.keyboard.press("ArrowUp")
    expect(view.locator(".tile", has_text="the last day")).to_be_visible()
