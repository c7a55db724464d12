"""The examples on the page about clients, run as they stand against what `make serve` starts.

Only the address is rewritten, so that the server can listen on a free port.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.reader import Reader, run_examples
from tests.docs.shell_blocks import RUN_PYTHON, blocks
from tests.harness import Server

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "clients.md"


@pytest.fixture
def example_server(tmp_path: Path) -> Iterator[Server]:
    """What `make serve` starts, on a free port and with its data in a directory of its own."""
    environment = {"AVISOSERVER_APPLICATION__PORT": "0", "AVISOSERVER_ARCHIVE__ENABLED": "false"}
    with Server(ROOT / "examples" / "config.yaml", tmp_path / "server", environment) as running:
        yield running


def test_examples_do_what_the_page_says(example_server: Server, tmp_path: Path) -> None:
    beginning = next(block.text for block in blocks(PAGE) if block.mark == RUN_PYTHON)
    run_examples(PAGE, Reader(example_server, tmp_path, beginning))


def test_page_shows_every_way_to_use_the_client() -> None:
    shown = "\n".join(block.text for block in blocks(PAGE))
    calls = ["notify", "notify_many", "schema", "schema_for", "listen", "delete_notification", "wipe_stream"]
    assert [call for call in calls if f"client.{call}(" not in shown] == []
    assert [verb for verb in ("notify", "listen", "replay", "schema") if f"aviso {verb} " not in shown] == []
