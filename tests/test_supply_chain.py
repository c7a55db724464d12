"""The bill of materials, and the look for known vulnerabilities, with a database of advisories of our own."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tools.supply_chain import components, main

ROOT = Path(__file__).parents[1]
VULNERABLE = ("PyPI", "httpx")

Database = Callable[[bytes], str]


@pytest.fixture
def database() -> Iterator[Database]:
    """Starts databases: one that says these bytes, or, of none, that answers as OSV does and knows one advisory."""
    running: list[HTTPServer] = []

    def start(said: bytes) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                answer = said or (advise(json.loads(content)) if self.path == "/v1/querybatch" else b"")
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
                """Stay silent."""

        server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        running.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


def advise(request: Any) -> bytes:
    named = [(each["package"]["ecosystem"], each["package"]["name"]) for each in request["queries"]]
    results = [{"vulns": [{"id": "TEST-1"}]} if each == VULNERABLE else {} for each in named]
    return json.dumps({"results": results}).encode()


def run(tmp_path: Path, url: str, **accepted: str) -> int:
    return main(["--sbom", str(tmp_path / "sbom.json"), "--advisories", url], accepted)


def test_the_bill_names_every_pin_and_everything_vendored(tmp_path: Path, database: Database) -> None:
    run(tmp_path, database(b""))
    bill = json.loads((tmp_path / "sbom.json").read_bytes())
    named = {each["purl"] for each in bill["components"]}
    files = ("constraints.txt", "tests/spark/connect.txt", "tools/docs/requirements.txt")
    pins = [pin for file in files for pin in (ROOT / file).read_text().split()]
    assert len([name for name in named if name.startswith("pkg:pypi/")]) == len(set(pins))
    for name in ("pyspark", "uvicorn", "httpx", "types-pyyaml"):
        assert f"pkg:pypi/{name}@{metadata.version(name)}" in named
    for name in ("swagger-ui-dist@5.34.1", "d3-geo@3.1.2", "internmap@2.0.3", "%40fontsource/jetbrains-mono@5.3.0"):
        assert f"pkg:npm/{name}" in named
    assert {"bomFormat": bill["bomFormat"], "specVersion": bill["specVersion"]} == {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
    }
    assert len({each["bom-ref"] for each in bill["components"]}) == len(bill["components"])
    before = (tmp_path / "sbom.json").read_bytes()
    run(tmp_path, database(b""))
    assert (tmp_path / "sbom.json").read_bytes() == before, "the same parts make the same bill"


def test_a_known_vulnerability_fails(tmp_path: Path, database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, database(b"")) == 1
    [part] = [each for each in components() if (each.ecosystem, each.name) == VULNERABLE]
    assert f"httpx {part.version}: TEST-1" in capsys.readouterr().out


def test_one_that_does_not_concern_us_is_accepted_with_its_reason(
    tmp_path: Path, database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, database(b""), **{"TEST-1": "we do not use it that way"}) == 0
    assert "TEST-1 we do not use it that way" in capsys.readouterr().out


@pytest.mark.parametrize("said", [b"<html>", b"{}", b'{"results": []}', b"[]"])
def test_a_database_that_makes_no_sense_is_said_and_fails_nothing(
    tmp_path: Path, database: Database, capsys: pytest.CaptureFixture[str], said: bytes
) -> None:
    assert run(tmp_path, database(said)) == 0
    assert "NOT CHECKED" in capsys.readouterr().out


def test_a_database_out_of_reach_is_said_and_fails_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        assert run(tmp_path, url) == 0
    assert f"NOT CHECKED for known vulnerabilities: {url} cannot be asked" in capsys.readouterr().out
