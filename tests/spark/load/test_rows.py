"""Rows of every form come out the same, with their lines and places, wherever files are cut."""

from __future__ import annotations

import bz2
import gzip
import json
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from aviso_server.errors import PipelineError
from aviso_server.spark.load import row_texts
from aviso_server.spark.load.blocks import Block, CheckTask, check_here, lines_and_bytes_before, part_path
from aviso_server.spark.load.check_job import check_all
from aviso_server.spark.load.inputs import Form, Input, find_inputs, listed, read_pieces
from aviso_server.spark.load.row_checks import Checker, Wanted
from aviso_server.spark.load.row_texts import Chunk, Texts, check_columns, csv_rows, elements, line_texts, text_chunks
from tests.spark.load.bad_rows import MARS, good_row
from tests.spark.load.scene import LATEST

GOOD = [good_row(number) for number in range(30)]
ODD = b'{"a":"\xff"}\r\n\n  \nnope\n\n{"identifier":\xc3\xa9}\n[1,2]\n"x"'


def found(names: list[str], tmp_path: Path, form: Form | None = None, stdin: bytes = b"") -> list[Input]:
    return find_inputs(names, BytesIO(stdin), tmp_path / "work" / "stdin", form)


@pytest.fixture(params=["by Spark", "in this process"])
def reader(request: pytest.FixtureRequest) -> SparkSession | None:
    """Who reads text files; None for this process."""
    session: SparkSession | None = request.getfixturevalue("spark") if request.param == "by Spark" else None
    return session


class Checked:
    """Files that were read and checked, on Spark if there is one."""

    def __init__(
        self, spark: SparkSession | None, names: list[str], work: Path, wanted: Wanted, size: int = 2**20
    ) -> None:
        self.work = work
        self.files = found(names, work) if spark is None else listed(spark, found(names, work))
        task = CheckTask(MARS, wanted, LATEST, str(work), faults=True)
        if spark is None:
            self.blocks = check_here(self.files, task, lambda done, total: None)
        else:
            self.blocks = check_all(spark, self.files, task, lambda done, total: None, size)

    def taken(self) -> dict[str, list[tuple[bytes, bytes, str, int]]]:
        """Identifier, payload, topic and time of the rows that were taken, by the names of their files."""
        rows: dict[str, list[Any]] = {each.name: [] for each in self.files}
        for block in self.blocks:
            table = pq.read_table(part_path(self.work, "history", block.file, block.start))
            columns = (table.column(name).to_pylist() for name in ("identifier", "payload", "topic", "time_ns"))
            rows[self.files[block.file].name] += zip(*columns, strict=True)
        return rows

    def refused(self) -> list[tuple[int, str, str]]:
        """Line, text and code of the rows that were refused."""
        rows = []
        for block, (before, _) in self._placed():
            with pa.OSFile(str(part_path(self.work, "faults", block.file, block.start))) as source:
                table = pa.ipc.open_file(source).read_all()
            columns = (table.column(name).to_pylist() for name in ("line", "raw", "code"))
            rows += [(before + line, raw, code) for line, raw, code in zip(*columns, strict=True)]
        return rows

    def items(self) -> list[tuple[int, int, bytes]]:
        """Line, offset and payload of the rows that were taken to be published."""
        rows = []
        for block, (before, size) in self._placed():
            table = pq.read_table(part_path(self.work, "items", block.file, block.start))
            columns = (table.column(name).to_pylist() for name in ("line", "offset", "payload"))
            rows += [(before + line, size + offset, payload) for line, offset, payload in zip(*columns, strict=True)]
        return rows

    def _placed(self) -> Iterator[tuple[Block, tuple[int, int]]]:
        return zip(self.blocks, lines_and_bytes_before(self.blocks), strict=True)


