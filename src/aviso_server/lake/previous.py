"""The previous format of the archive, read once to make tables of it.

    <archive.path>/<stream>/00000000000000000001-00000000000000250000.parquet
    <archive.path>/<stream>/_tombstones/deleted-00000000000000000042, wiped-…
    <archive.path>/<stream>/_absences/deleted-…, overtaken-…-…, record.json

A file covered the sequences in its name and hid those that it covered; small files said what had been deleted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from aviso_server.errors import PipelineError
from aviso_server.lake.files import Covered, DataFile, FileWriter, NewFile, discard, read_rows
from aviso_server.lake.ranges import Range, clipped, joined_ranges
from aviso_server.lake.remove import Removed
from aviso_server.lake.schema import conformed, joined_schema, table_columns, with_bbox
from aviso_server.lake.storage import Entry, joined, list_folder, open_file, remove
from aviso_server.lake.table import Table, Tables
from aviso_server.model.batch import BOX, Column, ColumnKind

__all__ = ["Migrated", "migrate", "previous_watermarks", "refuse_previous"]

_FILE = re.compile(r"(\d{20})-(\d{20})\.parquet", re.ASCII)
_MARK = re.compile(r"(deleted|wiped)-(\d{20})", re.ASCII)
_ABSENCE = re.compile(r"(deleted|overtaken)-(\d{20})(?:-(\d{20}))?", re.ASCII)
_LEFTOVERS = ("_tombstones", "_absences", "_status.json")
_WIDE = ("sequence", "time_ns", "topic", "identifier", "payload")
_FIXED = frozenset({*_WIDE, "time", "event_type", *(column.name for column in BOX)})
_KINDS: dict[pa.DataType, ColumnKind] = {
    pa.int64(): "integer",
    pa.float64(): "number",
    pa.string(): "text",
    pa.binary(): "shape",
}
_MOST_FILES = 32  # in a commit
_MOST_ROWS = 2_000_000

Told = Callable[[str, int, int], None]
"""Called with a stream, the last sequence that is in its table, and the last one there is."""


class Migrated(msgspec.Struct, frozen=True):
    """What came of a stream."""

    last: int  # the newest sequence
    rows: int  # notifications in its table
    files: int  # of the previous format
    early: Removed = Removed()  # what was deleted before it could be archived


class _Absences(msgspec.Struct, frozen=True):
    wiped_through: int = 0
    deleted: tuple[Range, ...] = ()
    overtaken: tuple[Range, ...] = ()


def previous_watermarks(root: str) -> dict[str, int]:
    """Return the last sequence of every stream that still has files of the previous format."""
    return {stream: files[-1].last for stream, (_, files) in _streams(root).items()}


def refuse_previous(root: str) -> None:
    """Raise PipelineError if an archive has the previous format, in whole or in part."""
    if _streams(root):
        raise PipelineError(
            f"the archive in {root} has the format of an earlier version: run 'aviso-server pipeline migrate'; until "
            "then nothing is archived or read from it, and the log keeps everything"
        )


def migrate(tables: Tables, told: Told = lambda stream, done, last: None) -> Iterator[tuple[str, Migrated]]:
    """Make a table of every stream, and remove the files of the previous format when all of it is there.

    Goes on where it was when it is begun again. A stream's old files are removed when the caller asks for the next one,
    so that it can note what was deleted early before. Every file is read back and compared before it is committed.
    """
    for stream, (folder, files) in _streams(tables.root).items():
        table = tables.of(stream)
        reasons, marks = _reasons(folder)
        for done in _copied(table, files, reasons, marks):
            told(stream, done, files[-1].last)
        snapshot = table.snapshot()
        early = Removed(
            marks.wiped_through if marks.wiped_through > snapshot.watermark else 0,
            tuple(each for each in marks.deleted if each > snapshot.watermark),
        )
        yield stream, Migrated(snapshot.watermark, sum(each.rows for each in snapshot.files), len(files), early)
        _clear(folder)  # the caller has noted by now what was deleted early


def _copied(table: Table, files: Iterable[DataFile], reasons: Covered, marks: Removed) -> Iterator[int]:
    """Copy what the table does not have yet; yields how far it is after each commit."""
    made: list[NewFile] = []
    before = reached = table.snapshot().watermark
    columns: dict[str, str] = dict(table.snapshot().columns)
    for file in files:
        if file.last <= reached:
            continue
        made += _copy(table, file, max(file.first, reached + 1), reasons, marks, columns)
        columns |= {name: kind for each in made for name, kind in each.columns.items()}
        reached = file.last
        if len(made) >= _MOST_FILES or sum(each.rows for each in made) >= _MOST_ROWS:
            table.commit(made, watermark=reached, after=before)
            before, made = reached, []
            yield reached
    if made:
        table.commit(made, watermark=reached, after=before)
        yield reached


def _copy(
    table: Table, file: DataFile, first: int, reasons: Covered, marks: Removed, known: Mapping[str, str]
) -> list[NewFile]:
    try:
        with open_file(file.path) as content:
            rows = read_rows(content)
    except (OSError, pa.ArrowException) as error:
        raise PipelineError(f"{file.path} cannot be read: {error}; mend it with the earlier version first") from None
    sequences = rows.column("sequence")
    own = pc.and_(pc.greater_equal(sequences, first), pc.less_equal(sequences, file.last))
    rows = _renamed(marks.without(rows.filter(own)), known)

    def explain(low: int, high: int) -> Covered:
        parts = {name: tuple(clipped(getattr(reasons, name), low, high)) for name in ("deleted", "wiped", "overtaken")}
        return Covered(low, high, **parts)

    writer = FileWriter(table.folder, first, file.last, rows.schema, explain)
    made: list[NewFile] = []
    try:
        for batch in rows.to_batches():
            made += writer.add(batch)
        made += writer.finish()
    except BaseException:
        writer.abandon()
        raise
    copies = [_wide(each) for each in made]
    if not pa.concat_tables(copies).combine_chunks().equals(rows.select(_WIDE).combine_chunks()):
        discard(made)
        raise PipelineError(f"what was written of {file.path} is not what was read")
    return made


def _renamed(rows: pa.Table, known: Mapping[str, str]) -> pa.Table:
    """Give columns the names that they have in the table: some may have had another type."""
    rows = rows.replace_schema_metadata(None)
    old = [Column(field.name, _KINDS[field.type], field.name) for field in rows.schema if field.name not in _FIXED]
    names = {one.name: other.name for one, other in zip(old, table_columns(old, known), strict=True)}
    rows = rows.rename_columns([names.get(name, name) for name in rows.column_names])
    boxes = {column.name for column in BOX}
    fields = [pa.field(each.name, pa.float32() if each.name in boxes else each.type) for each in rows.schema]
    return conformed(rows.cast(pa.schema(fields)), with_bbox(joined_schema([pa.schema(fields)]), known))


def _wide(file: NewFile) -> pa.Table:
    with open_file(file.path) as content:
        return read_rows(content, _WIDE)


def _streams(root: str) -> dict[str, tuple[str, list[DataFile]]]:
    """Yield the streams with files of the previous format: their folders, and the files that count, in order."""
    found = {}
    for each in list_folder(str(root)):
        if each.is_folder and each.name[:1] not in ("_", "."):
            files = _visible(list_folder(each.path))
            if files:
                found[unquote(each.name)] = each.path, files
    return dict(sorted(found.items()))


def _visible(entries: Iterable[Entry]) -> list[DataFile]:
    """Return the files that no other one covers."""
    files = []
    for each in entries:
        name = _FILE.fullmatch(each.name)
        if name is not None and not each.is_folder and 0 < int(name[1]) <= int(name[2]):
            files.append(DataFile(int(name[1]), int(name[2]), each.path, each.bytes, each.modified))
    kept: list[DataFile] = []
    for file in sorted(files, key=lambda file: (file.first, -file.last)):
        if not kept or file.last > kept[-1].last:
            kept.append(file)
    return kept


def _reasons(folder: str) -> tuple[Covered, Removed]:
    """Return why sequences are missing, and which ones must not be copied."""
    through, deleted = 0, set[int]()
    for each in list_folder(joined(folder, "_tombstones")):
        if (mark := _MARK.fullmatch(each.name)) is not None:
            through = max(through, int(mark[2])) if mark[1] == "wiped" else through
            deleted |= {int(mark[2])} if mark[1] == "deleted" else set()
    known = _Absences()
    noted: dict[str, list[Range]] = {"deleted": [], "overtaken": []}
    for each in list_folder(joined(folder, "_absences")):
        if each.name == "record.json":
            with open_file(each.path) as file:
                known = msgspec.json.decode(file.read(), type=_Absences)
        elif (note := _ABSENCE.fullmatch(each.name)) is not None:
            noted[note[1]].append((int(note[2]), int(note[3] or note[2])))
    wiped = max(through, known.wiped_through)
    return Covered(
        1,
        1,
        tuple(joined_ranges([*((each, each) for each in deleted), *known.deleted, *noted["deleted"]])),
        ((1, wiped),) if wiped else (),
        tuple(joined_ranges([*known.overtaken, *noted["overtaken"]])),
    ), Removed(through, tuple(sorted(each for each in deleted if each > through)))


def _clear(folder: str) -> None:
    """Remove everything of the previous format, the files last: they say that there is something to do."""
    for name in _LEFTOVERS:
        remove(joined(folder, name))
    entries = list_folder(folder)
    for each in entries:
        if each.name.startswith("_draft-"):
            remove(each.path)
    for each in entries:
        if _FILE.fullmatch(each.name) is not None:
            remove(each.path)
    if not list_folder(folder):
        remove(folder)  # the table has another name
