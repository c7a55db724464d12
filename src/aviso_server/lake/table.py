"""One Delta table per stream: commits, snapshots, and what may be removed from disk.

    <archive.path>/<stream>/_delta_log/…
    <archive.path>/<stream>/part-….parquet

A commit carries the files and, as the transaction of an application (`txn`), the stream's watermark: the last sequence
that was ever archived. Every commit is made for one version of the table: when another writer was faster, it is
refused, and whoever wanted it looks again. Nothing is ever overwritten.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Literal
from urllib.parse import quote, unquote

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Field, QueryBuilder, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.schema import PrimitiveType, StructType
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from aviso_server.errors import PipelineError
from aviso_server.lake import storage
from aviso_server.lake.files import ROW_GROUP_ROWS, Covered, DataFile, NewFile, covered_by, discard
from aviso_server.lake.ranges import Range, clipped, joined_ranges, without_ranges
from aviso_server.lake.schema import BBOX_KIND, CORNERS
from aviso_server.lake.storage import joined

__all__ = ["KEEP_HOURS", "Conflict", "Snapshot", "Table", "Tables", "VersionGone", "stream_folder", "streams"]

KEEP_HOURS = 24
"""Hours that files stay on disk after a commit has removed them: outside readers may still be at work on them."""

_WATERMARK = "aviso.watermark"
_CONFIGURATION = {
    "delta.checkpointInterval": "50",
    "delta.deletedFileRetentionDuration": f"interval {KEEP_HOURS} hours",
    "delta.logRetentionDuration": "interval 7 days",
}
_QUERYING = {
    "datafusion.execution.target_partitions": "1",  # whoever asks reads several parts at a time, each in order
    "datafusion.execution.batch_size": str(ROW_GROUP_ROWS),
}
_NEEDED = {"sequence": "long", "time_ns": "long", "topic": "string", "identifier": "string", "payload": "string"}
# Features that change neither what a file holds nor what a writer has to do. With others, such as deletion vectors, we
# would show rows that are gone.
_READER_FEATURES = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})
_WRITER_FEATURES = _READER_FEATURES | {"appendOnly", "invariants"}
_READER_VERSIONS, _WRITER_VERSIONS = (1, 3), (1, 2, 7)
_ALTERED = "somebody else has altered it"
_ANSI = re.compile(r"\x1b\[[0-9;]*m|↳")
_LONGEST_WORDS = 400
_MOST_ATTEMPTS = 20
_ESCAPE = "~"  # as the per cent sign in URLs, which delta-rs would take for one


class Conflict(PipelineError):
    """Another writer has changed the table in a way that the commit does not fit any more."""


class VersionGone(PipelineError):
    """A table is not known as it was at a time: it was not there yet, or files of that time are removed."""


class Snapshot(msgspec.Struct, frozen=True, dict=True):
    """A table as one version of it says."""

    version: int = -1
    files: tuple[DataFile, ...] = ()  # in order of their sequences
    watermark: int = 0  # the last sequence that was ever archived
    columns: Mapping[str, str] = {}  # with their types, as Delta names them
    refused: str | None = None  # why nothing can be written to it; None if nothing is in the way

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(each.name for each in self.files)

    @cached_property
    def missing(self) -> list[Range]:
        """The ranges up to the watermark that no file covers."""
        last = max([self.watermark, *(each.last for each in self.files)])
        return without_ranges([(1, last)], [(each.first, each.last) for each in self.files])

    @property
    def gapless(self) -> int:
        """The end of the part without a gap: a log may let go of everything up to here."""
        return self.missing[0][0] - 1 if self.missing else self.watermark

    def check_covered(self, stream: str, first: int, last: int) -> None:
        """PipelineError if a file is missing that should have something between two sequences."""
        for low, high in clipped([*self.missing, (self.watermark + 1, last)], first, last):
            raise PipelineError(
                f"sequences {low} to {high} of stream '{stream}' are in no file of its table: it has been altered, or "
                "commits were lost; 'aviso-server pipeline audit' says more"
            )


def stream_folder(root: str, stream: str) -> str:
    name = quote(stream, safe="").replace(_ESCAPE, "%7E").replace("%", _ESCAPE)
    if name[:1] in ("_", "."):  # would not be read as data
        name = f"{_ESCAPE}{ord(name[0]):02X}{name[1:]}"
    return joined(str(root), name)


def streams(root: str) -> dict[str, str]:
    """The streams of an archive and the folders of their tables, sorted."""
    folders = [each for each in storage.list_folder(str(root)) if each.is_folder and each.name[:1] not in ("_", ".")]
    tables = [each for each in folders if storage.list_folder(joined(each.path, "_delta_log"))]
    return dict(sorted((unquote(each.name.replace(_ESCAPE, "%")), each.path) for each in tables))


class Tables:
    """The tables of one archive; every thread of a process shares them, so that each knows what others read."""

    def __init__(self, root: str) -> None:
        self.root = str(root)
        self._lock = threading.Lock()
        self._known: dict[str, Table] = {}

    def of(self, stream: str) -> Table:
        """The table of a stream; it need not exist yet."""
        with self._lock:
            if stream not in self._known:
                self._known[stream] = Table(self.root, stream)
            return self._known[stream]

    def streams(self) -> list[str]:
        """The streams that have a table, sorted."""
        return list(streams(self.root))


class Table:
    """The table of one stream. Safe for threads."""

    def __init__(self, root: str, stream: str) -> None:
        self.stream = stream
        self.folder = stream_folder(root, stream)
        self._lock = threading.RLock()
        self._delta: DeltaTable | None = None
        self._snapshot = Snapshot()
        self._stamp: str | None = None  # of the commit that made it
        self._covered: dict[str, Covered] = {}  # by the names of files, which never change
        self._unread = False  # a footer could not be read, perhaps only for now
        self._held: Counter[str] = Counter()  # names of files that somebody reads

    def snapshot(self) -> Snapshot:
        """The table as it is now; without files if there is none. PipelineError if it cannot be read."""
        with self._lock, self._clearly():
            if self._delta is not None and storage.stamp(self._commit_file(self._snapshot.version)) != self._stamp:
                self._delta = None  # somebody has rolled commits back, or begun the table anew
            if self._delta is None:
                self._snapshot = Snapshot()
                try:
                    self._delta = self._open()
                except TableNotFoundError:
                    return self._snapshot
            else:
                self._delta.update_incremental()
            if self._delta.version() != self._snapshot.version or self._unread:
                self._unread = False
                self._snapshot = self._read(self._delta)
                self._stamp = storage.stamp(self._commit_file(self._snapshot.version))
            return self._snapshot

    def version_at(self, time_ns: int) -> int:
        """Return the version that was the newest at a time; VersionGone if it cannot be read (any more)."""
        moment = datetime.fromtimestamp(time_ns / 10**9, UTC)
        with self._lock, self._clearly():
            if self.snapshot().version < 0:
                raise VersionGone(f"nothing of stream '{self.stream}' was archived then")
            past = self._open()
            past.load_as_version(moment)
            version: int = past.version()
            made = self._made_at(version)
            if made > moment:  # delta-rs takes the oldest for whatever was before
                oldest = made.isoformat(timespec="milliseconds").replace("+00:00", "Z")
                raise VersionGone(f"the oldest version of its table that is kept is of {oldest}")
        with self.held(version):
            return version

    @contextmanager
    def held(self, version: int | None = None) -> Iterator[Snapshot]:
        """The table as it is now, or as it was at a version, kept readable while the context is open.

        VersionGone if files of that version are removed from disk.
        """
        with self._lock, self._clearly():
            snapshot = now = self.snapshot()
            if version is not None and version != now.version:
                snapshot = self._read(self._open(version))
                replaced = snapshot.names - now.names
                if not all(storage.stamp(joined(self.folder, name)) for name in replaced):
                    raise VersionGone(
                        f"files of that time are removed: what commits have replaced is kept for {KEEP_HOURS} hours"
                    )
            self._held.update(snapshot.names)
        try:
            yield snapshot
        finally:
            with self._lock:
                self._held.subtract(snapshot.names)
                self._held = +self._held

    def query(self, version: int) -> QueryBuilder:
        """Return what answers SQL about the table `notifications`: a version of this one, which has to be held."""
        with self._lock, self._clearly():
            delta = self._delta if self._delta is not None and self._delta.version() == version else self._open(version)
            return QueryBuilder(_QUERYING).register("notifications", delta)

    def stamp(self, version: int) -> str | None:
        """Return what tells a commit from another one of its number; None if it is not kept."""
        return storage.stamp(self._commit_file(version))

    def changed(self, version: int, stamp: str | None, now: int) -> list[Range] | None:
        """Return between which sequences rows were changed since a version; None if it is not kept, or another one.

        Merging changes none. Of a file that was removed all rows count, and of the one in its place.
        """
        if version == now and stamp == self.stamp(version):
            return []
        try:
            if stamp is None or stamp != self.stamp(version) or version > now:
                return None
            actions = pa.table(self._open(version).get_add_actions(flatten=True)).to_pylist()
            rows = {unquote(each["path"]): (each.get("min.sequence"), each.get("max.sequence")) for each in actions}
            found: list[Range] = []
            for number in range(version + 1, now + 1):
                for kind, action in self._actions(number):
                    if kind == "add":
                        said = json.loads(action.get("stats") or "{}")
                        limits = [said.get(which, {}).get("sequence") for which in ("minValues", "maxValues")]
                        rows[unquote(action["path"])] = (limits[0], limits[1])
                    if kind in ("add", "remove") and action.get("dataChange", True):
                        first, last = rows.get(unquote(action["path"]), (None, None))
                        found += [] if first is None or last is None else [(first, last)]
            return joined_ranges(found)
        except (DeltaError, OSError):
            return None

    def covered(self, file: DataFile) -> Covered:
        """What a file's footer says; of a file that others have written, that it has all rows."""
        with self._lock:
            if file.name not in self._covered:
                with storage.open_file(file.path) as content:
                    self._covered[file.name] = covered_by(pq.read_metadata(content)) or Covered(file.first, file.last)
            return self._covered[file.name]

    def commit(
        self,
        add: Sequence[NewFile],
        remove: Iterable[DataFile] = (),
        watermark: int | None = None,
        after: int | None = None,
        data_change: bool = True,
    ) -> Snapshot:
        """Add files, remove others and move the watermark, all at once and durably; the table as it is then.

        Conflict if a file to remove is gone already, or if the watermark is not `after` any more. New files of a commit
        that was certainly not made are discarded; while that is not certain they stay, and vacuum removes them later.
        """
        gone = list(remove)
        with self._lock, self._clearly():
            refused = True  # certainly no commit has named the new files yet
            try:
                for _ in range(_MOST_ATTEMPTS):
                    now = self.snapshot()
                    self._check_fit(now, gone, after)
                    refused = False
                    try:
                        self._write(now, add, gone, watermark, data_change)
                    except (DeltaError, OSError) as error:
                        made_by = self._author(now.version + 1, add)
                        if made_by == "others":
                            refused = True
                        if made_by != "us" and not isinstance(error, CommitFailedError):
                            raise
                        if made_by != "us":
                            continue  # somebody was faster
                    storage.settle(self._commit_file(now.version + 1))
                    return self.snapshot()
                raise Conflict(f"stream '{self.stream}': other writers were faster {_MOST_ATTEMPTS} times")
            except BaseException:
                if refused:
                    with suppress(OSError):
                        discard(add)
                raise

    def _check_fit(self, now: Snapshot, gone: Iterable[DataFile], after: int | None) -> None:
        """PipelineError if nothing can be written to the table, Conflict if a commit does not fit it any more."""
        if now.refused is not None:
            raise PipelineError(now.refused)
        if after is not None and now.watermark != after:
            raise Conflict(
                f"stream '{self.stream}' was to be archived from sequence {after + 1} on, and is archived up to "
                f"{now.watermark} already: another server or command archives it too"
            )
        if lost := [each.name for each in gone if each.name not in now.names]:
            raise Conflict(f"stream '{self.stream}': another writer has replaced {lost[0]}")

    def _author(self, version: int, add: Sequence[NewFile]) -> Literal["us", "others", "nobody"]:
        """Say who made a version: a store may have taken a commit and its answer got lost."""
        path = self._commit_file(version)
        if storage.stamp(path) is None:
            return "nobody"
        with storage.open_file(path) as content:
            text = content.read()
        return "us" if any(each.name.encode() in text for each in add) else "others"

    def vacuum(self, hours: int = KEEP_HOURS) -> int:
        """Remove files from disk that commits have removed so many hours ago; how many. Never those that are held."""
        with self._lock, self._clearly():
            self.snapshot()
            if self._delta is None:
                return 0
            names = [
                unquote(each)
                for each in self._delta.vacuum(
                    hours,
                    dry_run=True,
                    enforce_retention_duration=False,
                    full=hours > 0,  # what killed writers left; without waiting it may be a file on its way
                )
            ]
            done = [name for name in names if not self._held[name] and storage.stamp(joined(self.folder, name))]
            for name in done:
                storage.remove(joined(self.folder, name))
                self._covered.pop(name, None)
            return len(done)

    def _read(self, delta: DeltaTable) -> Snapshot:
        found = pa.table(delta.get_add_actions(flatten=True))
        rows = found.select([name for name in _FACTS if name in found.column_names]).to_pylist()
        files = [
            DataFile(
                first=row.get("min.sequence") or 0,
                last=row.get("max.sequence") or 0,
                path=joined(self.folder, unquote(row["path"])),
                bytes=row["size_bytes"],
                modified=row["modification_time"] / 1000,
                rows=1 if row["num_records"] is None else row["num_records"],  # not said: there may be some
                first_time=row.get("min.time_ns"),
                last_time=row.get("max.time_ns"),
                whole=whole,
            )
            for row, whole in zip(rows, _whole(found), strict=True)
        ]
        columns = {field.name: _kind(field.type) for field in delta.schema().fields}
        protocol = delta.protocol()
        strange = _strange(protocol.min_reader_version, protocol.reader_features, "reader")
        for name, kind in _NEEDED.items():
            if columns.get(name) != kind:
                strange = strange or f"column '{name}' is {columns.get(name) or 'gone'} and should be {kind}"
        if strange is not None:
            raise PipelineError(f"the table of stream '{self.stream}' cannot be read: {_ALTERED}; {strange}")
        strange = _strange(protocol.min_writer_version, protocol.writer_features, "writer")
        return Snapshot(
            version=delta.version(),
            files=tuple(self._placed(files)),
            watermark=delta.transaction_version(_WATERMARK) or 0,
            columns=columns,
            refused=strange
            and f"nothing can be archived to the table of stream '{self.stream}': {_ALTERED}; {strange}",
        )

    def _placed(self, files: list[DataFile]) -> list[DataFile]:
        """The files with what they cover. Where the rows of neighbours touch, statistics say it all."""
        empty = [self._spread(each) for each in files if not each.first]
        ordered = sorted(each for each in files if each.first)
        found = []
        for place, file in enumerate(ordered):
            before = ordered[place - 1].last if place else 0
            after = ordered[place + 1].first if place + 1 < len(ordered) else None
            touches = file.first == before + 1 and file.last + 1 == after
            found.append(file if touches and file.name not in self._covered else self._spread(file))
        return sorted([*found, *empty])

    def _spread(self, file: DataFile) -> DataFile:
        try:
            covered = self.covered(file)
        except (OSError, pa.ArrowException):
            self._unread = True
            return file  # whoever reads it says so
        return msgspec.structs.replace(file, first=covered.first, last=covered.last)

    def _write(
        self, now: Snapshot, add: Sequence[NewFile], gone: list[DataFile], watermark: int | None, data_change: bool
    ) -> None:
        moment = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [
            AddAction(each.name, each.bytes, {}, moment, data_change, each.statistics) for each in add
        ]
        properties = CommitProperties(
            max_commit_retries=0,  # for this version or not at all
            app_transactions=None if watermark is None else [Transaction(_WATERMARK, watermark, moment)],
        )
        columns = {name: kind for each in add for name, kind in each.columns.items()}
        self._covered |= {each.name: _known(each) for each in add if each.rows == each.last - each.first + 1}
        if self._delta is None:
            schema = Schema(_fields(columns))
            try:
                create_table_with_add_actions(
                    storage.table_uri(self.folder),
                    schema,
                    [each for each in actions if isinstance(each, AddAction)],
                    mode="error",
                    configuration=_CONFIGURATION,
                    storage_options=storage.delta_options(self.folder),
                    commit_properties=properties,
                )
            except DeltaError as error:
                if storage.list_folder(joined(self.folder, "_delta_log")):
                    raise CommitFailedError(str(error)) from None  # somebody has made the table meanwhile
                raise
            return
        news = {name: kind for name, kind in columns.items() if name not in now.columns}
        if news:
            self._delta.alter.add_columns(_fields(news))
            raise CommitFailedError("the table has got new columns")  # the commit is for the version after that
        if other := [name for name, kind in columns.items() if now.columns[name] != kind]:
            raise Conflict(f"stream '{self.stream}': column '{other[0]}' has another type in its table by now")
        removals = [RemoveAction(each.name, data_change, moment, each.bytes, {}) for each in gone]
        schema = self._delta.schema()
        self._delta.create_write_transaction([*removals, *actions], "append", schema, commit_properties=properties)

    def _open(self, version: int | None = None) -> DeltaTable:
        options = storage.delta_options(self.folder)
        return DeltaTable(storage.table_uri(self.folder), version=version, storage_options=options)

    def _made_at(self, version: int) -> datetime:
        """Return when a version was committed."""
        milliseconds = next(each["timestamp"] for kind, each in self._actions(version) if kind == "commitInfo")
        return datetime.fromtimestamp(milliseconds / 1000, UTC)

    def _actions(self, version: int) -> list[tuple[str, dict[str, Any]]]:
        """Return what a commit says, by kind."""
        with storage.open_file(self._commit_file(version)) as content:
            return [pair for line in content.read().splitlines() for pair in json.loads(line).items()]

    def _commit_file(self, version: int) -> str:
        return joined(self.folder, f"_delta_log/{version:020d}.json")

    @contextmanager
    def _clearly(self) -> Iterator[None]:
        """Whatever delta-rs complains about, as an error of ours that names the table."""
        try:
            yield
        except (CommitFailedError, PipelineError):
            raise
        except (DeltaError, OSError, ValueError) as error:
            words = " ".join(_ANSI.sub("", str(error)).split())[:_LONGEST_WORDS]
            if "Unsupported" in words:
                words = f"{_ALTERED}; it asks for more of Delta Lake than this server knows ({words})"
            raise PipelineError(f"the table of stream '{self.stream}' cannot be used: {words}") from None


