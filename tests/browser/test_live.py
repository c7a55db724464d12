"""Live: watch, see it come, narrow it, pause it, draw an area, lose the server and come back."""

from __future__ import annotations

import re
import shutil
import socket
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.conftest import Open
from tests.browser.events import configuration, ring, storm, storms
from tests.browser.visit import Visit
from tests.harness import Server
from tests.harness.broker import wait_until

README_PICTURE = Path(__file__).parents[2] / "docs" / "images" / "console.png"


def watch(view: Locator) -> None:
    view.get_by_role("button", name="Watch", exact=True).click()
    expect(view.locator(".stream-state")).to_have_attribute("data-phase", "live")


def sequences(view: Locator) -> list[int]:
    return [int(text.lstrip("#")) for text in view.locator(".card .sequence").all_inner_texts()]


def coloured(view: Locator) -> int:
    """How many pixels of the upper canvas are painted: what came, and what is asked for."""
    return int(
        view.locator(".map canvas")
        .nth(1)
        .evaluate(
            "canvas => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height)"
            ".data.filter((value, place) => place % 4 === 3 && value > 0).length"
        )
    )


def breadth(view: Locator) -> float:
    """How much of the map lies between the leftmost and the rightmost of what is painted on it, as a share."""
    return float(
        view.locator(".map canvas")
        .nth(1)
        .evaluate(
            """canvas => {
              const { width, height } = canvas;
              const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
              let [low, high] = [width, 0];
              for (let place = 3; place < data.length; place += 4) {
                const x = ((place - 3) / 4) % width;
                if (data[place]) [low, high] = [Math.min(low, x), Math.max(high, x)];
              }
              return Math.max(0, high - low) / width;
            }"""
        )
    )


def test_form_follows_the_schema(visit: Visit) -> None:
    view = visit.open("live")
    assert view.locator(".chooser select").first.locator("option").all_inner_texts() == ["buoys", "field", "storm"]
    expect(view.get_by_label("Event type")).to_have_value("storm")
    regions = view.get_by_role("group", name="region").or_(view.locator("fieldset", has_text="region"))
    assert regions.first.locator(".chip").all_inner_texts() == ["north", "south", "east", "west"]
    view.get_by_label("severity: comparison").select_option("between")
    slider = view.get_by_label("severity: value, slider")
    assert (slider.get_attribute("min"), slider.get_attribute("max")) == ("1", "7")
    assert view.get_by_text("Part of the domain the storm is in.").is_visible()
    view.get_by_label("Event type").select_option("field")
    assert view.get_by_label("date").get_attribute("type") == "date"
    assert view.get_by_label("class").get_attribute("maxlength") == "2"
    assert view.get_by_label("step: comparison").locator("option").all_inner_texts() == [
        *("any", "is", "one of", "more than", "at least", "less than", "at most", "between")
    ]


def test_what_matches_appears_as_a_card_and_on_the_map(visit: Visit, server: Server) -> None:
    view = visit.open("live")
    view.locator(".chip", has_text="south").click()
    view.get_by_label("severity: comparison").select_option("gte")
    view.get_by_label("severity: value", exact=True).fill("5")
    watch(view)
    before = coloured(view)
    server.client.publish("storm", storm(region="south", severity=6), {"name": "Anna", "gusts": [31, 35]})
    server.client.publish("storm", storm(region="south", severity=4), {"name": "Boris"})
    server.client.publish("storm", storm(region="north", severity=7), {"name": "Carla"})
    server.client.publish("storm", storm(region="south", severity=7), {"name": "Dora"})
    expect(view.locator(".card")).to_have_count(2)
    newest, oldest = view.locator(".card").all()
    assert "Dora" in newest.inner_text()
    assert "severity 6" in oldest.inner_text().replace("\n", " ")
    assert "area with 4 corners" in oldest.inner_text()
    expect(view.locator(".counts")).to_contain_text("2 notifications")
    assert coloured(view) > before + 20
    oldest.locator("summary").first.click()
    expect(oldest.locator("pre").first).to_have_text('{\n  "gusts": [\n    31,\n    35\n  ],\n  "name": "Anna"\n}')
    oldest.get_by_role("button", name="Show on map").click()
    expect(oldest).to_have_class(re.compile("picked"))


