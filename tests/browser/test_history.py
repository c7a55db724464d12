"""History: replay the past, see when it was, choose a part of it, take it home."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from playwright.sync_api import Locator, expect

from tests.browser.conftest import Open
from tests.browser.events import configuration, ring, storm, storms
from tests.browser.visit import Visit
from tests.harness import Server
from tests.harness.client import JSON

EARLY, LATE = 30, 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a past: some storms, a pause, and some more."""
    with Server(configuration(), tmp_path_factory.mktemp("server")) as running:
        running.client.publish_many("storm", storms(EARLY))
        time.sleep(2.2)
        running.client.publish_many("storm", storms(LATE, seed=2))
        yield running


def replay(view: Locator) -> None:
    view.get_by_role("button", name="Replay", exact=True).click()
    expect(view.locator(".result .notice")).to_have_attribute("data-kind", "good")


def test_everything_from_the_beginning_and_where_it_came_from(visit: Visit) -> None:
    view = visit.open("history")
    expect(view.locator(".cards")).to_contain_text("Choose where to start")
    replay(view)
    expect(view.locator(".result .notice")).to_have_text("50 notifications. All of it from the log.")
    expect(view.locator(".card")).to_have_count(EARLY + LATE)
    expect(view.locator(".card").first.locator(".sequence")).to_have_text("#50")
    visit.screenshot("history")


def test_from_a_sequence_with_a_filter(visit: Visit) -> None:
    view = visit.open("history")
    view.locator(".chip", has_text="Sequence").click()
    view.get_by_label("Start with sequence").fill("41")
    view.locator(".chip", has_text="north").click()
    replay(view)
    # the second lot begins with sequence 31 and goes round the four regions, north first
    expect(view.locator(".card .sequence")).to_have_text(["#47", "#43"])


def test_from_a_date_to_a_date(visit: Visit) -> None:
    view = visit.open("history")
    view.locator(".chip", has_text="Date").click()
    view.get_by_label("Start: day").fill("2000-01-01")
    view.get_by_label("End: day").fill("2001-01-01")
    view.get_by_role("button", name="Replay", exact=True).click()
    expect(view.locator(".result .notice")).to_contain_text("No notification matches")


def test_a_part_of_the_time_is_chosen_with_the_pointer(visit: Visit) -> None:
    view = visit.open("history")
    replay(view)
    bars = view.locator(".histogram svg .bars rect")
    expect(bars.nth(1)).to_be_attached()
    boxes = [box for box in (bar.bounding_box() for bar in bars.all()) if box is not None]
    last = max(boxes, key=lambda box: box["x"])
    picture = view.locator(".histogram svg").bounding_box()
    assert picture is not None
    visit.page.mouse.move(last["x"] - 2 * last["width"] / 2, picture["y"] + 20)
    visit.page.mouse.down()
    visit.page.mouse.move(picture["x"] + picture["width"] - 2, picture["y"] + 20, steps=4)
    visit.page.mouse.up()
    expect(view.locator(".counts")).to_contain_text("20 match")
    expect(view.locator(".card").last.locator(".sequence")).to_have_text("#31")
    view.get_by_role("button", name="Replay only this").click()
    expect(view.locator(".result .notice")).to_have_text("20 notifications. All of it from the log.")
    expect(view.locator(".counts")).to_have_text("20 notifications")


def test_a_part_of_the_time_is_chosen_with_the_keyboard(visit: Visit) -> None:
    view = visit.open("history")
    replay(view)
    slider = view.get_by_label("First bar of the chosen time")
    expect(slider).not_to_have_attribute("max", "1")
    slider.focus()
    slider.press("End")
    expect(view.locator(".counts")).to_contain_text("match")
    view.get_by_role("button", name="Show all").click()
    expect(view.locator(".counts")).to_have_text("50 notifications")


@pytest.mark.parametrize("form", ["NDJSON", "Arrow", "Parquet"])
def test_download(visit: Visit, form: str) -> None:
    view = visit.open("history")
    with visit.page.expect_download() as waiting:
        view.get_by_role("button", name=form).click()
    saved = Path(waiting.value.path())
    assert (
        waiting.value.suggested_filename
        == f"storm.{ {'NDJSON': 'ndjson', 'Arrow': 'arrows', 'Parquet': 'parquet'}[form] }"
    )
    assert sequences(form, saved.read_bytes()) == list(range(1, EARLY + LATE + 1))
    expect(view.locator(".result .notice")).to_have_text(re.compile(rf"^Downloaded .* as {form}\.$"))


def sequences(form: str, content: bytes) -> list[int]:
    if form == "NDJSON":
        *lines, last = [json.loads(line) for line in content.splitlines()]
        assert last["type"] == "replay_completed"
        return [line["sequence"] for line in lines]
    table = pa.ipc.open_stream(content).read_all() if form == "Arrow" else pq.read_table(io.BytesIO(content))
    found: list[int] = table.column("sequence").to_pylist()
    return found


def test_a_refusal_stands_at_its_field(visit: Visit) -> None:
    visit.refusals_expected = True
    view = visit.open("history")
    view.get_by_label("run_time").fill("later")
    view.get_by_role("button", name="Replay", exact=True).click()
    expect(view.locator(".field.refused")).to_contain_text("later")


def test_a_time_whose_notifications_the_page_has_dropped(visit_to: Open, tmp_path: Path) -> None:
    with Server(configuration(), tmp_path) as server:
        server.client.publish("storm", storm(region="west"), {"name": "Anna"})
        stored = time.time()
        while time.time() < stored + 1:  # bars are a second wide: the first notification needs one of its own
            time.sleep(0.05)
        note = {"event_type": "storm", "identifier": {**storm(), "polygon": ring(0, 0, 1)}, "payload": None}
        for _ in range(2):
            server.client.answer("notifications", [note] * 10_000, JSON)
        view = visit_to(server).open("history")
        replay(view)
        slider = view.get_by_label("Last bar of the chosen time")
        expect(slider).not_to_have_attribute("max", "1")
        first = view.locator(".histogram svg .bars rect").first
        box, picture = first.bounding_box(), view.locator(".histogram svg").bounding_box()
        assert box is not None
        assert picture is not None
        view.page.mouse.click(box["x"] + box["width"] / 2, picture["y"] + picture["height"] / 2)
        expect(view.locator(".cards")).to_contain_text("The page keeps only the newest 20,000 notifications")
        view.get_by_role("button", name="Replay only this").click()
        expect(view.locator(".card")).to_contain_text("Anna")


def test_times_on_one_axis_have_all_a_date_or_none(visit: Visit) -> None:
    visit.open("history")
    words = visit.page.evaluate(
        """async () => {
          const { clocks } = await import("./static/console/numbers.js");
          const now = new Date().setUTCHours(12, 0, 0, 0);
          return [clocks([now, now]), clocks([now - 86_400_000, now])].map((each) => each.map((word) => word.length));
        }"""
    )
    assert words == [[8, 8], [19, 19]]
