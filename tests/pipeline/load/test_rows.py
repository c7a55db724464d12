"""Rows of every form come out the same, with their lines and places, wherever files are cut."""

from __future__ import annotations

import gzip
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aviso_server.errors import PipelineError
from aviso_server.pipeline.load import texts
from aviso_server.pipeline.load.checking import Checker
from aviso_server.pipeline.load.csv_rows import csv_rows
from aviso_server.pipeline.load.inputs import Form, Input, find_inputs
from aviso_server.pipeline.load.rows import Chunk, chunks
from aviso_server.pipeline.load.splits import cut
from aviso_server.pipeline.load.taken import Wanted
from tests.pipeline.load.bad_rows import MARS, good_row
from tests.pipeline.load.scene import LATEST

GOOD = [good_row(number) for number in range(30)]


def found(names: list[str], tmp_path: Path, form: Form | None = None, stdin: bytes = b"") -> list[Input]:
    return find_inputs(names, BytesIO(stdin), tmp_path / "work" / "stdin", form)


def checked(file: Path, tmp_path: Path, size: int = 2**20) -> list[Chunk]:
    checker = Checker(MARS, Wanted(history=True), LATEST)
    return [chunk for split in cut(found([str(file)], tmp_path), size) for chunk in chunks(split, checker, MARS)]


def taken(found: list[Chunk]) -> list[tuple[bytes, bytes, str, int]]:
    return [
        row
        for chunk in found
        for row in zip(
            chunk.outcome.taken.identifiers,
            chunk.outcome.taken.payloads,
            chunk.outcome.taken.topics,
            chunk.outcome.taken.times,
            strict=True,
        )
    ]


def lines(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def cells(row: dict[str, Any]) -> dict[str, Any]:
    fields = {("identifier_time" if name == "time" else name): str(value) for name, value in row["identifier"].items()}
    return {**fields, "payload": json.dumps(row["payload"]), "time": row["time"]}


def csv_text(rows: list[dict[str, Any]]) -> str:
    table = [cells(row) for row in rows]
    quoted = [",".join('"' + value.replace('"', '""') + '"' for value in row.values()) for row in table]
    return "\r\n".join([",".join(table[0]), *quoted]) + "\r\n"


@pytest.fixture
def expected(tmp_path: Path) -> list[tuple[bytes, bytes, str, int]]:
    file = tmp_path / "expected.ndjson"
    file.write_bytes(lines(GOOD))
    rows = taken(checked(file, tmp_path))
    assert [json.loads(payload)["size"] for _, payload, _, _ in rows] == list(range(30))
    return rows


def test_every_form_means_the_same(tmp_path: Path, expected: list[Any]) -> None:
    table = pa.Table.from_pylist([cells(row) for row in GOOD])
    events = [
        {"specversion": "1.0", "type": "int.ecmwf.aviso.mars", "time": row["time"], "id": "mars@1",
         "data": {"identifier": row["identifier"], "payload": row["payload"]}}
        for row in GOOD
    ]  # fmt: skip
    (tmp_path / "a.json").write_text(json.dumps(GOOD))
    (tmp_path / "b.json").write_text(json.dumps(GOOD, indent=2))
    (tmp_path / "c.jsonl").write_bytes(b"\xef\xbb\xbf" + lines(GOOD).replace(b"\n", b"\r\n"))
    (tmp_path / "d.csv").write_text(csv_text(GOOD), newline="")
    (tmp_path / "e.ndjson").write_bytes(lines(events))
    (tmp_path / "f.ndjson.gz").write_bytes(gzip.compress(lines(GOOD)))
    (tmp_path / "g.csv.gz").write_bytes(gzip.compress(csv_text(GOOD).encode()))
    (tmp_path / "h.json").write_bytes(lines(GOOD).rstrip())
    (tmp_path / "i").write_bytes(gzip.compress(json.dumps(GOOD).encode()))
    pq.write_table(table, tmp_path / "j.parquet", row_group_size=7)
    for name in (
        "a.json",
        "b.json",
        "c.jsonl",
        "d.csv",
        "e.ndjson",
        "f.ndjson.gz",
        "g.csv.gz",
        "h.json",
        "i",
        "j.parquet",
    ):
        assert taken(checked(tmp_path / name, tmp_path, 500)) == expected, name


def test_a_table_of_identifiers_as_json(tmp_path: Path, expected: list[Any]) -> None:
    table = [
        {**row, "identifier": json.dumps(row["identifier"]), "payload": json.dumps(row["payload"])} for row in GOOD
    ]
    pq.write_table(pa.Table.from_pylist(table), tmp_path / "rows.parquet")
    assert taken(checked(tmp_path / "rows.parquet", tmp_path)) == expected


def test_times_to_the_nanosecond_in_a_table(tmp_path: Path) -> None:
    row = {**cells(GOOD[0]), "time_ns": 1_750_000_000_123_456_789}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "rows.parquet")
    assert [time for *_, time in taken(checked(tmp_path / "rows.parquet", tmp_path))] == [1_750_000_000_123_456_789]


