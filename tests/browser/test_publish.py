"""Publish: fill in, draw, send; the server's objections stand where they belong."""

from __future__ import annotations

import json
from pathlib import Path

from playwright.sync_api import expect

from tests.browser.conftest import Open
from tests.browser.events import configuration
from tests.browser.visit import Visit
from tests.harness import Server


def test_what_the_form_says_is_stored(visit: Visit, server: Server) -> None:
    view = visit.open("publish")
    view.locator(".chip", has_text="west").click()
    view.get_by_label("run_time").fill("0600")
    view.get_by_label("severity", exact=True).fill("6")
    view.get_by_label("anomaly", exact=True).fill("42.5")
    view.get_by_label("Corners as latitude,longitude").fill("(10,10,10,20,20,20,10,10)")
    view.get_by_label("Payload").fill('{"name": "Ida"}')
    view.get_by_role("button", name="Publish", exact=True).click()
    expect(view.locator(".notice")).to_contain_text("Stored")
    expect(view.locator(".journal").last).to_contain_text("storm")
    note = server.client.replay("storm", {"region": "west", "run_time": "0600", "severity": 6}).notifications[-1]
    assert note["data"] == {
        "identifier": {
            "region": "west",
            "run_time": "0600",
            "severity": "6",
            "anomaly": "42.5",
            "polygon": [[10.0, 10.0], [10.0, 20.0], [20.0, 20.0], [10.0, 10.0]],
        },
        "payload": {"name": "Ida"},
    }
    visit.screenshot("publish")


def test_a_newcomer_can_send_the_form_as_it_is(visit: Visit) -> None:
    view = visit.open("publish")
    for event_type in ("storm", "field", "buoys"):
        view.get_by_label("Event type").select_option(event_type)
        if event_type == "field":
            view.get_by_label("class").fill("od")
        view.get_by_role("button", name="Publish", exact=True).click()
        expect(view.locator(".journal").last).to_contain_text(event_type)


def test_points_are_set_on_the_map(visit: Visit, server: Server) -> None:
    view = visit.open("publish")
    view.get_by_label("Event type").select_option("buoys")
    view.get_by_role("button", name="Set points").click()
    canvas = view.locator(".map canvas").nth(1)
    box = canvas.bounding_box()
    assert box is not None
    for x in (-30, 30):
        canvas.click(position={"x": box["width"] / 2 + x, "y": box["height"] / 2})
    canvas.press("Enter")
    view.get_by_label("network").fill("drawn")
    view.get_by_role("button", name="Publish", exact=True).click()
    expect(view.locator(".notice")).to_contain_text("Stored")
    (note,) = server.client.replay("buoys", {"network": "drawn"}).notifications
    assert len(note["data"]["identifier"]["point_cloud"]) == 2


def test_objections_of_the_server_stand_at_the_fields(visit: Visit) -> None:
    visit.refusals_expected = True
    view = visit.open("publish")
    view.get_by_label("severity", exact=True).fill("9")
    view.get_by_role("button", name="Publish", exact=True).click()
    row = view.locator(".field.refused")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("Field 'severity' value 9 is outside allowed range [1, 7]")
    expect(view.get_by_label("severity", exact=True)).to_have_attribute("aria-invalid", "true")
    view.get_by_label("severity", exact=True).fill("5")
    view.get_by_label("Corners as latitude,longitude").fill("(10,10,20,20)")
    view.get_by_role("button", name="Publish", exact=True).click()
    expect(row).to_have_count(1)
    expect(row).to_contain_text("must be a valid polygon")
    visit.screenshot("publish-refused")


def test_payload_is_checked(visit: Visit) -> None:
    visit.refusals_expected = True
    view = visit.open("publish")
    view.get_by_label("Event type").select_option("field")
    view.get_by_label("class").fill("od")
    view.get_by_label("Payload").fill("{not JSON")
    view.get_by_role("button", name="Publish", exact=True).click()
    expect(view.locator("#payload-error")).to_contain_text("The payload is not JSON")
    view.get_by_label("Payload").fill("")
    view.get_by_role("button", name="Publish", exact=True).click()
    expect(view.locator("#payload-error")).to_have_text("Payload is required for event type 'field'")


def test_what_is_sent_is_shown(visit: Visit) -> None:
    view = visit.open("publish")
    view.get_by_label("severity", exact=True).fill("2")
    shown = json.loads(view.get_by_label("The request").inner_text())
    assert shown["event_type"] == "storm"
    assert shown["identifier"]["severity"] == 2


def test_an_event_type_that_nobody_configured(visit_to: Open, tmp_path: Path) -> None:
    with Server(configuration(notification_schema_strict=False), tmp_path) as server:
        visit = visit_to(server)
        view = visit.open("publish")
        view.get_by_label("Event type").select_option("another, not configured …")
        view.get_by_label("Name of the event type").fill("sighting")
        view.get_by_label("Value").fill("bergen")
        view.get_by_role("button", name="Publish", exact=True).click()
        expect(view.locator(".notice")).to_contain_text("Stored")
        (note,) = server.client.replay("sighting", {"place": "*"}).notifications
        assert note["data"]["identifier"] == {"place": "bergen"}


def test_nothing_is_shown_as_sent_while_the_payload_is_not_json(visit: Visit) -> None:
    view = visit.open("publish")
    shown = view.get_by_label("The request")
    view.get_by_label("Payload").fill('{"name": "Ida"}')
    expect(shown).to_contain_text("Ida")
    view.get_by_label("Payload").fill('{"name": "Jan"')
    expect(shown).to_have_text("Nothing yet: the payload is not JSON.")
    view.get_by_label("Payload").fill('{"name": "Jan"}')
    expect(shown).to_contain_text("Jan")
