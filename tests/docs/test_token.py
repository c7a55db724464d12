"""The token that the page about authentication makes is good for what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from tests.docs.reader import Reader, run_examples
from tests.harness import Server

PAGE = Path(__file__).parents[2] / "docs" / "authentication.md"


def test_a_token_for_testing_is_accepted(tmp_path: Path) -> None:
    examples = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    settings = yaml.safe_load(next(text for text in examples if "write_roles" in text))
    settings["application"] = {"host": "127.0.0.1", "port": 0}
    settings["notification_backend"] = {"kind": "in_memory"}
    with Server(settings, tmp_path / "server") as server:
        run_examples(PAGE, Reader(server, tmp_path))
