"""Archives of random notifications, and the tables of insight made in the plainest way: row by row, from nothing."""

from __future__ import annotations

import json
import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aviso_server.insight.counts import HOUR, VALUES, State, day_text
from aviso_server.lake.files import FileWriter
from aviso_server.lake.schema import FileShape
from aviso_server.lake.table import Table
from aviso_server.model.batch import STORED, columns_of, record_batch
from aviso_server.model.event_type import EventType, GenericType, build_event_type
from aviso_server.model.notification import Notification

__all__ = ["BASE", "EVENT_TYPES", "FORECAST", "Rows", "archive", "forecast_with", "made_up", "plain", "stored_rows"]

BASE = 1_790_000_000 * 10**9  # 2026-09-21T13:33:20Z
Rows = dict[str, list[tuple[Any, ...]]]


def _event_type(name: str, identifier: dict[str, Any]) -> EventType:
    built, problems = build_event_type(name, {"identifier": identifier})
    assert built is not None, problems
    return built


FORECAST: dict[str, Any] = {
    "class": {"type": "StringHandler", "required": True},
    "date": {"type": "DateHandler", "canonical_format": "%Y-%m-%d", "required": True},
    "time": {"type": "TimeHandler", "required": True},
    "step": {"type": "IntHandler", "required": True},
    "anomaly": {"type": "FloatHandler", "required": True},
    "polygon": {"type": "PolygonHandler", "required": True},
}
EVENT_TYPES: dict[str, EventType | GenericType] = {
    "forecast": _event_type("forecast", FORECAST),
    "buoys": _event_type(
        "buoys",
        {
            "network": {"type": "StringHandler", "required": True},
            "day": {"type": "DateHandler", "required": True},
            "point_cloud": {"type": "PointCloudHandler", "required": True},
        },
    ),
    "anything": GenericType("anything"),
}


def forecast_with(fields: Iterable[str]) -> EventType:
    """The event type as it was when it had only these fields."""
    return _event_type("forecast", {field: FORECAST[field] for field in FORECAST if field in set(fields)})


