"""Columns of a table over the years: fields come, go and change, and every reader goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import shapely
from deltalake import DeltaTable

from aviso_server.lake.compact import Compactor
from aviso_server.lake.files import FileWriter
from aviso_server.lake.schema import FileShape, geo_footer, table_columns
from aviso_server.lake.table import Table, Tables
from aviso_server.model.batch import Column, columns_of
from aviso_server.model.event_type import GenericType
from tests.lake.scene import FLOOD, event_type, rows_in, sequences, stored, write

TEXT = event_type(severity={"type": "StringHandler", "required": False})
WIND = event_type(wind={"type": "FloatHandler", "required": False})


def test_columns_that_came_went_and_changed_are_in_one_table(tmp_path: Path) -> None:
    write(tmp_path, 1, 10, columns=TEXT)
    write(tmp_path, 11, 20, columns=WIND)
    table = write(tmp_path, 21, 30)
    before = rows_in(tmp_path, "flood")
    assert table.snapshot().columns["severity"] == "string"
    assert table.snapshot().columns["severity__long"] == "long"
    assert table.snapshot().columns["wind"] == "double"
    for merged in (False, True):
        rows = DeltaTable(table.folder).to_pyarrow_table().sort_by("sequence")
        expected = [number % 7 + 1 for number in range(1, 31)]
        assert rows["severity"].to_pylist() == [*map(str, expected[:10]), *[None] * 20]
        assert rows["severity__long"].to_pylist() == [*[None] * 10, *expected[10:]]
        assert rows["wind"].to_pylist() == [None] * 30
        if not merged:
            for _ in Compactor(Tables(str(tmp_path))).run(everything=True):
                pass
    (file,) = table.snapshot().files
    assert {"severity", "severity__long", "wind"} <= set(pq.read_schema(file.path).names)
    assert rows_in(tmp_path, "flood").equals(before)
    write(tmp_path, 31, 40, columns=TEXT)
    assert DeltaTable(table.folder).to_pyarrow_table().sort_by("sequence")["severity"][-1].as_py() == "6"
    assert sequences(tmp_path) == list(range(1, 41))


def test_columns_keep_their_names_unless_the_table_has_another_one_of_that_name() -> None:
    fixed = Column("sequence", "integer")
    fields = [Column("a", "integer", "a"), Column("B", "text", "B"), Column("c d", "text", "c d")]
    known = {"sequence": "long", "a": "string", "b": "string", "c__d": "long"}

    def names(known: dict[str, str]) -> list[str]:
        return [each.name for each in table_columns([fixed, *fields], known)]

    assert names({}) == ["sequence", "a", "B", "c__d"]
    assert names(known) == ["sequence", "a__long", "B__string", "c__d__string"]
    assert names({**known, "a__long": "long"})[1] == "a__long"
    assert names({**known, "a__long": "string"})[1] == "a__long_2"
    assert FLOOD.name == "flood"


def test_two_fields_never_share_a_column() -> None:
    fields = [Column("a", "integer", "a"), Column("a__long", "text", "a__long"), Column("a b", "text", "a b"),
              Column("a__b", "text", "a__b")]  # fmt: skip
    for known in ({}, {"a": "string"}, {"a__b": "long", "a": "string"}):
        found = [each.name.lower() for each in table_columns(fields, known)]
        assert len(set(found)) == len(found)


def geo(path: str) -> dict[str, Any]:
    """The footer of GeoParquet."""
    found: dict[str, Any] = json.loads(pq.read_metadata(path).metadata[b"geo"])
    return found


def test_files_with_shapes_say_what_geoparquet_wants(tmp_path: Path) -> None:
    (file,) = write(tmp_path, 1, 10).snapshot().files
    footer = geo(file.path)
    assert (footer["version"], footer["primary_column"]) == ("1.1.0", "polygon")
    assert "crs" not in footer["columns"]["polygon"], "without it: WGS 84, longitude first"
    assert footer["columns"] == {
        "polygon": {
            "encoding": "WKB",
            "geometry_types": ["Polygon"],
            "covering": {"bbox": {corner: ["bbox", corner] for corner in ("xmin", "ymin", "xmax", "ymax")}},
        }
    }
    place = pq.read_metadata(file.path).schema
    statistics = {place.column(number).path: number for number in range(len(place))}
    assert pq.read_metadata(file.path).row_group(0).column(statistics["bbox.xmax"]).statistics.has_min_max
    assert geo_footer(FileShape("thing", columns_of(GenericType("thing"))).schema) is None


def test_the_covering_contains_every_shape(tmp_path: Path) -> None:
    table = Table(str(tmp_path), "flood")
    shape = FileShape("flood", columns_of(FLOOD))
    rows = pa.Table.from_batches([shape.batch(stored(list(range(1, 20))))])
    for row in rows.to_pylist():
        west, south, east, north = shapely.from_wkb(row["polygon"]).bounds
        box = row["bbox"]
        assert box["xmin"] <= west <= east <= box["xmax"]
        assert box["ymin"] <= south <= north <= box["ymax"]
        assert all(value * 4 == int(value * 4) for value in box.values())
    assert table.snapshot().version == -1


def test_a_table_from_before_gets_the_covering_without_being_rewritten(tmp_path: Path) -> None:
    table = Table(str(tmp_path), "flood")
    shape = FileShape("flood", columns_of(FLOOD))
    schema = shape.schema.remove(shape.schema.get_field_index("bbox"))
    writer = FileWriter(table.folder, 1, 10, schema)
    batch = pa.Table.from_batches([shape.batch(stored(list(range(1, 11))))]).drop_columns("bbox").to_batches()[0]
    table.commit([*writer.add(batch), *writer.finish()], watermark=10, after=0)
    before = table.snapshot().names
    write(tmp_path, 11, 20)
    assert before < table.snapshot().names
    outside = DeltaTable(table.folder).to_pyarrow_table().sort_by("sequence")
    assert outside["bbox"].null_count == 10
    for _ in Compactor(Tables(str(tmp_path))).run(everything=True):
        pass
    (file,) = table.snapshot().files
    assert "covering" in geo(file.path)["columns"]["polygon"]
    assert pq.read_table(file.path, columns=["bbox"])["bbox"].null_count == 0, "a row without a box would not be found"


def test_a_column_of_that_name_is_left_alone(tmp_path: Path) -> None:
    named = event_type(bbox={"type": "StringHandler", "required": False})
    names = {each.field: each.name for each in table_columns(columns_of(named), {})}
    assert names["bbox"] == "bbox__string"
    shape = FileShape("flood", columns_of(FLOOD), {"BBox": "string"})
    assert "bbox" not in shape.schema.names
    assert "covering" not in json.loads(geo_footer(shape.schema) or "")["columns"]["polygon"]