@given(
    rows=st.lists(
        st.one_of(st.binary(max_size=20).map(lambda row: row.replace(b"\n", b"")), st.just(b"  ")), max_size=40
    ),
    size=st.integers(1, 60),
    end=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_every_line_is_in_one_piece_wherever_files_are_cut(
    tmp_path_factory: pytest.TempPathFactory, rows: list[bytes], size: int, end: bool
) -> None:
    file = tmp_path_factory.getbasetemp() / "cut.ndjson"
    content = b"\n".join(rows) + (b"\n" if end else b"")
    if content.startswith((b"\xef\xbb\xbf", b"\x1f\x8b")):
        return
    file.write_bytes(content)
    given = Input("cut", str(file), "ndjson", False, len(content))
    seen: list[tuple[bytes, int, int]] = []
    before = 0
    for split in cut([given], size):
        with file.open("rb") as opened:
            passed = 0
            for block in texts.lines(opened, split.start, split.end):
                seen += zip(block.rows, [before + line for line in block.lines], block.offsets(), strict=True)
                passed += block.passed
            before += passed
    expected, offset = [], 0
    for line, row in enumerate(content.split(b"\n"), 1):
        if row and not row.isspace():
            expected.append((row, line, offset))
        offset += len(row) + 1
    assert seen == expected


def test_a_row_that_would_fill_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "_BLOCK", 1000)
    monkeypatch.setattr(texts, "LONGEST", 5000)
    monkeypatch.setattr("aviso_server.pipeline.load.rows.LONGEST", 5000)
    file = tmp_path / "long.ndjson"
    file.write_bytes(lines(GOOD[:2]) + b'{"payload":"' + b"x" * 20_000 + b'"}\n' + lines(GOOD[2:4]))
    found = checked(file, tmp_path)
    assert len(taken(found)) == 4
    faults = [(chunk.lines[place], fault.code) for chunk in found for place, fault in chunk.outcome.faults.items()]
    assert [code for _, code in faults] == ["ROW_TOO_LARGE"]
    assert sum(chunk.passed for chunk in found) == 5


CSV = 'a,b\n1,2\n"x\n\ny",3\n\n4\n"5,6\n7,8\n9,10\n"q""r",11\n'


@pytest.mark.parametrize("size", [1, 5, 9, 1000])
def test_csv_rows_with_line_ends_in_quotes_and_forgotten_quotes(tmp_path: Path, size: int) -> None:
    file = tmp_path / "rows.csv"
    good = CSV.replace('"5,6\n', "")
    file.write_text(good)
    seen = []
    for split in cut(found([str(file)], tmp_path), size):
        assert split.columns == ("a", "b")
        with file.open("rb") as opened:
            for block in csv_rows(opened, split.start, split.end, 2):
                seen += [row for row in block.cells if row]
    assert seen == [["1", "2"], ["x\n\ny", "3"], ["7", "8"], ["9", "10"], ['q"r', "11"]]


