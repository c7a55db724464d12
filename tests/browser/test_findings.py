"""Operate shows what is overdue and what was refused; Live and History say what a filter means and would bring."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, expect

from aviso_server.model.lateness import DAY, LATENESS_FOLDER, Learned, Rhythm, encode, file_name
from aviso_server.model.quarantine import QUARANTINE_FOLDER as QUARANTINE
from aviso_server.spark.load.load_report import RefusedRow, Summary, write_quarantine
from tests.browser.conftest import Open
from tests.browser.events import configuration, storm, storms
from tests.browser.visit import Visit
from tests.harness import Server

STORMS = 12
TIDE = {
    "topic": {"base": "tides", "key_order": ["port", "date"]},
    "identifier": {
        "port": {"type": "StringHandler", "required": False},
        "date": {"type": "DateHandler", "required": False},
    },
    "lateness": {"enabled": True, "tolerance": "1s"},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that expects tides, with a few storms in its log."""
    settings = configuration("sqlite", archive={"path": "archive", "work_path": "work"}, lateness={"path": "lateness"})
    settings["notification_schema"] = {**settings["notification_schema"], "tide": TIDE}
    with Server(settings, tmp_path_factory.mktemp("server")) as running:
        running.client.publish_many("storm", storms(STORMS))
        yield running


def expect_tide(server: Server, port: str, seconds: int) -> int:
    """Teach the server that the tide of a port comes every day; when today's is overdue."""
    today, now = divmod(int(time.time()), DAY)
    moment = now + seconds
    rhythm = Rhythm(
        values=(port,), weekdays=0b1111111, earliest=moment, expected=moment, overdue=moment, spread=0, seen=40
    )
    learned = Learned(
        event_type="tide", learned_at=today * DAY + now, until=0, by=("port",), date="date", rhythms=(rhythm,)
    )
    folder = server.directory / "archive" / LATENESS_FOLDER
    folder.mkdir(parents=True)
    (folder / "draft").write_bytes(encode(learned))
    (folder / "draft").replace(folder / file_name("tide"))
    return today * DAY + moment


def put_aside(server: Server) -> None:
    """Rows of a load that were refused."""
    reasons = [
        *[("severity", f"Field 'severity' value {value} is outside allowed range [1, 7]") for value in (9, 8, 0)],
        ("region", "Required field 'region' is missing for notify operation"),
    ]
    rows = [
        RefusedRow("rows.ndjson", line, "{}", field, reason, "INVALID_NOTIFICATION_REQUEST")
        for line, (field, reason) in enumerate(reasons, 1)
    ]
    folder = server.directory / "work" / QUARANTINE
    write_quarantine(folder / "refused-0123456789abcdef.parquet", "storm", 1_767_323_045 * 10**9, [], Summary(), rows)


def test_operate_shows_what_is_overdue_and_what_was_refused(visit: Visit, server: Server) -> None:
    view = visit.open("operate")
    lateness, quarantine = (view.get_by_role("region", name=name) for name in ("Lateness", "Quarantine"))
    expect(lateness).to_contain_text("The schedule has not been learned yet.")
    expect(lateness).to_contain_text("Nothing is overdue.")
    expect(quarantine).to_have_count(0)
    put_aside(server)
    overdue_at = expect_tide(server, "oslo", seconds=6)
    cells = quarantine.get_by_role("row").filter(has_text="storm").get_by_role("cell")
    expect(cells.nth(0)).to_have_text("2026-01-02 03:04:05")
    expect(cells.nth(1)).to_have_text("4")
    expect(cells.nth(2).get_by_role("listitem")).to_have_text(
        [
            "3 × Field 'severity' value … is outside allowed range [1, 7]",
            "1 × Required field 'region' is missing for notify operation",
        ]
    )
    expect(lateness).to_contain_text("1 combination expected.")
    late = lateness.get_by_role("row").filter(has_text="port=oslo")
    expect(late).to_be_visible()
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(overdue_at))
    assert [each.get_attribute("datetime") for each in late.locator("time").all()] == [moment, moment]
    expect(view.locator(".tile", has_text="Overdue")).to_contain_text("1")
    visit.screenshot("operate-findings", full_page=True)