_FACTS = (
    *("path", "size_bytes", "modification_time", "num_records"),
    *("min.sequence", "max.sequence", "min.time_ns", "max.time_ns"),
)
_NULLS = "null_count."


def _whole(actions: pa.Table) -> list[frozenset[str]]:
    """Return the columns without nulls of each file, as far as its statistics say; files that look alike share them."""
    names = [name for name in actions.column_names if name.startswith(_NULLS)]
    flags = [pc.fill_null(pc.equal(actions.column(name), 0), False).to_numpy() for name in names]
    rows = np.packbits(np.array(flags, np.bool_).reshape(len(names), actions.num_rows), axis=0)
    known: dict[bytes, frozenset[str]] = {}
    found = []
    for place, key in enumerate(row.tobytes() for row in np.ascontiguousarray(rows.T)):
        if key not in known:
            known[key] = frozenset(
                name.removeprefix(_NULLS) for name, each in zip(names, flags, strict=True) if each[place]
            )
        found.append(known[key])
    return found


def _fields(columns: Mapping[str, str]) -> list[Field]:
    corners = StructType([Field(name, PrimitiveType("float"), nullable=True) for name in CORNERS])
    return [
        Field(name, corners if kind == BBOX_KIND else PrimitiveType(kind), nullable=True)
        for name, kind in columns.items()
    ]


def _kind(of: object) -> str:
    """The name of a type; of a struct with its members, of other types that we never write a word that fits none."""
    if isinstance(of, StructType):
        return f"struct<{','.join(f'{each.name}:{_kind(each.type)}' for each in of.fields)}>"
    return str(getattr(of, "type", ""))


def _known(file: NewFile) -> Covered:
    return Covered(file.first, file.last)


def _strange(version: int, features: Sequence[str] | None, kind: Literal["reader", "writer"]) -> str | None:
    """What a table asks of its readers or writers that we do not know; None if nothing."""
    versions, known = (_READER_VERSIONS, _READER_FEATURES) if kind == "reader" else (_WRITER_VERSIONS, _WRITER_FEATURES)
    if unknown := sorted(set(features or ()) - known):
        return f"it has the {kind} feature '{unknown[0]}', which this server does not know"
    if version not in versions:
        return f"it has version {version} of the {kind} protocol, and this server knows {', '.join(map(str, versions))}"
    return None
