"""The examples on the page about the command line, run as they stand against a real server."""

from __future__ import annotations

from pathlib import Path

from tests.docs.reader import Reader, run_examples
from tests.harness import Server

ROOT = Path(__file__).parents[2]


def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    environment = {"AVISOSERVER_APPLICATION__PORT": "0", "AVISOSERVER_ARCHIVE__ENABLED": "false"}
    with Server(ROOT / "examples" / "config.yaml", tmp_path / "server", environment) as server:
        run_examples(ROOT / "docs" / "cli.md", Reader(server, tmp_path))
