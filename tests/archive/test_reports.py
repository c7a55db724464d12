"""The tables with refused rows as the server sees them: newest first, few, read once, and damage does no harm."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aviso_server.archive.reports import Quarantined
from aviso_server.model.quarantine import RefusedFor, note
from aviso_server.spark.load.load_report import RefusedRow, Summary, write_quarantine

AT = 1_767_323_045 * 10**9  # 2026-01-02T03:04:05Z
OUTSIDE = "Field 'severity' value {} is outside allowed range [1, 7]"


def put(folder: Path, name: str, event_type: str = "storm", values: tuple[int, ...] = (9,), age: int = 0) -> Path:
    """A load whose rows the server has refused, so many seconds ago."""
    rows = [
        RefusedRow("rows.ndjson", line, "{}", "severity", OUTSIDE.format(value), "INVALID_NOTIFICATION_REQUEST")
        for line, value in enumerate(values, 1)
    ]
    target = folder / f"refused-{name}.parquet"
    assert write_quarantine(target, event_type, AT, [], Summary(), rows) == len(rows)
    os.utime(target, (AT // 10**9 - age, AT // 10**9 - age))
    return target


def seen(quarantined: Quarantined) -> Mapping[str, Any]:
    found = asyncio.run(quarantined.describe())
    assert found is not None
    shown: Mapping[str, Any] = msgspec.to_builtins(found)
    return shown


def test_nothing_was_put_aside(tmp_path: Path) -> None:
    assert asyncio.run(Quarantined(tmp_path / "nowhere").describe()) is None
    (tmp_path / "_draft.parquet").touch()
    assert asyncio.run(Quarantined(tmp_path).describe()) is None


def test_a_load_is_seen_with_its_reasons(tmp_path: Path) -> None:
    put(tmp_path, "one", values=(9, 8, 0))
    reason = {
        "code": "INVALID_NOTIFICATION_REQUEST",
        "field": "severity",
        "reason": OUTSIDE.format("…"),
        "rows": 3,
    }
    table = {
        "file": "refused-one.parquet",
        "event_type": "storm",
        "at": "2026-01-02T03:04:05Z",
        "rows": 3,
        "reasons": (reason,),
        "other_reasons": 0,
    }
    assert seen(Quarantined(tmp_path)) == {"count": 1, "tables": [table]}


def test_the_newest_come_first_and_only_some(tmp_path: Path) -> None:
    for age in range(25):
        put(tmp_path, f"{age:02}", age=age)
    found = seen(Quarantined(tmp_path))
    assert found["count"] == 25
    assert [each["file"] for each in found["tables"]] == [f"refused-{age:02}.parquet" for age in range(20)]


def test_a_repeated_load_takes_the_place_of_the_first(tmp_path: Path) -> None:
    quarantined = Quarantined(tmp_path)
    put(tmp_path, "one", values=(9, 8), age=5)
    assert seen(quarantined)["tables"][0]["rows"] == 2
    target = put(tmp_path, "one", values=(9,))
    assert seen(quarantined)["tables"][0]["rows"] == 1
    target.unlink()
    assert asyncio.run(quarantined.describe()) is None


def test_a_table_that_cannot_be_read_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    put(tmp_path, "good", age=5)
    (tmp_path / "refused-torn.parquet").write_bytes(b"PAR1")
    pq.write_table(pa.table({"line": [1]}), tmp_path / "refused-strange.parquet")
    quarantined = Quarantined(tmp_path)
    for _ in range(2):
        found = seen(quarantined)
        assert found["count"] == 3
        assert [each["file"] for each in found["tables"]] == ["refused-good.parquet"]
    assert [record.__dict__["event"] for record in caplog.records] == ["archive.quarantine.unreadable"] * 2


def test_a_note_stays_small() -> None:
    reasons = [RefusedFor("CODE", "x" * 10_000, "y" * 10_000, rows) for rows in range(1, 31)]
    said = note("storm", "2026-01-02T03:04:05Z", reasons)
    assert [each.rows for each in said.reasons] == list(range(30, 10, -1))
    assert (said.rows, said.other_reasons) == (sum(range(31)), sum(range(11)))
    assert {len(each.reason) for each in said.reasons} == {300}
    assert {len(each.field or "") for each in said.reasons} == {300}
