"""Everybody can use it: axe on every page, in both themes and at phone width; the keyboard; and no inline code."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Open
from tests.browser.events import configuration, storm, storms
from tests.browser.visit import Visit
from tests.harness import Server

PAGES = ["live", "history", "publish", "operate", "api", "guide"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with something to show on every page."""
    with Server(configuration(), tmp_path_factory.mktemp("server")) as running:
        running.client.publish_many("storm", storms(5))
        assert running.client.notify("storm", storm(severity=9)).status == 400
        yield running


def fill(visit: Visit, name: str) -> None:
    """Bring a page into the state in which it shows most."""
    view = visit.open(name)
    if name == "live":
        view.locator(".chip", has_text="In an area").click()
        view.get_by_label("severity: comparison").select_option("between")
        view.get_by_role("button", name="Watch", exact=True).click()
        expect(view.locator(".stream-state")).to_have_attribute("data-phase", "live")
        visit.server.client.publish("storm", storm(), {"name": "Karl"})
    if name == "history":
        view.get_by_role("button", name="Replay", exact=True).click()
    if name in ("live", "history"):
        view.locator(".card").first.locator("summary").first.click()
        view.get_by_role("button", name="Back-test").click()
        expect(view.locator(".back-test .notice")).to_have_attribute("data-kind", "good")
        view.get_by_role("button", name="Why is this here?").first.click()
        expect(view.locator(".clauses").first).to_be_visible()
    if name == "operate":
        view.get_by_role("button", name="Preview").click()
    if name in ("api", "guide"):
        view.locator(".channel > summary").last.click()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 390)])
def test_axe_finds_nothing_and_nothing_sticks_out(visit_to: Open, server: Server, scheme: str, width: int) -> None:
    visit = visit_to(server, color_scheme=scheme, viewport={"width": width, "height": 850}, has_touch=width < 500)
    for name in PAGES:
        fill(visit, name)
        assert visit.accessibility() == [], name
        used = visit.page.evaluate("document.documentElement.scrollWidth")
        assert used <= width, f"{name} is {used} wide"
        visit.screenshot(f"{name}-{scheme}-{width}", full_page=width < 500)


def test_dialog_is_accessible(visit: Visit) -> None:
    view = visit.open("live")
    view.get_by_role("button", name="Copy as code").click()
    expect(visit.page.get_by_role("dialog", name="This watch as code")).to_be_visible()
    assert visit.accessibility() == []
    visit.page.keyboard.press("Escape")
    expect(visit.page.get_by_role("dialog")).to_have_count(0)
    expect(view.get_by_role("button", name="Copy as code")).to_be_focused()


def test_a_watch_needs_no_pointer(visit: Visit, server: Server) -> None:
    visit.open("live")
    keyboard = visit.page.keyboard
    focused = visit.page.locator(":focus")
    keyboard.press("Tab")
    expect(focused).to_have_text("Skip to the content")
    keyboard.press("Enter")
    expect(focused).to_have_attribute("id", "main")
    for _ in range(40):
        keyboard.press("Tab")
        if focused.inner_text() == "Watch":
            break
    keyboard.press("Enter")
    expect(visit.page.locator(".stream-state")).to_have_attribute("data-phase", "live")
    server.client.publish("storm", storm(), {"name": "Lena"})
    expect(visit.page.locator("#view-live .card")).to_have_count(1)


def test_theme_can_be_chosen(visit_to: Open, server: Server) -> None:
    visit = visit_to(server, color_scheme="light")
    visit.open("live")
    paper = "getComputedStyle(document.body).backgroundColor"
    light = visit.page.evaluate(paper)
    button = visit.page.locator("#theme")
    button.click()
    assert visit.page.evaluate(paper) == light
    button.click()
    expect(button).to_have_attribute("aria-label", "Theme: dark")
    dark = visit.page.evaluate(paper)
    assert dark != light
    button.click()
    assert visit.page.evaluate(paper) == light


def test_policy_allows_nothing_inline_and_nothing_from_elsewhere(visit: Visit, server: Server) -> None:
    policy = server.client.get("/").header("content-security-policy") or ""
    parts = dict(part.strip().partition(" ")[::2] for part in policy.split(";"))
    assert parts["default-src"] == "'none'"
    assert parts["script-src"] == parts["style-src"] == parts["connect-src"] == "'self'"
    assert "unsafe" not in policy
    assert "//" not in policy
    visit.open("live")
    ran = visit.page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "window.ran = true";
            document.body.append(script);
            return window.ran === true;
        }"""
    )
    assert not ran
    assert any("Content Security Policy" in problem for problem in visit.problems)
    visit.problems.clear()
