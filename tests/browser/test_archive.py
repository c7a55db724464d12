"""With an archive: History says what came from where, Operate how it is doing, Insight shows what was counted.

Spark takes long to start, so that all views that need an archive are looked at here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Open
from tests.browser.events import STORM, configuration, storms
from tests.browser.visit import Visit
from tests.harness import Server

pytestmark = pytest.mark.long  # a server with a Spark of its own

SPARK = 300.0  # seconds
STORMS, KEPT = 40, 10
FIELDS = 12


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose log has let go of most storms, because they are archived, and whose archive has been counted."""
    archive = {"enabled": True, "path": "archive", "work_path": "work", "interval": "1s"}
    settings = configuration("sqlite", archive=archive, insight={"interval": "1s"})
    kept = {**STORM, "storage_policy": {"max_messages": KEPT}}
    settings["notification_schema"] = {**settings["notification_schema"], "storm": kept}
    with Server(settings, tmp_path_factory.mktemp("server")) as running:
        today = datetime.now(UTC).strftime("%Y%m%d")
        running.client.publish_many("storm", storms(STORMS))
        identifiers = [{"class": "od", "expver": "1", "date": today, "step": number} for number in range(FIELDS)]
        running.client.publish_many("field", [(identifier, {}) for identifier in identifiers])
        deadline = time.monotonic() + SPARK
        while counted(running) != {"storm": STORMS, "field": FIELDS} or first_in_log(running) <= STORMS - KEPT:
            assert time.monotonic() < deadline, running.client.get("/ready").body.decode() + running.stdout[-3000:]
            time.sleep(0.2)
        yield running


def counted(server: Server) -> dict[str, int]:
    found = server.client.get("/api/v1/insight").json()["event_types"]
    return {each["event_type"]: each["notifications"] for each in found}


def first_in_log(server: Server) -> int:
    streams: list[dict[str, Any]] = server.client.get("/api/v1/streams").json()["streams"]
    return int(next(each["first"] for each in streams if each["stream"] == "storm"))


def test_history_says_what_came_from_where(visit: Visit) -> None:
    view = visit.open("history")
    view.get_by_role("button", name="Replay", exact=True).click()
    expect(view.locator(".result .notice")).to_have_text(
        f"{STORMS} notifications. {STORMS - KEPT} from the archive, {KEPT} from the log.", timeout=120_000
    )
    expect(view.locator(".card")).to_have_count(STORMS)
    visit.screenshot("history-archive")


def test_operate_says_how_the_archive_is_doing(visit: Visit) -> None:
    view = visit.open("operate")
    expect(view.locator(".tile", has_text="Archive")).to_contain_text("running")
    storm = view.get_by_role("table", name="Streams").get_by_role("row").filter(has_text="storm")
    expect(storm).to_contain_text(f"to {STORMS}, up to date")
    tool = view.locator(".removal")
    tool.get_by_label("Of").select_option("storm")
    tool.get_by_role("button", name="Preview").click()
    expect(tool.locator(".notice")).to_contain_text(
        f"This would remove {KEPT} notifications of storm, sequences {STORMS - KEPT + 1} to {STORMS}, "
        f"and up to {STORMS - KEPT} more of the archive."
    )
    visit.screenshot("operate-archive", full_page=True)


def test_operate_shows_what_the_last_audit_found(visit: Visit, server: Server) -> None:
    view = visit.open("operate")
    expect(view.locator(".tile", has_text="Archive")).to_be_visible()
    audit = view.get_by_role("region", name="Audit")
    expect(audit).to_have_count(0)
    sound = {"verdict": "clean", "defects": 0, "acknowledged": 0, "lag": 0}
    holes = [{"kind": "hole", "where": "log", "first": 3, "last": 5}]
    torn = {"verdict": "defects", "defects": 3, "acknowledged": STORMS, "lag": 0, "first_defects": holes}
    verdict = {
        "at": "2026-01-02T03:04:05Z",
        "verdict": "defects",
        "seconds": 7.2,
        "streams": {"storm": {"event_type": "storm", **torn}, "buoys": {"event_type": "buoys", **sound}},
    }
    folder = server.directory / "archive" / "_audit"
    folder.mkdir()
    (folder / "draft").write_text(json.dumps(verdict))
    (folder / "draft").replace(folder / "verdict.json")
    expect(audit).to_contain_text("Defects were found. Audited at 2026-01-02 03:04:05 UTC in 7 seconds.")
    storm = audit.get_by_role("row").filter(has_text="storm")
    expect(storm.get_by_role("cell")).to_have_text(["defects", "3", "40", "0", "hole in log: sequences 3 to 5"])
    expect(audit.get_by_role("row").filter(has_text="buoys").get_by_role("cell").first).to_have_text("clean")
    expect(view.locator(".tile", has_text="Audit")).to_contain_text("defects")
    assert visit.accessibility() == []
    visit.screenshot("operate-audit", full_page=True)


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
    expect(view.locator(".map-legend")).to_contain_text("per square degree")
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
    expect(view.get_by_role("img", name="earliest 5 %, median, latest 5 % over time")).to_have_count(2)
    expect(view.locator(".plot .upright").first).to_be_visible()
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
    first = view.get_by_label("Event type").locator("option").first.get_attribute("value")
    visit.page.keyboard.press("ArrowDown" if before == first else "ArrowUp")
    expect(view.get_by_label("Event type")).not_to_have_value(before)
    visit.page.keyboard.press("Tab")
    expect(view.get_by_label("Time", exact=True)).to_be_focused()
    visit.page.keyboard.press("ArrowUp")
    expect(view.locator(".tile", has_text="the last day")).to_be_visible()