def test_search_pause_and_clear(visit: Visit, server: Server) -> None:
    view = visit.open("live")
    watch(view)
    for name in ("Emil", "Frida", "Gustav"):
        server.client.publish("storm", storm(), {"name": name})
    expect(view.locator(".card")).to_have_count(3)
    view.get_by_label("Search notifications").fill("FRIDA")
    expect(view.locator(".card")).to_have_count(1)
    view.get_by_label("Search notifications").fill("nothing like it")
    expect(view.locator(".cards")).to_have_text("No notification matches your search.")
    view.get_by_label("Search notifications").fill("")
    view.get_by_role("button", name="Pause").click()
    server.client.publish("storm", storm(), {"name": "Hanna"})
    expect(view.locator(".counts")).to_contain_text("1 new since the pause")
    expect(view.locator(".card")).to_have_count(3)
    view.get_by_role("button", name="Resume").click()
    expect(view.locator(".card")).to_have_count(4)
    view.get_by_role("button", name="Clear").last.click()
    expect(view.locator(".cards")).to_contain_text("Nothing yet.")


def test_an_area_is_drawn_and_asked_for(visit: Visit, server: Server) -> None:
    view = visit.open("live")
    view.locator(".chip", has_text="In an area").click()
    view.get_by_role("button", name="Draw the area").click()
    canvas = view.locator(".map canvas").nth(1)
    box = canvas.bounding_box()
    assert box is not None
    # three corners around the middle of the map, which lies in western Africa
    middle = {"x": box["width"] / 2, "y": box["height"] / 2}
    for x, y in ((-60, 40), (60, 40), (0, -60)):
        canvas.click(position={"x": middle["x"] + x, "y": middle["y"] + y})
    canvas.press("Enter")
    text = view.get_by_label("Corners as latitude,longitude").input_value()
    numbers = [float(part) for part in text.strip("()").split(",")]
    assert len(numbers) == 8
    assert numbers[:2] == numbers[-2:], "a ring ends where it began"
    assert all(-40 < number < 40 for number in numbers)
    watch(view)
    server.client.publish("storm", storm(polygon=ring(0, 8, 2)), {"name": "inside"})
    server.client.publish("storm", storm(polygon=ring(50, 8, 2)), {"name": "outside"})
    server.client.publish("storm", storm(polygon=ring(-1, 6, 2)), {"name": "inside too"})
    expect(view.locator(".card")).to_have_count(2)
    assert "outside" not in view.locator(".cards").inner_text()


def test_a_place_is_asked_for_with_numbers(visit: Visit, server: Server) -> None:
    view = visit.open("live")
    view.locator(".chip", has_text="At a place").click()
    view.get_by_label("Place as latitude,longitude").fill("52,10")
    watch(view)
    server.client.publish("storm", storm(polygon=ring(-10, 100, 2)), {"name": "elsewhere"})
    server.client.publish("storm", storm(), {"name": "there"})
    expect(view.locator(".card")).to_have_count(1)
    expect(view.locator(".card")).to_contain_text("there")


def test_a_refusal_stands_at_its_field(visit: Visit) -> None:
    visit.refusals_expected = True
    view = visit.open("live")
    view.get_by_label("run_time").fill("noon")
    view.get_by_role("button", name="Watch", exact=True).click()
    row = view.locator(".field.refused")
    expect(row).to_contain_text("noon")
    expect(row).to_contain_text("run_time")
    expect(view.get_by_label("run_time")).to_have_attribute("aria-invalid", "true")
    expect(view.get_by_label("run_time")).to_be_focused()
    expect(view.get_by_role("button", name="Watch", exact=True)).to_be_visible()


def test_several_refusals_stand_at_their_fields(visit: Visit) -> None:
    visit.refusals_expected = True
    view = visit.open("live")
    view.get_by_label("run_time").fill("noon")
    view.get_by_label("severity: comparison").select_option("gte")
    view.get_by_label("severity: value", exact=True).fill("1.5")
    view.get_by_role("button", name="Watch", exact=True).click()
    expect(view.locator(".field.refused")).to_have_count(2)


def test_a_filter_that_has_changed_is_offered_for_a_restart(visit: Visit, server: Server) -> None:
    view = visit.open("live")
    watch(view)
    hint = view.get_by_text("The filter has changed.")
    expect(hint).to_be_hidden()
    view.locator(".chip", has_text="south").click()
    expect(hint).to_be_visible()
    view.get_by_role("button", name="Restart").click()
    expect(hint).to_be_hidden()
    expect(view.locator(".stream-state")).to_have_attribute("data-phase", "live")
    server.client.publish("storm", storm(region="north"), {"name": "Nora"})
    server.client.publish("storm", storm(region="south"), {"name": "Susi"})
    expect(view.locator(".card")).to_have_count(1)
    assert "Susi" in view.locator(".card").inner_text()