def made_up(chance: random.Random, name: str, sequence: int) -> Notification:
    """A random notification, within a few hours of its sequence; not all have all fields."""
    time = BASE + sequence * 400 * 10**9 + chance.randrange(-7200, 7200) * 10**9 + chance.randrange(10**9)
    day = datetime.fromtimestamp(time // 10**9, UTC).strftime("%Y%m%d")
    identifier: dict[str, Any]
    if name == "forecast":
        identifier = {
            "class": chance.choice(["od", "rd", f"x{chance.randrange(120)}", "ø" * 201 + "a"]),
            "date": chance.choice([day, "19790101", "20270301"]),
            "time": chance.choice(["00", "0600", "12:30", "2359"]),
            "step": chance.choice([0, 6, 240, -3, 2**62]),
            "anomaly": chance.choice([0.5, 1e-7, 100]),
            "polygon": box(chance),
        }
        identifier = {field: value for field, value in identifier.items() if field == "class" or chance.random() < 0.85}
    elif name == "buoys":
        pairs = [[chance.uniform(-90, 90), chance.choice([-180, 180, 0.5, chance.uniform(-180, 180)])] for _ in "abc"]
        identifier = {"network": f"n{chance.randrange(3)}", "day": day, "point_cloud": pairs}
    else:
        identifier = {f"k{chance.randrange(40)}": chance.choice(["a", "b", "c d"]) for _ in range(4)}
    event_type = forecast_with(identifier) if name == "forecast" else EVENT_TYPES[name]
    draft = event_type.check(identifier, {"n": sequence})
    return Notification(sequence, time, draft.topic, draft.identifier, draft.payload, draft.box)


def box(chance: random.Random) -> str:
    south, west = chance.randrange(-900, 850) / 10, chance.randrange(-1800, 1700) / 10
    north, east = south + chance.choice([0.1, 1, 2.5, 5]), west + chance.choice([0.1, 1, 3.7, 10])
    corners = [(south, west), (south, east), (north, east), (north, west), (south, west)]
    return "(" + ",".join(f"{lat:.1f},{lon:.1f}" for lat, lon in corners) + ")"


def archive(root: Path, name: str, notifications: Sequence[Notification], first: int, last: int) -> None:
    """A file of the archive, written as the archive's own writer does, in place of those that cover the same."""
    event_type = EVENT_TYPES[name]
    shape = FileShape(event_type.name, columns_of(event_type))
    table = Table(str(root), event_type.base)
    writer = FileWriter(table.folder, first, last, shape.schema)
    stored = record_batch(STORED, event_type.name, notifications)
    files = list(writer.add(shape.batch(stored))) if notifications else []
    now = table.snapshot()
    replaced = [each for each in now.files if first <= each.first and each.last <= last]
    table.commit([*files, *writer.finish()], replaced, watermark=max(last, now.watermark))


def plain(name: str, notifications: Iterable[Notification]) -> Rows:
    """The tables as the documentation describes them."""
    hours: dict[int, list[Notification]] = defaultdict(list)
    for each in notifications:
        hours[each.time // HOUR].append(each)
    found: Rows = {table: [] for table in ("hours", "fields", "delays", "cells", "coverage")}
    daily: Counter[tuple[str, int, int]] = Counter()
    for hour, rows in hours.items():
        sequences, times = [each.sequence for each in rows], [each.time for each in rows]
        found["hours"].append((hour, len(rows), min(sequences), max(sequences), min(times), max(times)))
        found["fields"] += _field_rows(name, hour, rows)
        delays = Counter(delay for each in rows for delay in _delays(name, each))
        found["delays"] += [(hour, *delay, count) for delay, count in delays.items()]
        cells = Counter(cell for each in rows for cell in _cells(name, each))
        found["cells"] += [(hour, *cell, count) for cell, count in cells.items()]
        for (lat, lon), count in cells.items():
            daily[day_text(hour // 24), lat, lon] += count
    found["coverage"] = [(*place, count) for place, count in daily.items()]
    return {table: sorted(rows, key=repr) for table, rows in found.items()}


def _field_rows(name: str, hour: int, rows: Sequence[Notification]) -> list[tuple[Any, ...]]:
    times: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for each in rows:
        for field, value in json.loads(each.identifier).items():
            if field not in ("polygon", "point_cloud"):
                times[field][value[:200]].append(each.time)
    fields = sorted(times, key=lambda field: (-sum(map(len, times[field].values())), field))
    shown: list[tuple[Any, ...]] = []
    for field in fields[:20] if name == "anything" else fields:
        ranked = sorted(times[field], key=lambda value: (-len(times[field][value]), value))
        for value in ranked[:VALUES]:
            seen = times[field][value]
            shown.append((hour, field, value, len(seen), 1, min(seen), max(seen)))
        if others := [time for value in ranked[VALUES:] for time in times[field][value]]:
            shown.append((hour, field, None, len(others), len(ranked) - VALUES, min(others), max(others)))
    return shown


def _delays(name: str, notification: Notification) -> list[tuple[str, int]]:
    identifier = json.loads(notification.identifier)
    day = identifier.get("day" if name == "buoys" else "date")
    if name == "anything" or day is None:
        return []
    midnight = datetime.strptime(day.replace("-", ""), "%Y%m%d").replace(tzinfo=UTC)
    clock = identifier.get("time", "0000")
    run = int(midnight.timestamp()) + int(clock[:2]) * 3600 + int(clock[2:]) * 60
    published = notification.time // 10**9
    found = [("run", _rounded(published - run))]
    if "step" in identifier and abs(int(identifier["step"])) <= 1_000_000:
        found.append(("valid", _rounded(published - run - int(identifier["step"]) * 3600)))
    return found


def _rounded(seconds: int) -> int:
    digits = f"{abs(seconds):b}"
    kept = int(digits[:6].ljust(len(digits), "0"), 2)
    return -kept if seconds < 0 else kept


def _cells(name: str, notification: Notification) -> set[tuple[int, int]]:
    if name == "buoys":
        pairs = json.loads(notification.identifier)["point_cloud"]
        return {(min(89, math.floor(lat)), min(179, math.floor(lon))) for lat, lon in pairs}
    if notification.box is None:
        return set()
    south, west, north, east = notification.box
    return {
        (lat, lon)
        for lat in range(math.floor(south), max(math.floor(south), math.ceil(north) - 1) + 1)
        for lon in range(math.floor(west), max(math.floor(west), math.ceil(east) - 1) + 1)
    }


def stored_rows(root: Path, state: State) -> Rows:
    """What the tables on disk hold, without using the code that reads them for the server."""
    import pyarrow.parquet as pq

    folder = root / "_insight" / f"stream={state.stream}"
    found: Rows = {table: [] for table in ("hours", "fields", "delays", "cells", "coverage")}
    for day in state.days:
        for table in day.tables:
            content = pq.read_table(folder / f"{table}-{day_text(day.day)}-{day.generation:08d}.parquet")
            rows = [tuple(row.values()) for row in content.to_pylist()]
            found[table] += [(day_text(day.day), *row) for row in rows] if table == "coverage" else rows
    return {table: sorted(rows, key=repr) for table, rows in found.items()}
