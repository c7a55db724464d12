"""What the tables say about a span of time: sums, bounds, percentiles, and files that change meanwhile."""

from __future__ import annotations

import random
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aviso_server.errors import InvalidRequest
from aviso_server.insight import counts
from aviso_server.insight.answers import answer, overview, percentiles, rounded
from aviso_server.insight.charts import export, report
from aviso_server.insight.counts import HOUR, Reader, folder_of, stream_of
from aviso_server.lake.storage import open_file
from tests.insight.handmade import NOON, write

TIMES = (NOON * HOUR, NOON * HOUR + 7)
TABLES: dict[str, Any] = {
    "hours": [(NOON - 30, 4), (NOON - 1, 2), (NOON, 3)],
    "fields": [
        (NOON - 30, "class", "od", 4, 1, (NOON - 30) * HOUR, (NOON - 30) * HOUR + 9),
        (NOON - 1, "class", "od", 1, 1, *TIMES),
        (NOON - 1, "class", None, 1, 1, *TIMES),
        (NOON, "class", "rd", 3, 1, *TIMES),
        (NOON, "step", "6", 3, 1, *TIMES),
    ],
    "delays": [(NOON - 1, "run", 60, 1), (NOON - 1, "run", 120, 1), (NOON, "run", -60, 3), (NOON, "valid", 0, 3)],
    "cells": [(NOON, 50, 10, 3), (NOON - 30, -90, -180, 4)],
    "coverage": [(NOON // 24, 50, 10, 3), ((NOON - 30) // 24, -90, -180, 4)],
}


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    write(tmp_path, "mars", TABLES, "fc")
    return Reader(str(tmp_path))


def ask(reader: Reader, name: str, first: int = NOON - 40, last: int = NOON, field: str | None = None) -> Any:
    found = answer(reader, "mars", name, first * HOUR, last * HOUR, field)
    assert found is not None
    return found


@given(st.integers(-(2**40), 2**40))
def test_a_delay_is_rounded_towards_zero_by_less_than_a_thirty_second(seconds: int) -> None:
    near = rounded(seconds)
    assert abs(near) <= abs(seconds)
    assert near * seconds >= 0
    assert 32 * (abs(seconds) - abs(near)) <= abs(seconds)
    assert rounded(near) == near


@given(st.lists(st.integers(-50, 50), min_size=1, max_size=200), st.integers(1, 100))
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(values: list[int], percentage: int) -> None:
    counts = {value: values.count(value) for value in values}
    [found] = percentiles(counts, [percentage]).values()
    enough = [value for value in sorted(counts) if 100 * sum(v <= value for v in values) >= percentage * len(values)]
    assert found == enough[0]


def test_hours_are_counted(reader: Reader) -> None:
    found = ask(reader, "hours")
    assert found["rows"] == [
        {"time": "2026-07-17T06:00:00Z", "count": 4},
        {"time": "2026-07-18T11:00:00Z", "count": 2},
        {"time": "2026-07-18T12:00:00Z", "count": 3},
    ]
    assert (found["step"], found["from"], found["to"]) == ("hour", "2026-07-16T20:00:00Z", "2026-07-18T13:00:00Z")
    assert (found["event_type"], found["notifications"], found["through"]) == ("fc", 9, 99)
    assert ask(reader, "hours", NOON, NOON)["rows"] == [{"time": "2026-07-18T12:00:00Z", "count": 3}]


def test_long_spans_are_counted_by_day(reader: Reader) -> None:
    found = ask(reader, "hours", NOON - 40 * 24)
    assert found["step"] == "day"
    assert found["rows"] == [{"time": "2026-07-17T00:00:00Z", "count": 4}, {"time": "2026-07-18T00:00:00Z", "count": 5}]


def test_values_are_ranked_and_others_counted_together(reader: Reader) -> None:
    found = ask(reader, "fields")
    values = [{"value": "od", "count": 5}, {"value": "rd", "count": 3}]
    assert found["fields"] == [
        {"field": "class", "values": values, "other": 1},
        {"field": "step", "values": [{"value": "6", "count": 3}], "other": 0},
    ]
    assert "rows" not in found
    one = ask(reader, "fields", NOON - 2, field="class")
    assert [each["field"] for each in one["fields"]] == ["class"]
    assert [(row["value"], row["count"]) for row in one["rows"]] == [("od", 1), ("rd", 3)]
    assert ask(reader, "fields", field="nothing")["fields"] == []


def test_first_and_last_seen(reader: Reader) -> None:
    [found] = ask(reader, "seen", field="class")["fields"]
    assert found["values"][0] == {
        "value": "od",
        "count": 5,
        "first": "2026-07-17T06:00:00Z",
        "last": "2026-07-18T12:00:00.000000007Z",
    }


def test_delays_have_percentiles_of_any_span(reader: Reader) -> None:
    found = ask(reader, "delays")
    assert (found["run"]["count"], found["run"]["minimum"], found["run"]["maximum"]) == (5, -60, 120)
    assert found["run"]["percentiles"] == {"5": -60, "25": -60, "50": -60, "75": 60, "95": 120, "99": 120}
    assert [row["percentiles"]["50"] for row in found["run"]["rows"]] == [60, -60]
    assert found["valid"]["count"] == 3
    assert ask(reader, "delays", NOON - 1, NOON - 1)["valid"] is None


def test_coverage_is_by_day(reader: Reader) -> None:
    found = ask(reader, "coverage", NOON, NOON)
    assert (found["cells"], found["highest"]) == ([[50, 10, 3]], 3)
    assert (found["from"], found["to"]) == ("2026-07-18T00:00:00Z", "2026-07-19T00:00:00Z")
    assert ask(reader, "coverage")["cells"] == [[-90, -180, 4], [50, 10, 3]]


def test_without_a_span_the_newest_week_is_meant(reader: Reader) -> None:
    found = answer(reader, "mars", "hours", None, None, None)
    assert found is not None
    assert (found["from"], found["to"]) == ("2026-07-11T13:00:00Z", "2026-07-18T13:00:00Z")
    assert answer(reader, "other", "hours", None, None, None) is None


@pytest.mark.parametrize(
    ("start", "end", "words"), [(NOON, NOON - 1, "'from' must not be after 'to'"), (NOON - 366 * 24, NOON, "366 days")]
)
def test_spans_that_mean_nothing_are_refused(reader: Reader, start: int, end: int, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        answer(reader, "mars", "hours", start * HOUR, end * HOUR, None)


def test_tables_made_anew_while_they_are_read_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = False

    def moving(path: str) -> pa.NativeFile:
        nonlocal moved
        if path.endswith(".parquet") and not moved:
            moved = True
            for old in (tmp_path / "_insight" / "stream=mars").glob("*.parquet"):
                old.unlink()
            write(tmp_path, "mars", {"hours": [(NOON, 77)]}, generation=2)
        return open_file(path)

    write(tmp_path, "mars", TABLES)
    monkeypatch.setattr(counts, "open_file", moving)
    found = answer(Reader(str(tmp_path)), "mars", "hours", None, None, None)
    assert found is not None
    assert [row["count"] for row in found["rows"]] == [77]


def test_files_are_read_once_and_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []

    def counting(path: str) -> pa.NativeFile:
        reads.extend([path] if path.endswith(".parquet") else [])
        return open_file(path)

    write(tmp_path, "mars", TABLES)
    monkeypatch.setattr(counts, "open_file", counting)
    reader = Reader(str(tmp_path))
    for _ in range(3):
        ask(reader, "hours")
    assert len(reads) == 2
    small = Reader(str(tmp_path), most_bytes=1)
    ask(small, "hours")
    ask(small, "hours")
    assert len(reads) == 6


def test_streams_of_any_name_are_found(tmp_path: Path) -> None:
    for stream in ("mars", "..", "a/b", "wörter"):
        write(tmp_path, stream_name(tmp_path, stream), {"hours": [(NOON, 1)]}, stream)
    found = Reader(str(tmp_path)).states()
    assert sorted(overview(state)["event_type"] for state in found) == ["..", "a/b", "mars", "wörter"]


def stream_name(root: Path, stream: str) -> str:
    folder = Path(folder_of(str(root), stream))
    assert folder.parent == root / "_insight"
    assert stream_of(folder.name) == stream
    return folder.name.removeprefix("stream=")


class Page(HTMLParser):
    """What is on a page and what it would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.images: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        assert not any(name.startswith("on") for name in values)
        if tag in ("script", "link", "img", "iframe") or "src" in values:
            self.loads.append(tag)
        if tag == "svg":
            assert values["role"] == "img"
            self.images.append(values["aria-label"] or "")
        if tag not in ("meta", "rect", "path", "line"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert tag in ("rect", "path", "line") or self.open.pop() == tag


def test_report_is_one_page_that_needs_nothing_else(reader: Reader, tmp_path: Path) -> None:
    write(tmp_path, "evil", {"hours": [(NOON, 1)], "fields": [(NOON, "f", "<b>&", 1, 1, *TIMES)]}, "<script>")
    text = report(reader, reader.states(), 30, NOON * HOUR, "Notifications")
    page = Page(text)
    assert page.open == []
    assert page.loads == []
    assert "<b>&" not in text
    titles = [each.split(":")[0] for each in page.images]
    assert titles[-6:] == [
        "Notifications per hour",
        "Delay since date and time (5 %, 50 %, 95 %)",
        "Delay since date, time and step (5 %, 50 %, 95 %)",
        "Coverage",
        "Values of class",
        "Values of step",
    ]
    assert "Coverage: 2 cells of one degree, at most 4 notifications in one" in page.images


def test_tables_are_exported_for_other_programs(reader: Reader, tmp_path: Path) -> None:
    written = export(reader, reader.states(), 30, tmp_path / "out")
    assert sorted(path.name for path in written) == [
        "coverage.parquet", "delays.parquet", "fields.parquet", "hours.parquet", "seen.parquet",
    ]  # fmt: skip
    hours = pq.read_table(tmp_path / "out" / "hours.parquet")
    assert str(hours["hour"][0].as_py()) == "2026-07-17 06:00:00+00:00"
    assert sum(hours["count"].to_pylist()) == 9
    seen = {row["value"]: row["count"] for row in pq.read_table(tmp_path / "out" / "seen.parquet").to_pylist()}
    assert seen == {"od": 5, "rd": 3, "6": 3}
    coverage = pq.read_table(tmp_path / "out" / "coverage.parquet").to_pylist()
    assert {(row["lat"], row["lon"]): row["count"] for row in coverage} == {(50, 10): 3, (-90, -180): 4}


def test_a_field_with_very_many_values_has_a_bounded_answer(tmp_path: Path) -> None:
    chance = random.Random(1)
    rows = [
        (NOON - hour, "id", f"{hour}-{n}", chance.randrange(1, 9), 1, *TIMES) for hour in range(9) for n in range(50)
    ]
    write(tmp_path, "mars", {"hours": [(NOON - hour, 1) for hour in range(9)], "fields": rows})
    [found] = ask(Reader(str(tmp_path)), "fields")["fields"]
    assert len(found["values"]) == 100
    assert found["other"] + sum(each["count"] for each in found["values"]) == sum(row[3] for row in rows)


def test_many_numbers_are_counted_in_ranges_whatever_the_answer_leaves_out(tmp_path: Path) -> None:
    rows = [
        (NOON, "anomaly", None, 7, 5, *TIMES),
        *((NOON - n // 40, "anomaly", f"{n / 4:g}", 2, 1, *TIMES) for n in range(400)),
    ]
    write(tmp_path, "mars", {"hours": [(NOON - hour, 1) for hour in range(10)], "fields": rows})
    [found] = ask(Reader(str(tmp_path)), "fields")["fields"]
    assert found["bins"] == [{"from": low, "to": low + 10, "count": 80} for low in range(0, 100, 10)]
    assert found["other"] == 300 * 2 + 7


@pytest.mark.parametrize("values", [range(15), ["0600", *range(100, 120)], ["north", *range(20)]])
def test_few_numbers_and_texts_have_no_ranges(tmp_path: Path, values: list[object]) -> None:
    rows = [(NOON, "time", str(value), 2, 1, *TIMES) for value in values]
    write(tmp_path, "mars", {"hours": [(NOON, 1)], "fields": rows})
    [found] = ask(Reader(str(tmp_path)), "fields")["fields"]
    assert "bins" not in found
