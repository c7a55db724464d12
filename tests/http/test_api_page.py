"""The API page over the wire: every file it names is served by this server, with the right type and policy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import pytest

import aviso_server
from tests.harness import Server
from tests.http.configurations import EVERY_FIELD_TYPE

PAGE = "/swagger-ui/"
TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "json": "application/json",
}


class References(HTMLParser):
    """The addresses a page loads or links to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("href", "src")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(EVERY_FIELD_TYPE, tmp_path_factory.mktemp("server")) as running:
        yield running


def references(server: Server) -> list[str]:
    found = References(server.client.get(PAGE).body.decode()).found
    return [address for address in found if not address.startswith("data:")]


def test_page_is_there_with_its_slash_only(server: Server) -> None:
    page = server.client.get(PAGE)
    assert (page.status, page.header("content-type")) == (200, TYPES["html"])
    assert server.client.get("/swagger-ui").status == 404


def test_everything_the_page_names_is_served_here_with_its_type(server: Server) -> None:
    addresses = references(server)
    assert {"swagger-ui.css", "swagger-ui-bundle.js", "init.js", "../api-docs/openapi.json"} <= set(addresses)
    for address in addresses:
        whole = urlsplit(urljoin(server.url + PAGE, address))
        assert whole.netloc == f"{server.host}:{server.port}", f"{address} leaves this server"
        answer = server.client.get(whole.path)
        assert (answer.status, answer.header("content-type")) == (200, TYPES[whole.path.rsplit(".")[-1]])
        assert answer.body


def test_style_sheet_loads_nothing_from_elsewhere(server: Server) -> None:
    style = server.client.get(PAGE + "swagger-ui.css").body.decode()
    loads = re.findall(r"url\(\s*[\"']?([^)\"']{0,40})", style) + re.findall(r"@import\s+([^;]+)", style)
    assert [load for load in loads if not load.startswith("data:")] == []


@pytest.mark.parametrize("name", ["", "swagger-ui.css", "swagger-ui-bundle.js", "init.js"])
def test_page_is_kept_to_this_server_by_policy(server: Server, name: str) -> None:
    answer = server.client.get(PAGE + name)
    parts = (answer.header("content-security-policy") or "").split(";")
    policy = dict(part.strip().partition(" ")[::2] for part in parts)
    assert policy["default-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert "script-src" not in policy, "scripts fall under default-src: from here, none inline"
    for sources in policy.values():
        assert set(sources.split()) <= {"'self'", "'none'", "'unsafe-inline'", "data:"}
    assert answer.header("x-content-type-options") == "nosniff"


@pytest.mark.parametrize("name", ["nothing.js", "../index.html", "%2e%2e/index.html", "..%2findex.html", "%00"])
def test_page_serves_nothing_else(server: Server, name: str) -> None:
    answer = server.client.get(PAGE + name)
    assert (answer.status, answer.body) == (404, b"")


def test_the_documentation_is_shown_where_it_was_built(server: Server) -> None:
    built = (Path(aviso_server.__file__).parent / "web" / "docs" / "index.html").exists()
    answer = server.client.get("/docs/")
    assert answer.status == (200 if built else 404)
    state = "built" if built else "missing"
    assert f'data-documentation="{state}"' in server.client.get("/").body.decode(), "the guide links to what is there"
    person = server.client.request("GET", "/docs", headers=[("User-Agent", "Mozilla/5.0")])
    assert (person.status, person.header("location")) == (307, "/docs/")
    assert (server.client.get("/docs").status, server.client.get("/docs").body) == (404, b""), "the contract's answer"
