"""Operate: ranges, rates, retention, watchers and errors; removal with a dry run and a typed word."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.conftest import Open
from tests.browser.events import STORM, configuration, storm, storms
from tests.browser.visit import Visit
from tests.harness import Server

KEPT = {**STORM, "storage_policy": {"retention_time": "7d", "max_messages": 500}}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server of its own for each test, for much of what is seen here is about all of it."""
    settings = configuration("sqlite")
    settings["notification_schema"] = {**settings["notification_schema"], "storm": KEPT}
    with Server(settings, tmp_path) as running:
        running.client.publish_many("storm", storms(12))
        yield running


def row(view: Locator, name: str) -> Locator:
    return view.get_by_role("table", name="Streams").get_by_role("row").filter(has_text=name)


def test_streams_watchers_and_errors_are_seen(visit: Visit, server: Server) -> None:
    with server.client.watch("storm", {"region": "north", "run_time": "1200", "severity": {"gte": 1}}) as watcher:
        watcher.next()
        assert server.client.notify("storm", storm(severity=9)).status == 400
        view = visit.open("operate")
        expect(row(view, "storm")).to_contain_text("1 to 12")
        expect(row(view, "storm")).to_contain_text("7 days, 500 notifications")
        expect(row(view, "storm")).to_contain_text("1 live")
        expect(row(view, "buoys")).to_contain_text("none yet")
        expect(row(view, "buoys")).to_contain_text("everything")
        refused = view.get_by_text("1 request refused for faults of their own")
        expect(view.get_by_role("table", name="Recent warnings and errors")).not_to_contain_text(
            "outside allowed range"
        )
        refused.click()
        refusals = view.get_by_role("table", name="Refused requests")
        expect(refusals).to_contain_text("outside allowed range [1, 7]")
        expect(view.locator(".tile", has_text="Log")).to_contain_text("sqlite")
        server.client.publish_many("storm", storms(20, seed=2))
        expect(row(view, "storm")).to_contain_text("1 to 32")
        expect(row(view, "storm").locator(".rate")).not_to_have_text("0/s")
        visit.screenshot("operate", full_page=True)


def test_the_same_warning_again_and_again_is_one_line(visit: Visit) -> None:
    visit.open("operate")
    held, lost = {"event": "event_loop.held"}, {"event": "backend.lost"}
    asked = {"event": "event_loop.held", "request_id": "1"}
    rows = visit.page.evaluate(
        """async (records) => (await import("./static/console/views/operate.js")).inARow(records)
             .map(([record, times]) => [record.event, times])""",
        [held, held, held, lost, held, asked, asked],
    )
    assert rows == [
        ["event_loop.held", 3],
        ["backend.lost", 1],
        ["event_loop.held", 1],
        ["event_loop.held", 1],
        ["event_loop.held", 1],
    ]


def test_a_stream_is_removed_after_a_dry_run_and_a_typed_word(visit: Visit, server: Server) -> None:
    view = visit.open("operate")
    tool = view.locator(".removal")
    tool.get_by_label("Of").select_option("storm")
    tool.get_by_role("button", name="Preview").click()
    expect(tool.locator(".notice")).to_contain_text("This would remove 12 notifications of storm, sequences 1 to 12.")
    remove = tool.get_by_role("button", name="Remove permanently")
    expect(remove).to_be_disabled()
    assert len(read(server)) == 12, "the dry run changed nothing"
    tool.get_by_label("Type storm to confirm").fill("strom")
    expect(remove).to_be_disabled()
    tool.get_by_label("Type storm to confirm").fill("storm")
    remove.click()
    expect(tool.locator(".notice")).to_contain_text("12 notifications removed")
    assert read(server) == []
    expect(row(view, "storm")).to_contain_text("none left, next is 13")


def test_one_notification_is_removed(visit: Visit, server: Server) -> None:
    view = visit.open("operate")
    tool = view.locator(".removal")
    tool.get_by_label("Of").select_option("storm")
    tool.get_by_label("only one notification").check()
    tool.get_by_label("Sequence").fill("99")
    tool.get_by_role("button", name="Preview").click()
    expect(tool.locator(".notice")).to_have_text("storm@99 does not exist: nothing would be removed.")
    expect(tool.get_by_role("button", name="Remove permanently")).to_be_hidden()
    tool.get_by_label("Sequence").fill("5")
    tool.get_by_role("button", name="Preview").click()
    expect(tool.locator(".notice")).to_contain_text("This would remove 1 notification, storm@5")
    expect(tool.locator(".notice")).to_contain_text('"name":"storm 5"')
    tool.get_by_label("Type storm@5 to confirm").fill("storm@5")
    tool.get_by_role("button", name="Remove permanently").click()
    expect(tool.locator(".notice")).to_contain_text("deleted")
    assert [note["sequence"] for note in read(server)] == [1, 2, 3, 4, *range(6, 13)]


def test_everything_is_removed(visit: Visit, server: Server) -> None:
    server.client.publish("buoys", {"network": "north", "point_cloud": [[54, 7]]})
    view = visit.open("operate")
    tool = view.locator(".removal")
    tool.get_by_label("Of").select_option("every stream")
    tool.get_by_role("button", name="Preview").click()
    expect(tool.locator(".notice")).to_contain_text("This would remove 13 notifications of 3 streams.")
    tool.get_by_label("Type everything to confirm").fill("everything")
    tool.get_by_role("button", name="Remove permanently").click()
    expect(tool.locator(".notice")).to_contain_text("13 notifications removed")
    assert read(server) == []


def test_pages_without_a_server_side_are_not_there(visit: Visit) -> None:
    view = visit.open("operate")
    expect(row(view, "storm")).to_be_visible()
    links = visit.page.get_by_role("navigation").get_by_role("link").all_inner_texts()
    assert links == ["Live", "History", "Subscriptions", "Publish", "Operate", "API", "Guide"]
    for name in ("Archive", "Audit", "Overdue"):
        assert visit.page.locator(".tile", has_text=name).count() == 0
    for name in ("Audit", "Lateness", "Quarantine"):
        expect(visit.page.get_by_role("region", name=name)).to_have_count(0)


def test_a_server_that_is_away_is_seen(visit_to: Open, server: Server) -> None:
    visit = visit_to(server)
    visit.refusals_expected = True
    view = visit.open("operate")
    expect(row(view, "storm")).to_be_visible()
    server.stop()
    expect(view.locator(".notice").first).to_have_text(re.compile("The server cannot be reached"))


def read(server: Server) -> list[dict[str, object]]:
    every = {"region": {"in": ["north", "south", "east", "west"]}, "run_time": "1200", "severity": {"gte": 1}}
    return server.client.replay("storm", every).notifications
