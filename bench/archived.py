"""An archive of millions of notifications, made column by column: what cold replay and its rivals read."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from aviso_server.lake.files import ROW_GROUP_ROWS, FileWriter
from aviso_server.lake.table import Table
from aviso_server.model.event_type import EventType, build_event_type

__all__ = ["DEFINITION", "EVENT_TYPE", "FIRST_TIME", "NAME", "SPACING", "STEPS", "make"]

NAME = "flood"
STEPS = 10_000  # one step is 0.01 % of everything
FIRST_TIME = 1_750_000_000 * 10**9
SPACING = 10**9 // 100  # nanoseconds from one notification to the next
FILE_ROWS = 250_000

_REGIONS = ("north", "south", "east", "west")
DEFINITION: dict[str, Any] = {
    "topic": {"base": NAME, "key_order": ["region", "date", "time", "step"]},
    "identifier": {
        "region": {"type": "EnumHandler", "values": list(_REGIONS), "required": False},
        "date": {"type": "DateHandler", "required": False},
        "time": {"type": "TimeHandler", "required": False},
        "step": {"type": "IntHandler", "range": [0, STEPS - 1], "required": False},
        "depth": {"type": "FloatHandler", "required": False},
        "polygon": {"type": "PolygonHandler", "required": False},
    },
}
_RING = np.dtype([("order", "u1"), ("kind", "<u4"), ("rings", "<u4"), ("vertices", "<u4"), ("places", "<f8", (5, 2))])

Numbers = npt.NDArray[np.float64]


def _built() -> EventType:
    event_type, problems = build_event_type(NAME, DEFINITION)
    if event_type is None:
        raise ValueError(str(problems))
    return event_type


EVENT_TYPE = _built()


def make(root: str, rows: int, seed: int = 1) -> None:
    """An archive with so many notifications of one stream, in files as they are after compaction."""
    target = Table(root, NAME)
    chance = np.random.default_rng(seed)
    files = []
    for first in range(1, rows + 1, FILE_ROWS):
        last = min(rows, first + FILE_ROWS - 1)
        table = _table(first, last, chance)
        writer = FileWriter(target.folder, first, last, table.schema, whole=True)
        for batch in table.to_batches(max_chunksize=ROW_GROUP_ROWS):
            list(writer.add(batch))
        files += writer.finish()
    target.commit(files, watermark=rows, after=0)


def _table(first: int, last: int, chance: np.random.Generator) -> pa.Table:
    count = last - first + 1
    sequences = np.arange(first, last + 1, dtype=np.int64)
    times = FIRST_TIME + sequences * SPACING
    seconds = pa.array(times // 10**9, pa.int64()).cast(pa.timestamp("s"))
    region = pa.array(np.array(_REGIONS, dtype=object)[chance.integers(0, len(_REGIONS), count)], pa.string())
    date, hour = pc.strftime(seconds, "%Y%m%d"), pc.strftime(seconds, "%H00")
    step = pa.array(chance.integers(0, STEPS, count), pa.int64())
    depth = pa.array(chance.integers(0, 4_000, count) / 4 + 0.25, pa.float64())
    lats, lons = _rings(count, chance)
    step_text = step.cast(pa.string())
    identifier = _joined(
        *('{"date":"', date, '","depth":"', depth.cast(pa.string()), '","polygon":[', _ring_text(lats, lons)),
        *('],"region":"', region, '","step":"', step_text, '","time":"', hour, '"}'),
    )
    keys = pa.array([row.tobytes().hex() for row in chance.integers(0, 256, (count, 24), dtype=np.uint8)], pa.string())
    columns: dict[str, pa.Array] = {
        "sequence": pa.array(sequences),
        "time_ns": pa.array(times),
        "time": pa.array(times // 1000, pa.int64()).cast(pa.timestamp("us", tz="UTC")),
        "event_type": pa.repeat(pa.scalar(NAME), count),
        "topic": _joined(NAME + ".", region, ".", date, ".", hour, ".", step_text),
        "region": region,
        "date": date,
        "identifier_time": hour,
        "step": step,
        "depth": depth,
        "polygon": _wkb(lats, lons),
        "box_min_lat": pa.array(_outward(lats.min(axis=1), -np.inf)),
        "box_min_lon": pa.array(_outward(lons.min(axis=1), -np.inf)),
        "box_max_lat": pa.array(_outward(lats.max(axis=1), np.inf)),
        "box_max_lon": pa.array(_outward(lons.max(axis=1), np.inf)),
        "identifier": identifier,
        "payload": _joined('{"location":"s3://products/floods/', date, "/", keys, '","size":', step_text, "}"),
    }
    return pa.table(columns)


def _rings(count: int, chance: np.random.Generator) -> tuple[Numbers, Numbers]:
    """Small quadrilaterals all over the map, as latitudes and longitudes with two decimals."""
    middle_lat, middle_lon = chance.integers(-6_000, 6_000, count), chance.integers(-17_000, 17_000, count)
    lats = middle_lat[:, None] + chance.integers(1, 40, (count, 4)) * np.array((-1, -1, 1, 1))
    lons = middle_lon[:, None] + chance.integers(1, 40, (count, 4)) * np.array((-1, 1, 1, -1))
    closed = [0, 1, 2, 3, 0]
    return lats[:, closed] / 100.0, lons[:, closed] / 100.0


def _ring_text(lats: Numbers, lons: Numbers) -> pa.Array:
    """The pairs of rings as identifiers have them."""
    texts = [[pa.array(each[:, place]).cast(pa.string()) for each in (lats, lons)] for place in range(lats.shape[1])]
    return pc.binary_join_element_wise(*(_joined("[", lat, ",", lon, "]") for lat, lon in texts), ",")


def _wkb(lats: Numbers, lons: Numbers) -> pa.Array:
    rings = np.empty(len(lats), dtype=_RING)
    rings["order"], rings["kind"], rings["rings"], rings["vertices"] = 1, 3, 1, lats.shape[1]
    rings["places"][:, :, 0], rings["places"][:, :, 1] = lons, lats
    offsets = np.arange(len(lats) + 1, dtype=np.int32) * _RING.itemsize
    return pa.Array.from_buffers(pa.binary(), len(lats), [None, pa.py_buffer(offsets), pa.py_buffer(rings.tobytes())])


def _outward(values: Numbers, direction: float) -> npt.NDArray[np.float32]:
    """The nearest float32 that does not lie further inward."""
    near = values.astype(np.float32)
    inward = near > values if direction < 0 else near < values
    return np.where(inward, np.nextafter(near, np.float32(direction)), near)


def _joined(*parts: str | pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")
