"""A page of the console as a visitor has it open, with everything that went wrong on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import BrowserContext, ConsoleMessage, Locator, Page, Request

from tests.harness import Server
from tests.harness.patience import PATIENCE

__all__ = ["SCREENSHOTS", "Visit"]

HERE = Path(__file__).parent
SCREENSHOTS = HERE / "screenshots"
AXE = HERE / "vendor" / "axe.min.js"
FADING = """
Promise.all(
  document.getAnimations()
    .filter((each) => each.effect.getComputedTiming().endTime !== Infinity)
    .map((each) => each.finished.catch(() => null)),
)
"""
_REFUSED = "Failed to load resource"


class Visit:
    """One open page. `check` fails if it complained, broke its policy or asked another host for anything."""

    def __init__(self, context: BrowserContext, server: Server) -> None:
        self.context = context
        self.server = server
        self.page: Page = context.new_page()
        self.page.set_default_timeout(PATIENCE * 1000)
        self.refusals_expected = False
        self.problems: list[str] = []
        self.hosts: set[str] = set()
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        context.on("request", self._asked)

    def open(self, name: str) -> Locator:
        """Go to a page of the console and return its part of the document."""
        self.page.goto(f"{self.server.url}/#{name}")
        view = self.page.locator("#guide" if name == "guide" else f"#view-{name}")
        view.wait_for()
        if name in ("live", "history", "publish"):
            view.locator(".chooser .field").nth(1).wait_for()
        return view

    def screenshot(self, name: str, full_page: bool = False) -> Path:
        """Keep a picture of what is to be seen."""
        SCREENSHOTS.mkdir(exist_ok=True)
        path = SCREENSHOTS / f"{name}.png"
        self.page.screenshot(path=path, full_page=full_page)
        return path

    def accessibility(self) -> list[str]:
        """What axe finds wrong with the page as it is."""
        self.page.evaluate(FADING)  # what fades in has too little contrast until it is there
        # through the protocol and not as a script element, which the page's policy would rightly refuse
        self.page.evaluate(AXE.read_text(encoding="utf-8"))
        found: dict[str, Any] = self.page.evaluate("axe.run({ resultTypes: ['violations'] })")
        return [
            f"{violation['id']}: {node['html']}: {node['failureSummary']}"
            for violation in found["violations"]
            for node in violation["nodes"]
        ]

    def check(self) -> None:
        """Nothing went wrong, and nothing left the host."""
        assert self.hosts <= {f"{self.server.host}:{self.server.port}"}
        unexpected = [each for each in self.problems if not (self.refusals_expected and _REFUSED in each)]
        assert unexpected == [], "\n".join(unexpected)

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.problems.append(f"{message.type}: {message.text}")

    def _asked(self, request: Request) -> None:
        address = urlsplit(request.url)
        if address.scheme not in ("data", "blob"):
            self.hosts.add(address.netloc)