def test_the_map_goes_where_the_events_are_and_colours_them_by_a_number(visit: Visit, server: Server) -> None:
    view = visit.open("live")
    watch(view)
    for severity in (1, 4, 7):
        server.client.publish("storm", storm(severity=severity, polygon=ring(50, 10 + severity, 0.4)))
    expect(view.locator(".card")).to_have_count(3)
    expect(view.get_by_label("Colour by")).to_be_visible()
    assert view.get_by_label("Colour by").locator("option").all_inner_texts() == [
        *("one colour", "anomaly", "run_time", "severity")
    ]
    view.get_by_label("Colour by").select_option("severity")
    expect(view.locator(".map-legend .scale")).to_have_text("17")
    close = coloured(view)
    view.get_by_role("button", name="Whole world").click()
    wait_until(lambda: coloured(view) < close)  # the map had come closer by itself


def test_the_map_follows_what_comes_elsewhere_until_it_is_moved(visit: Visit, server: Server) -> None:
    view = visit.open("live")
    watch(view)
    server.client.publish("storm", storm(polygon=ring(50, 10, 0.4)))
    expect(view.locator(".card")).to_have_count(1)
    wait_until(lambda: 0 < breadth(view) < 0.42)
    server.client.publish("storm", storm(polygon=ring(-30, 140, 0.4)))
    wait_until(lambda: breadth(view) > 0.42)
    view.get_by_role("button", name="Whole world").click()
    wait_until(lambda: breadth(view) < 0.42)
    server.client.publish("storm", storm(polygon=ring(50, 10, 0.4)))
    expect(view.locator(".card")).to_have_count(3)
    assert breadth(view) < 0.42


def test_many_events_are_shown_by_their_density(visit: Visit, server: Server) -> None:
    view = visit.open("live")
    watch(view)
    batch = [
        {"event_type": "storm", "identifier": storm(polygon=ring(40 + place % 7, place % 11, 0.3))}
        for place in range(500)
    ]
    assert server.client.answer("notifications", batch).status == 200
    expect(view.locator(".map-legend")).to_contain_text("per square degree")
    expect(view.get_by_label("Colour by")).to_be_hidden()
    assert coloured(view) > 100


def test_a_phone_shows_what_comes_and_folds_the_form(visit: Visit, server: Server) -> None:
    visit.page.set_viewport_size({"width": 390, "height": 844})
    view = visit.open("live")
    watch(view)
    expect(view.get_by_label("Event type")).to_be_hidden()
    expect(view.locator(".stream-state")).to_be_in_viewport()
    view.get_by_role("button", name="Change the filter").click()
    expect(view.get_by_label("Event type")).to_be_visible()


def test_after_a_break_it_goes_on_with_the_next_sequence(visit_to: Open, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    with Server(configuration("sqlite", port), tmp_path) as server:
        visit = visit_to(server)
        visit.refusals_expected = True  # while the server is away
        view = visit.open("live")
        watch(view)
        server.client.publish_many("storm", storms(3))
        expect(view.locator(".card")).to_have_count(3)
        server.stop()
        expect(view.locator(".stream-state")).to_have_attribute("data-phase", re.compile("waiting|busy"))
        server.start()
        server.client.publish_many("storm", storms(4, seed=2))
        expect(view.locator(".card")).to_have_count(7)
        assert sequences(view) == [7, 6, 5, 4, 3, 2, 1]
        expect(view.locator(".journal")).to_contain_text("resumed at sequence 4; nothing was missed")
        expect(view.locator(".stream-state")).to_have_text("Watching storm")
        visit.page.goto("about:blank")


def test_first_paint_comes_at_once(visit: Visit) -> None:
    visit.open("live")
    paint = visit.page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    assert paint < 5000, "a fifth of a second on a quiet machine"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_picture_of_the_page(visit_to: Open, server: Server, scheme: str) -> None:
    visit = visit_to(server, color_scheme=scheme)
    view = visit.open("live")
    view.get_by_label("severity: comparison").select_option("gte")
    view.get_by_label("severity: value", exact=True).fill("2")
    watch(view)
    for lot in range(3):
        server.client.publish_many("storm", storms(12 + 6 * lot, seed=lot))
        visit.page.wait_for_timeout(700)
    expect(view.locator(".card").first).to_be_visible()
    picture = visit.screenshot(f"live-{scheme}")
    assert picture.stat().st_size > 20_000
    # the picture of the README: remove it to have it made anew
    if scheme == "light" and not README_PICTURE.exists():
        README_PICTURE.parent.mkdir(exist_ok=True)
        shutil.copy(picture, README_PICTURE)