def test_csv_rows_that_cannot_be_read_do_not_take_others_along(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(CSV)
    with file.open("rb") as opened:
        blocks = list(csv_rows(opened, 4, 1000, 2))
    rows = {
        line: row or block.faults[place]
        for block in blocks
        for place, (line, row) in enumerate(zip(block.lines, block.cells, strict=True))
    }
    assert rows == {
        1: ["1", "2"],
        2: ["x\n\ny", "3"],
        6: "1 values for 2 columns",
        7: "a quote is never closed",
        8: ["7", "8"],
        9: ["9", "10"],
        10: ['q"r', "11"],
    }


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b'[{"a": 1}, {"b": 2', "from line 1 on its brackets or quotes do not fit together"),
        (b'[1,\n{"a": "x}, 2]', "from line 1 on its brackets"),
        (b"[1] 2", "there is more after the end"),
        (b"nope", "does not begin with"),
    ],
)
def test_an_array_that_is_none_is_refused(content: bytes, complaint: str) -> None:
    with pytest.raises(PipelineError, match=complaint):
        list(texts.elements(BytesIO(content), "file.json"))


@pytest.mark.parametrize("block", [1, 2, 3, 7, 1000])
def test_elements_of_an_array_with_their_lines(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "_BLOCK", block)
    content = b' [\n {"a": "]}\\"",\n "b": [1, {}]},\n"x,y" , nope\n,[]]\n '
    found = [
        row
        for each in texts.elements(BytesIO(content), "f")
        for row in zip(each.rows, each.lines, each.offsets(), strict=True)
    ]
    assert [(row, line) for row, line, _ in found] == [
        (b'{"a": "]}\\"",\n "b": [1, {}]}', 2),
        (b'"x,y"', 4),
        (b"nope", 4),
        (b"[]", 5),
    ]
    assert all(content[offset:].startswith(row) for row, _, offset in found)
    assert list(texts.elements(BytesIO(b" [ ] "), "f")) == []


def test_files_folders_globs_and_standard_input_are_found_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    (folder / "deep").mkdir(parents=True)
    for name in ("b.ndjson", "a.csv", "deep/c.json.gz", "_hidden.json", "notes.txt", ".d.json"):
        content = b"a,b\n" if name.endswith("csv") else b"{}\n"
        (folder / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    names = [str(folder), "-", str(tmp_path / "in" / "n*.txt")]
    inputs = found(names, tmp_path, stdin=b"[]")
    assert [(Path(each.name).name, each.form, each.packed) for each in inputs] == [
        ("a.csv", "csv", False),
        ("b.ndjson", "ndjson", False),
        ("c.json.gz", "ndjson", True),
        ("-", "json", False),
        ("notes.txt", "ndjson", False),
    ]


@pytest.mark.parametrize(
    ("names", "complaint"),
    [
        (["nowhere.json"], "there is no file 'nowhere.json'"),
        (["*.nothing"], "there is no file"),
        (["-", "-"], "only once"),
    ],
)
def test_what_cannot_be_found_is_named(tmp_path: Path, names: list[str], complaint: str) -> None:
    with pytest.raises(PipelineError, match=complaint):
        found(names, tmp_path)


def test_a_file_is_loaded_once(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a\n")
    with pytest.raises(PipelineError, match="named twice"):
        found([str(tmp_path), str(tmp_path / "a.csv")], tmp_path)


def test_columns_that_mean_nothing_are_refused_before_anything_is_done(tmp_path: Path) -> None:
    from aviso_server.pipeline.load.tables import check_columns

    with pytest.raises(
        PipelineError, match=r"column 'klass' is no field of event type 'mars'; accepted: class, date, .*"
    ):
        check_columns(["klass", "date"], MARS, "a.csv")
