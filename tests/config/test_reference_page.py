"""The reference page of the configuration names every key there is, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from aviso_server.config.keys import ENTRY_KEYS, settings_keys
from tests.config.configurations import inspected

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([^`]+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", PAGE, re.MULTILINE)
ENTRY = "notification_schema.<event_type>."


def test_every_key_with_its_type_and_default() -> None:
    documented = {name: (kind, default.strip("`")) for name, kind, default, _ in ROWS if not name.startswith(ENTRY)}
    assert documented == {key.name: (key.kind, key.default) for key in settings_keys()}


def test_every_key_of_an_event_type() -> None:
    documented = [name.removeprefix(ENTRY) for name, *_ in ROWS if name.startswith(ENTRY)]
    assert sorted(documented) == sorted(ENTRY_KEYS)


def test_every_key_has_a_meaning() -> None:
    assert all(meaning.strip().endswith((".", ".**")) for *_, meaning in ROWS)


def test_the_example_is_a_configuration(tmp_path: Path) -> None:
    [example] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    found = inspected(tmp_path, example)
    assert (found.problems, found.warnings) == ((), ())
    assert found.settings.application.base_url == "https://aviso.example.org"
