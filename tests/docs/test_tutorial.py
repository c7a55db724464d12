"""The tutorial, run as it stands: a field arrives, a script runs, Spark answers a question about history."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.reader import Reader, run_examples
from tests.harness import Server

ROOT = Path(__file__).parents[2]
SECONDS = 480.0  # Spark starts


@pytest.mark.long  # it starts Spark
def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    environment = {"AVISOSERVER_APPLICATION__PORT": "0", "AVISOSERVER_ARCHIVE__ENABLED": "false"}
    with Server(ROOT / "examples" / "config.yaml", tmp_path / "server", environment) as server:
        run_examples(ROOT / "docs" / "tutorial.md", Reader(server, tmp_path, timeout=SECONDS))