def lines(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def cells(row: dict[str, Any]) -> dict[str, Any]:
    fields = {("identifier_time" if name == "time" else name): str(value) for name, value in row["identifier"].items()}
    return {**fields, "payload": json.dumps(row["payload"]), "time": row["time"]}


def csv_text(rows: list[dict[str, Any]]) -> str:
    table = [cells(row) for row in rows]
    quoted = [",".join('"' + value.replace('"', '""') + '"' for value in row.values()) for row in table]
    return "\r\n".join([",".join(table[0]), *quoted]) + "\r\n"


def zstd(content: bytes) -> bytes:
    return pa.Codec("zstd").compress(content, asbytes=True)


def expected_rows() -> list[tuple[bytes, bytes, str, int]]:
    checker = Checker(MARS, Wanted(history=True), LATEST)
    taken = checker.lines(lines(GOOD).splitlines()).taken
    texts = ([each.decode() for each in column] for column in (taken.identifiers, taken.payloads))
    return list(zip(*texts, taken.topics, taken.times, strict=True))


def test_every_form_and_compression_means_the_same(reader: SparkSession | None, tmp_path: Path) -> None:
    folder = tmp_path / "in [x] 1?"
    folder.mkdir()
    table = pa.Table.from_pylist([cells(row) for row in GOOD])
    events = [
        {"specversion": "1.0", "type": "int.ecmwf.aviso.mars", "time": row["time"], "id": "mars@1",
         "data": {"identifier": row["identifier"], "payload": row["payload"]}}
        for row in GOOD
    ]  # fmt: skip
    contents = {
        "a.json": json.dumps(GOOD).encode(),
        "b.json": json.dumps(GOOD, indent=2).encode(),
        "c.jsonl": b"\xef\xbb\xbf" + lines(GOOD).replace(b"\n", b"\r\n"),
        "d.csv": csv_text(GOOD).encode(),
        "e.ndjson": lines(events),
        "f.ndjson.gz": gzip.compress(lines(GOOD[:9])) + gzip.compress(lines(GOOD[9:])),
        "g.csv.gz": gzip.compress(csv_text(GOOD).encode()),
        "h.json": lines(GOOD).rstrip(),
        "i": gzip.compress(json.dumps(GOOD).encode()),
        "k.csv.bz2": bz2.compress(csv_text(GOOD).encode()),
        "l.ndjson.bz2": bz2.compress(lines(GOOD)),
        "m.json.zst": zstd(json.dumps(GOOD).encode()),
        "n.ndjson.gz": lines(GOOD),  # only its name says that it is compressed
        "_o.ndjson": lines(GOOD),
        "p {a,b}*.csv": csv_text(GOOD).encode(),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    pq.write_table(table, folder / "j.parquet", row_group_size=7)
    names = [str(folder / name) for name in (*contents, *([] if reader is None else ["j.parquet"]))]
    expected = expected_rows()
    for name, rows in Checked(reader, names, tmp_path / "work", Wanted(history=True), 500).taken().items():
        assert rows == expected, name


def test_a_table_of_identifiers_as_json(spark: SparkSession, tmp_path: Path) -> None:
    table = [
        {**row, "identifier": json.dumps(row["identifier"]), "payload": json.dumps(row["payload"])} for row in GOOD
    ]
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(table), file)
    assert Checked(spark, [str(file)], tmp_path / "work", Wanted(history=True)).taken() == {str(file): expected_rows()}


@pytest.mark.parametrize("exact", ["time_ns", "time"])
def test_times_to_the_nanosecond_in_a_table(spark: SparkSession, tmp_path: Path, exact: str) -> None:
    moment = 1_750_000_000_123_456_789
    row = {**cells(GOOD[0]), exact: moment}
    table = pa.Table.from_pylist([row])
    if exact == "time":
        table = table.set_column(table.column_names.index("time"), "time", pa.array([moment], pa.timestamp("ns")))
    pq.write_table(table, tmp_path / "rows.parquet")
    checked = Checked(spark, [str(tmp_path / "rows.parquet")], tmp_path / "work", Wanted(history=True))
    assert [time for rows in checked.taken().values() for *_, time in rows] == [moment]


def test_tables_with_different_columns_are_loaded_together(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    without_payload = [{name: value for name, value in cells(row).items() if name != "payload"} for row in GOOD[:3]]
    pq.write_table(pa.Table.from_pylist([cells(row) for row in GOOD]), folder / "a.parquet")
    pq.write_table(pa.Table.from_pylist(without_payload), folder / "b.parquet")
    checked = Checked(spark, [str(folder)], tmp_path / "work", Wanted(given=True))
    assert [block.summary.rows for block in checked.blocks] == [30, 3]
    assert [line for line, _, _ in checked.refused()] == [1, 2, 3], "a payload is required"
    pq.write_table(pa.Table.from_pylist([{**cells(GOOD[0]), "klass": "od"}]), folder / "c.parquet")
    with pytest.raises(PipelineError, match=r"c\.parquet': column 'klass' is no field"):
        Checked(spark, [str(folder)], tmp_path / "work", Wanted(given=True))


def test_a_store_is_listed_and_read_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    java = spark._jsc.hadoopConfiguration()  # a file system that only Spark knows
    java.set("fs.viewfs.mounttable.rows.link./in", tmp_path.as_uri() + "/in")
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "b 1.csv").write_text(csv_text(GOOD))
    (tmp_path / "in" / "deep" / "a.json").write_text(json.dumps(GOOD))
    (tmp_path / "in" / "c.ndjson.gz").write_bytes(gzip.compress(lines(GOOD)))
    checked = Checked(spark, ["viewfs://rows/in"], tmp_path / "work", Wanted(history=True))
    assert [each.name.rpartition("/in/")[2] for each in checked.files] == ["b 1.csv", "c.ndjson.gz", "deep/a.json"]
    for name, rows in checked.taken().items():
        assert rows == expected_rows(), name
    with pytest.raises(PipelineError, match="'viewfs://rows/in/nothing' cannot be read"):
        Checked(spark, ["viewfs://rows/in/nothing"], tmp_path / "work", Wanted(history=True))


@given(content=st.lists(st.sampled_from([b"a", b"\n", b"\r\n", b"}", b"\xef\xbb\xbf", b"bc"])).map(b"".join))
@settings(max_examples=150, deadline=None)
def test_a_file_is_cut_the_same_however_much_is_read_at_a_time(content: bytes) -> None:
    with NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        given = Input(file.name, file.name, "ndjson")
        whole = content.removeprefix(b"\xef\xbb\xbf")
        for separator in (b"\n", b"}"):
            expected = whole.removesuffix(separator).split(separator) if whole else []
            for size in (3, 4, 7, 1000):
                pieces = [piece for some in read_pieces(given, separator, size) for piece in some]
                assert pieces == expected, size


def test_a_text_that_cannot_be_unpacked_is_named(reader: SparkSession | None, tmp_path: Path) -> None:
    name = str(tmp_path / "rows.ndjson.gz")
    Path(name).write_bytes(gzip.compress(lines(GOOD * 2000))[:-100])
    with pytest.raises(PipelineError, match=r"rows\.ndjson\.gz.* cannot be read|end of input stream"):
        Checked(reader, [name], tmp_path / "work", Wanted(given=True))


@given(
    rows=st.lists(
        st.one_of(st.binary(max_size=20).map(lambda row: row.replace(b"\n", b"")), st.just(b"  ")), max_size=40
    ),
    sizes=st.lists(st.integers(1, 9), min_size=1),
)
@settings(max_examples=150, deadline=None)
def test_every_line_has_its_number_and_place(rows: list[bytes], sizes: list[int]) -> None:
    blocks: list[list[bytes]] = []
    left = list(rows)
    while left:
        size = sizes[len(blocks) % len(sizes)]
        blocks.append(left[:size])
        left = left[size:]
    seen: list[tuple[bytes, int, int]] = []
    for block in line_texts(blocks):
        seen += zip(block.rows, block.lines, block.offsets(), strict=True)
    expected, offset = [], 0
    for line, row in enumerate(rows, 1):
        if row and not row.isspace():
            expected.append((row, line, offset))
        offset += len(row) + 1
    assert seen == expected


@pytest.mark.parametrize("size", [50, 300, 2**20])
@pytest.mark.parametrize("end", [b"", b"\n"], ids=["open", "closed"])
def test_every_line_is_read_once_wherever_spark_cuts_a_file(
    reader: SparkSession | None, tmp_path: Path, size: int, end: bytes
) -> None:
    content = ODD + b"\n" + lines(GOOD[:2]).rstrip() + end
    (tmp_path / "odd.ndjson").write_bytes(content)
    checked = Checked(reader, [str(tmp_path / "odd.ndjson")], tmp_path / "work", Wanted(given=True), size)
    expected = [
        (line, row.rstrip(b"\r").decode(errors="backslashreplace"))
        for line, row in enumerate(ODD.split(b"\n"), 1)
        if row.strip()
    ]
    assert [(line, raw) for line, raw, _ in checked.refused()] == expected
    first = content.index(b'{"identifier": {')
    second = content.index(b'{"identifier": {', first + 1)
    count = len(ODD.split(b"\n"))
    assert [(line, offset) for line, offset, _ in checked.items()] == [(count + 1, first), (count + 2, second)]


def test_a_row_that_would_fill_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_texts, "LONGEST", 5000)
    rows = [*lines(GOOD[:2]).splitlines(), b'{"payload":"' + b"x" * 20_000 + b'"}', *lines(GOOD[2:4]).splitlines()]
    given = Input("long.ndjson", "long.ndjson", "ndjson")
    checker = Checker(MARS, Wanted(history=True), LATEST)
    found: list[Chunk] = list(text_chunks(given, True, [rows], checker, MARS))
    assert sum(len(chunk.outcome.taken.places) for chunk in found) == 4
    faults = [(chunk.lines[place], fault.code) for chunk in found for place, fault in chunk.outcome.faults.items()]
    assert faults == [(3, "ROW_TOO_LARGE")]
    assert found[-1].lines_end == 5
    table = Input("long.csv", "long.csv", "csv", columns=("class", "payload"))
    found = list(text_chunks(table, True, [[b"class,payload", b"od," + b"x" * 6000, b"rd,1"]], checker, MARS))
    assert next(fault.code for chunk in found for fault in chunk.outcome.faults.values()) == "ROW_TOO_LARGE"


