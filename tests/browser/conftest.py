"""A real browser, a real server per module, a fresh page per test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.browser.chromium import MISSING, find_chromium
from tests.browser.events import configuration
from tests.browser.visit import Visit
from tests.harness import Server
from tests.harness.patience import PATIENCE

expect.set_options(timeout=PATIENCE * 1000)  # five seconds would be too short on a busy machine

Open = Callable[..., Visit]


_HERE = Path(__file__).parent
_running: list[Browser] = []
_closing = ExitStack()


@pytest.fixture(scope="module")
def browser() -> Browser:
    """Headless Chromium; it may not resolve any name, so that nothing could leave the machine. Modules share it."""
    found = find_chromium()
    if found is None:
        pytest.fail(MISSING)
    arguments = ["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--lang=en-GB"]
    if not _running:
        playwright = _closing.enter_context(sync_playwright())
        _running.append(playwright.chromium.launch(executable_path=found, args=arguments))
        _closing.callback(lambda: _running.pop().close())
    return _running[0]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Leave no Playwright behind: while it runs, no other test could run an event loop of its own."""
    if nextitem is None or not nextitem.path.is_relative_to(_HERE):
        _closing.close()


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
def visit(visit_to: Open, server: Server) -> Iterator[Visit]:
    """A page at the server of this module, on a screen of usual size."""
    opened = visit_to(server)
    yield opened
    opened.context.close()  # before the server, which it goes on asking
