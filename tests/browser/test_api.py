"""API and Guide: what programs need to know, readable without the internet."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.visit import Visit


def test_streams_are_described(visit: Visit) -> None:
    view = visit.open("api")
    watch = view.locator(".channel").filter(has_text="Watch").filter(has_text="storm").first
    expect(watch).to_contain_text("POST /api/v1/watch")
    watch.locator("summary").click()
    expect(watch.get_by_role("heading", name="Notification of storm")).to_be_visible()
    expect(watch.locator(".members").first).to_contain_text("severity")
    expect(watch).to_contain_text("connection_closing")
    visit.screenshot("api")


def test_the_requests_can_be_browsed_and_tried(visit: Visit) -> None:
    view = visit.open("api")
    view.get_by_role("link", name="Requests Every request").click()
    page = visit.page
    page.locator(".opblock-summary-path", has_text="/api/v1/notification").first.wait_for()
    page.locator("#operations-health-ready .opblock-summary-control").click()
    page.get_by_role("button", name="Try it out").click()
    page.get_by_role("button", name="Execute").click()
    expect(page.locator(".live-responses-table tbody .response-col_status").first).to_contain_text("200")
    visit.screenshot("api-requests")


def test_guide_leads_to_our_documentation(visit: Visit) -> None:
    view = visit.open("guide")
    panel = view.locator("[data-documentation]")
    if visit.page.request.get(f"{visit.server.url}/docs/").ok:
        panel.get_by_role("link", name="Getting started").click()
        expect(visit.page.get_by_role("heading", name="Getting started", level=1)).to_be_visible()
    else:
        expect(panel).to_contain_text("make docs")
        expect(panel.get_by_role("link")).to_have_count(0)


def test_guide_has_commands_for_every_event_type(visit: Visit) -> None:
    view = visit.open("guide")
    expect(view.locator(".channel > summary strong")).to_have_text(["buoys", "field", "storm"])
    view.locator(".channel > summary", has_text="storm").click()
    storm = view.locator(".channel[open]")
    expect(storm.locator("table")).to_contain_text("whole number from 1 to 7")
    expect(storm.get_by_label("Watch new notifications")).to_contain_text(f"{visit.server.url}/api/v1/watch")
    storm.get_by_role("button", name="Copy").first.click()
    expect(storm.get_by_role("button", name="Copied")).to_be_visible()
    assert "api/v1/notification" in visit.page.evaluate("navigator.clipboard.readText()")
    visit.screenshot("guide")