@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 390)])
def test_axe_finds_nothing_in_them(visit_to: Open, server: Server, scheme: str, width: int) -> None:
    visit = visit_to(server, color_scheme=scheme, viewport={"width": width, "height": 850}, has_touch=width < 500)
    view = visit.open("operate")
    expect(view.get_by_role("region", name="Quarantine")).to_be_visible()
    assert visit.accessibility() == []
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
    visit.screenshot(f"operate-findings-{scheme}-{width}", full_page=True)


def chosen(view: Locator) -> Locator:
    """Ask for storms in the north, and try that on the past."""
    view.locator(".chip", has_text="north").click()
    view.get_by_role("button", name="Back-test").click()
    return view.get_by_role("region", name="Back-test")


@pytest.mark.parametrize("page", ["live", "history"])
def test_a_filter_is_tried_on_the_past(visit: Visit, page: str) -> None:
    view = visit.open(page)
    expect(view.get_by_role("region", name="Back-test")).to_have_count(0)
    panel = chosen(view)
    # every fourth storm is in the north
    expect(panel.locator(".notice")).to_have_text(
        f"{STORMS // 4} notifications of the last 7 days would have matched.Counted in the log."
    )
    expect(panel.locator(".meaning")).to_contain_text("Notifications of event type 'storm' where region is")
    expect(panel.get_by_role("img", name="Notifications per hour")).to_be_visible()
    panel.get_by_label("Time to try it on").select_option("last 30 days")
    expect(panel.locator(".notice")).to_contain_text("of the last 30 days")
    expect(panel.get_by_role("img", name="Notifications per day")).to_be_visible()
    visit.screenshot(f"back-test-{page}")
    panel.get_by_role("button", name="Close").press("Enter")
    expect(view.get_by_role("button", name="Back-test")).to_be_focused()
    expect(panel).to_have_count(0)


def test_a_filter_that_lets_nothing_through(visit: Visit) -> None:
    view = visit.open("live")
    view.get_by_label("run_time").fill("0600")
    panel = chosen(view)
    expect(panel.locator(".notice")).to_have_text("No notification of the last 7 days would have matched.")
    expect(panel.get_by_role("img")).to_have_count(0)


def test_a_refused_filter_is_refused_at_its_field(visit: Visit) -> None:
    visit.refusals_expected = True
    view = visit.open("live")
    view.get_by_label("run_time").fill("later")
    chosen(view)
    expect(view.locator(".field.refused")).to_contain_text("later")
    expect(view.get_by_role("region", name="Back-test")).to_have_count(0)
    expect(view.get_by_label("run_time")).to_be_focused()


def test_a_card_says_why_it_is_there(visit: Visit, server: Server) -> None:
    view = visit.open("live")
    view.get_by_label("severity: comparison").select_option("at least")
    view.get_by_role("button", name="Watch", exact=True).click()
    expect(view.locator(".stream-state")).to_have_attribute("data-phase", "live")
    server.client.publish("storm", storm(severity=5), {"name": "Mia"})
    card = view.locator(".card")
    expect(card).to_have_count(1)
    # what is filled in now is not what brought it
    view.get_by_label("run_time").fill("0600")
    why = card.get_by_role("button", name="Why is this here?")
    why.press("Enter")
    clauses = card.get_by_role("listitem")
    expect(clauses.filter(has_text="severity")).to_contain_text("it has 5")
    expect(card.locator(".why")).to_contain_text("is kept: all of it is true.")
    assert {each.get_attribute("data-passed") for each in clauses.all()} == {"true"}
    expect(card).not_to_contain_text("0600")
    visit.screenshot("why-is-this-here")
    why.press("Enter")
    expect(card.locator(".why")).to_be_hidden()
    expect(why).to_have_attribute("aria-expanded", "false")
