"""A real browser, a real server per module, a fresh page per test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.browser.chromium import MISSING, find_chromium
from tests.browser.events import configuration
from tests.browser.visit import Visit
from tests.harness import Server

Open = Callable[..., Visit]


@pytest.fixture(scope="module")  # while Playwright runs, no other test could run an event loop of its own
def browser() -> Iterator[Browser]:
    """Headless Chromium; it may not resolve any name, so that nothing could leave the machine."""
    found = find_chromium()
    if found is None:
        pytest.fail(MISSING)
    arguments = ["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--lang=en-GB"]
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=found, args=arguments)
        yield running
        running.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server of this module. What a test publishes is still there for the next one."""
    with Server(configuration(), tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def visit_to(browser: Browser) -> Iterator[Open]:
    """Opens pages: of a server, with options of the browser. Each is checked when the test is over."""
    visits: list[Visit] = []

    def opened(server: Server, **options: Any) -> Visit:
        context = browser.new_context(**{"viewport": {"width": 1440, "height": 900}, **options})
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        visits.append(Visit(context, server))
        return visits[-1]

    yield opened
    for visit in visits:
        visit.context.close()
        visit.check()


@pytest.fixture
def visit(visit_to: Open, server: Server) -> Visit:
    """A page at the server of this module, on a screen of usual size."""
    return visit_to(server)
