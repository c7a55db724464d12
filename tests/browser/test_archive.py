"""With an archive: History says what came from where, Operate how the archive is doing and what an audit found."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.events import STORM, configuration, storms
from tests.browser.visit import Visit
from tests.harness import Server

pytestmark = pytest.mark.timeout(300)  # Spark takes its time to start

SPARK = 200.0  # seconds
KEPT = 10
PUBLISHED = 40


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose log has let go of most storms, because they are archived."""
    archive = {"enabled": True, "path": "archive", "work_path": "work", "interval": "1s"}
    settings = configuration("sqlite", archive=archive)
    kept = {**STORM, "storage_policy": {"max_messages": KEPT}}
    settings["notification_schema"] = {**settings["notification_schema"], "storm": kept}
    with Server(settings, tmp_path_factory.mktemp("server")) as running:
        running.client.publish_many("storm", storms(PUBLISHED))
        deadline = time.monotonic() + SPARK
        while first_in_log(running) <= PUBLISHED - KEPT:
            assert time.monotonic() < deadline, running.client.get("/ready").body.decode()
            time.sleep(0.2)
        yield running


def first_in_log(server: Server) -> int:
    streams: list[dict[str, Any]] = server.client.get("/api/v1/streams").json()["streams"]
    return int(next(each["first"] for each in streams if each["stream"] == "storm"))


def test_history_says_what_came_from_where(visit: Visit) -> None:
    view = visit.open("history")
    view.get_by_role("button", name="Replay", exact=True).click()
    expect(view.locator(".result .notice")).to_have_text(
        f"{PUBLISHED} notifications. {PUBLISHED - KEPT} from the archive, {KEPT} from the log.", timeout=120_000
    )
    expect(view.locator(".card")).to_have_count(PUBLISHED)
    visit.screenshot("history-archive")


def test_operate_says_how_the_archive_is_doing(visit: Visit) -> None:
    view = visit.open("operate")
    expect(view.locator(".tile", has_text="Archive")).to_contain_text("running")
    storm = view.get_by_role("table", name="Streams").get_by_role("row").filter(has_text="storm")
    expect(storm).to_contain_text(f"to {PUBLISHED}, up to date")
    tool = view.locator(".removal")
    tool.get_by_label("Of").select_option("storm")
    tool.get_by_role("button", name="See what it would touch").click()
    expect(tool.locator(".notice")).to_contain_text(
        f"This would remove {KEPT} notifications of storm, sequences {PUBLISHED - KEPT + 1} to {PUBLISHED}, "
        f"and up to {PUBLISHED - KEPT} more of the archive."
    )
    visit.screenshot("operate-archive", full_page=True)


def test_operate_shows_what_the_last_audit_found(visit: Visit, server: Server) -> None:
    view = visit.open("operate")
    expect(view.locator(".tile", has_text="Archive")).to_be_visible()
    audit = view.get_by_role("region", name="Audit")
    expect(audit).to_have_count(0)
    sound = {"verdict": "clean", "defects": 0, "acknowledged": 0, "lag": 0}
    holes = [{"kind": "hole", "where": "log", "first": 3, "last": 5}]
    torn = {"verdict": "defects", "defects": 3, "acknowledged": PUBLISHED, "lag": 0, "first_defects": holes}
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
    expect(audit).to_contain_text("Something is wrong. Looked at 2026-01-02 03:04:05 UTC, for 7 seconds.")
    storm = audit.get_by_role("row").filter(has_text="storm")
    expect(storm.get_by_role("cell")).to_have_text(["defects", "3", "40", "0", "hole in log: sequences 3 to 5"])
    expect(audit.get_by_role("row").filter(has_text="buoys").get_by_role("cell").first).to_have_text("clean")
    expect(view.locator(".tile", has_text="Audit")).to_contain_text("defects")
    assert visit.accessibility() == []
    visit.screenshot("operate-audit", full_page=True)
