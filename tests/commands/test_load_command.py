"""`aviso-server pipeline load` before Spark is needed: what is refused, and what is said."""

from __future__ import annotations

import json
from contextlib import chdir
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from aviso_server.cli import main
from tests.spark.load.bad_rows import DEFINITION, good_row


def run(folder: Path, *arguments: str) -> Result:
    (folder / "rows.ndjson").write_text(json.dumps(good_row(50)) + "\n")
    with chdir(folder):
        return CliRunner().invoke(main, ["pipeline", "load", "rows.ndjson", *arguments])


def test_a_dry_run_without_a_schema_is_refused(tmp_path: Path) -> None:
    """Without a configuration there is nothing to check by; it must not say that all rows are fine."""
    found = run(tmp_path, "--event-type", "mars", "--dry-run")
    assert (found.exit_code, found.stdout) == (1, "")
    assert "nothing is known of event type 'mars', so there is nothing to check rows by" in found.stderr
    assert "--config" in found.stderr
    assert "--url" in found.stderr


@pytest.mark.parametrize("strict", [True, False])
def test_an_event_type_that_is_not_configured_is_named(tmp_path: Path, strict: bool) -> None:
    settings = {"notification_schema_strict": strict, "notification_schema": {"mars": DEFINITION}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings))
    missing = ("nowhere.csv", "--event-type", "marz", "--dry-run", "--config", "config.yaml")
    found = run(tmp_path, *missing)
    assert found.exit_code == 1
    said = "unknown event type 'marz'" if strict else "event type 'marz' has no schema: only the form of the rows"
    assert said in found.stderr
