"""Signing in: only where the server asks for it, and the token is nowhere but in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.events import STORM, configuration, storm
from tests.browser.visit import Visit
from tests.harness import Server
from tests.harness.client import JSON, body
from tests.harness.tokens import SECRET, bearer, token

GUARDED = {**STORM, "auth": {"required": True, "read_roles": {"localrealm": ["reader"]}}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that wants to know who reads storms, and lets only administrators operate."""
    auth = {
        "enabled": True,
        "mode": "trusted_proxy",
        "jwt_secret": SECRET,
        "admin_roles": {"localrealm": ["admin"]},
    }
    settings = configuration(auth=auth)
    settings["notification_schema"] = {**settings["notification_schema"], "storm": GUARDED}
    with Server(settings, tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def visit(visit: Visit) -> Visit:
    visit.refusals_expected = True  # that is what happens to those without a token
    return visit


def sign_in(visit: Visit, name: str) -> None:
    visit.page.get_by_label("Token").fill(token(name))
    visit.page.get_by_role("button", name="Sign in").click()
    expect(visit.page.locator(".who")).to_contain_text(name)


def test_a_reader_signs_in_and_watches(visit: Visit, server: Server) -> None:
    view = visit.open("live")
    watch = view.get_by_role("button", name="Watch", exact=True)
    watch.click()
    refusal = view.locator(".setup .notice")
    expect(refusal).to_contain_text("Sign in at the top of the page")
    expect(refusal).to_be_in_viewport(ratio=1)
    expect(view.locator(".stream-state")).to_have_text("The server refused this watch")
    sign_in(visit, "reader-user")
    expect(refusal).to_be_hidden()
    expect(view.locator(".stream-state")).to_have_text("Not watching")
    watch.click()
    expect(view.locator(".stream-state")).to_have_attribute("data-phase", "live")
    headers = (*JSON, *bearer(token("admin-user")))
    assert server.client.answer("notification", body("storm", storm(), payload={"name": "Jan"}), headers).status == 200
    expect(view.locator(".card")).to_contain_text("Jan")


def test_only_administrators_operate(visit: Visit) -> None:
    view = visit.open("operate")
    expect(view.locator(".notice").first).to_contain_text("Only administrators can see this")
    assert not view.get_by_role("table", name="Streams").is_visible()
    sign_in(visit, "reader-user")
    expect(view.locator(".notice").first).to_contain_text("does not allow this")
    visit.page.get_by_role("button", name="Sign out").click()
    sign_in(visit, "admin-user")
    expect(view.get_by_role("table", name="Streams")).to_be_visible()
    expect(visit.page.locator(".who")).to_have_text("admin-user, administrator")


def test_a_bad_token_is_not_kept(visit: Visit) -> None:
    visit.open("live")
    visit.page.get_by_label("Token").fill("nonsense")
    visit.page.get_by_role("button", name="Sign in").click()
    expect(visit.page.locator(".who")).to_have_text("This token is not accepted")
    expect(visit.page.get_by_label("Token")).to_be_visible()


def test_the_token_is_nowhere_but_in_memory(visit: Visit, tmp_path: Path) -> None:
    visit.open("live")
    sign_in(visit, "reader-user")
    page = visit.page
    kept = page.evaluate(
        "async () => JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie,"
        " await indexedDB.databases(), await caches.keys(), location.href, history.state,"
        " document.documentElement.outerHTML, [...document.querySelectorAll('input')].map(input => input.value)])"
    )
    assert token("reader-user")[:40] not in kept
    assert visit.context.storage_state()["cookies"] == []
    page.reload()
    expect(page.get_by_label("Token")).to_be_visible()
    expect(page.get_by_label("Token")).to_have_value("")