CSV = 'a,b\n1,2\n"x\n\ny",3\n\n4\n"5,6\n7,8\n9,10\n"q""r",11\n'


def in_blocks(content: str, size: int) -> Iterator[Texts]:
    """The lines of a text, so many together."""
    rows = content.encode().removesuffix(b"\n").split(b"\n")
    return line_texts([rows[at : at + size] for at in range(0, len(rows), size)], blanks=True)


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_csv_rows_with_line_ends_in_quotes_and_forgotten_quotes(size: int) -> None:
    good = CSV.replace('"5,6\n', "").removeprefix("a,b\n")
    seen = [row for block in csv_rows(in_blocks(good, size), 2) for row in block.cells if row]
    assert seen == [["1", "2"], ["x\n\ny", "3"], ["7", "8"], ["9", "10"], ['q"r', "11"]]


@pytest.mark.parametrize("size", [1, 2, 1000])
def test_csv_rows_that_cannot_be_read_do_not_take_others_along(size: int) -> None:
    rows = {
        line: row or block.faults[place]
        for block in csv_rows(in_blocks(CSV.removeprefix("a,b\n"), size), 2)
        for place, (line, row) in enumerate(zip(block.texts.lines, block.cells, strict=True))
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


@pytest.mark.parametrize("size", [200, 2**20])
@pytest.mark.parametrize("broken", [False, True], ids=["lines", "line ends in quotes"])
def test_large_csv_files_are_split_where_rows_end(
    reader: SparkSession | None, tmp_path: Path, size: int, broken: bool
) -> None:
    text = csv_text(GOOD)
    if broken:
        text = text.replace('{""size""', '{\n\n""size""')
    (tmp_path / "rows.csv").write_text(text, newline="")
    checked = Checked(reader, [str(tmp_path / "rows.csv")], tmp_path / "work", Wanted(given=True), size)
    assert (len(checked.blocks) > 5) is (size == 200 and not broken and reader is not None)
    step = 3 if broken else 1
    assert [line for line, _, _ in checked.items()] == [2 + step * number for number in range(30)]
    assert all(text.encode()[offset - 2 : offset] == b"\r\n" for _, offset, _ in checked.items())
    assert [json.loads(payload)["size"] for _, _, payload in checked.items()] == list(range(30))


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
        list(elements([content], "file.json"))


@pytest.mark.parametrize("block", [1, 2, 3, 7, 1000])
def test_elements_of_an_array_with_their_lines(block: int) -> None:
    content = b' [\n {"a": "]}\\"",\n "b": [1, {}]},\n"x,y" , nope\n,[]]\n '
    blocks = [content[at : at + block] for at in range(0, len(content), block)]
    found = [row for each in elements(blocks, "f") for row in zip(each.rows, each.lines, each.offsets(), strict=True)]
    assert [(row, line) for row, line, _ in found] == [
        (b'{"a": "]}\\"",\n "b": [1, {}]}', 2),
        (b'"x,y"', 4),
        (b"nope", 4),
        (b"[]", 5),
    ]
    assert all(content[offset:].startswith(row) for row, _, offset in found)
    assert list(elements([b" [ ] "], "f")) == []


def test_an_array_that_is_none_stops_the_load(reader: SparkSession | None, tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_bytes(b'[{"identifier": {}},\n {"b": 2')
    with pytest.raises(PipelineError, match=r"rows\.json' is not a JSON array: from line 1 on its brackets"):
        Checked(reader, [str(tmp_path / "rows.json")], tmp_path / "work", Wanted(given=True))


def test_files_folders_globs_and_standard_input_are_found_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    (folder / "deep").mkdir(parents=True)
    for name in ("b.ndjson", "a.csv", "deep/c.json.gz", "_hidden.json", "notes.txt", ".d.json"):
        content = b"a,b\n" if name.endswith("csv") else b"{}\n"
        (folder / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    names = [str(folder), "-", str(tmp_path / "in" / "n*.txt")]
    inputs = found(names, tmp_path, stdin=b"[]")
    assert [(Path(each.name).name, each.form, each.packed) for each in inputs] == [
        ("a.csv", "csv", ""),
        ("b.ndjson", "ndjson", ""),
        ("c.json.gz", "ndjson", ".gz"),
        ("-", "json", ""),
        ("notes.txt", "ndjson", ""),
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


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        (
            "a.ndjson.lz4",
            b"\x04\x22\x4d\x18....",
            "compressed as .lz4, which Spark cannot read; accepted: .bz2, .gz, .zst",
        ),
        ("a.csv", b"", "the first line must name the columns"),
        ("a.csv", b"class,class\n", "there are two columns 'class'"),
        ("a.parquet", b"class", "is not a Parquet file"),
        ("a.parquet.gz", gzip.compress(b"PAR1", mtime=0), "is a packed Parquet file"),
        ("a.ndjson.gz", gzip.compress(b"x" * 100, mtime=0)[:20], "cannot be read"),
    ],
)
def test_files_that_cannot_be_read_are_refused_before_spark_is_asked(
    tmp_path: Path, name: str, content: bytes, complaint: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(PipelineError, match=complaint):
        found([str(tmp_path / name)], tmp_path)


def test_columns_that_mean_nothing_are_refused_before_anything_is_done() -> None:
    with pytest.raises(
        PipelineError, match=r"column 'klass' is no field of event type 'mars'; accepted: class, date, .*"
    ):
        check_columns(["klass", "date"], MARS, "a.csv", history=False)


PLAIN_HEADER = ("class", "domain", "date", "time", "stream", "step", "payload")
PLAIN_ROW = b'od,g,20250601,1200,oper,6,"{""size"": 1}"'


def test_fields_are_columns_of_their_own_name_and_have_their_default() -> None:
    given = Input("a.csv", "a.csv", "csv", columns=PLAIN_HEADER)
    check_columns(PLAIN_HEADER, MARS, "a.csv", history=False)
    checker = Checker(MARS, Wanted(given=True), LATEST)
    rows = [",".join(PLAIN_HEADER).encode(), PLAIN_ROW]
    (chunk,) = text_chunks(given, True, [rows], checker, MARS)
    assert chunk.outcome.faults == {}
    assert json.loads(chunk.outcome.taken.given[0]) == {
        "class": "od",
        "domain": "g",
        "date": "20250601",
        "time": "1200",
        "stream": "oper",
        "step": "6",
        "expver": "0001",
    }


def test_history_says_which_column_a_field_called_time_needs() -> None:
    complaint = "'time' is the time of the notification.*put the field into a column 'identifier_time'"
    with pytest.raises(PipelineError, match=complaint):
        check_columns(PLAIN_HEADER, MARS, "a.csv", history=True)
    check_columns([*PLAIN_HEADER, "time_ns"], MARS, "a.csv", history=True)
    check_columns([*PLAIN_HEADER, "identifier_time"], MARS, "a.csv", history=True)
