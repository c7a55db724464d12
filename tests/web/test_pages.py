"""The pages the server shows: complete, and asking nothing of any other host."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import aviso_server

WEB = Path(aviso_server.__file__).parent / "web"
PAGES = ["index.html", "swagger-ui/index.html"]
PLACEHOLDERS = {
    "SERVER_VERSION",
    "DOCUMENTATION",
    "CLIENT_DOCUMENTATION_URL",
    "CLIENT_REPOSITORY_URL",
    "SERVER_DOCUMENTATION_URL",
    "SERVER_REPOSITORY_URL",
}


class Page(HTMLParser):
    """What a page loads, links to and runs."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.handlers: list[str] = []
        self.inline_scripts = 0
        self.sections: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {key: value or "" for key, value in attrs}
        if "id" in values:
            self.ids.append(values["id"])
        if tag == "section":
            self.sections.append(values.get("id", ""))
        if tag == "a":
            self.links.append(values.get("href", ""))
        elif "href" in values or "src" in values:
            self.loads.append(values.get("href") or values.get("src", ""))
        if tag == "script" and "src" not in values:
            self.inline_scripts += 1
        self.handlers += [key for key in values if key.startswith("on")]


def page(name: str) -> Page:
    return Page((WEB / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", PAGES)
def test_page_loads_only_files_of_this_server(name: str) -> None:
    folder = WEB / Path(name).parent
    loads = [load for load in page(name).loads if load != "data:,"]
    assert loads
    for load in loads:
        assert re.match(r"[a-z]+:|/", load) is None, f"{load} is not relative to the page"
        assert (folder / load.removeprefix("static/")).is_file(), f"{load} is not there"


@pytest.mark.parametrize("name", PAGES)
def test_page_runs_no_inline_script(name: str) -> None:
    found = page(name)
    assert found.inline_scripts == 0
    assert found.handlers == []


@pytest.mark.parametrize("name", [*PAGES, "home.js", "swagger-ui/init.js"])
def test_page_names_no_other_host(name: str) -> None:
    assert re.findall(r"(?:https?:)?//[a-z0-9-]+\.[^\s\"']+", (WEB / name).read_text(encoding="utf-8")) == []


def test_home_page_has_the_placeholders_the_server_fills() -> None:
    text = (WEB / "index.html").read_text(encoding="utf-8")
    assert set(re.findall(r"\{\{(\w+)\}\}", text)) == PLACEHOLDERS
    assert text.count("{{") == text.count("}}") == len(re.findall(r"\{\{\w+\}\}", text))


def test_home_page_has_its_two_sections_and_links() -> None:
    home = page("index.html")
    assert home.sections == ["use-aviso", "operate-server"]
    assert {"swagger-ui/", "api-docs/openapi.json", "api/v1/schema", "health", "ready"} <= set(home.links)


def test_guide_links_to_pages_of_our_documentation() -> None:
    docs = Path(__file__).parents[2] / "docs"
    linked = [link.removeprefix("docs/") for link in page("index.html").links if link.startswith("docs/")]
    assert "index.html" in linked
    for name in linked:
        assert (docs / name).with_suffix(".md").is_file(), f"{name} is made from no page of docs/"


def test_home_script_finds_its_places_on_the_page() -> None:
    wanted = re.findall(r'getElementById\("([\w-]+)"\)', (WEB / "home.js").read_text(encoding="utf-8"))
    assert wanted
    assert set(wanted) <= set(page("index.html").ids)


def test_home_script_never_reads_text_as_html() -> None:
    script = (WEB / "home.js").read_text(encoding="utf-8")
    assert re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", script) is None


def test_api_page_sends_the_description_nowhere() -> None:
    script = (WEB / "swagger-ui" / "init.js").read_text(encoding="utf-8")
    assert "validatorUrl: null" in script
    assert 'url: "../api-docs/openapi.json"' in script


def test_vendored_files_come_with_their_licences() -> None:
    names = {path.name for path in (WEB / "swagger-ui").iterdir()}
    assert {"LICENSE", "NOTICE", "swagger-ui-bundle.js", "swagger-ui-bundle.js.LICENSE.txt", "swagger-ui.css"} <= names
