"""What the tests of the audit share: a server with an archive, streams of every sort, and ways to damage both."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from aviso_server.config import load
from aviso_server.lake.files import DataFile, FileWriter
from aviso_server.lake.remove import Removed
from aviso_server.lake.schema import FileShape
from aviso_server.lake.table import Table, Tables
from aviso_server.log.sqlite.database import add_absent
from aviso_server.model.batch import columns_of
from aviso_server.spark.audit import Auditor, ServerLog
from aviso_server.spark.audit_comparison import Audit, StreamAudit
from aviso_server.spark.catalogue import event_type_of, fetch_catalogue
from pyspark_aviso.options import read_options
from pyspark_aviso.read import SequenceRange, read_range
from tests.harness import Server

__all__ = ["CONFIG", "Change", "archive", "audited", "damage", "file_with", "found", "lose_from_log", "publish"]


def event_type(base: str, **policy: Any) -> dict[str, Any]:
    return {
        "topic": {"base": base, "key_order": ["port", "level"]},
        "identifier": {
            "port": {"type": "StringHandler", "required": True},
            "level": {"type": "IntHandler", "required": True},
            "at": {"type": "TimeHandler", "required": False},
        },
        "storage_policy": policy,
    }


CONFIG: dict[str, Any] = {
    "application": {"host": "127.0.0.1", "port": 0},
    "notification_backend": {"kind": "sqlite", "sqlite": {"path": "log"}},
    "archive": {"enabled": True, "path": "lake", "work_path": "work", "interval": "1s", "spark": "local[1]"},
    "notification_schema_strict": False,
    "notification_schema": {
        "tide": event_type("tides"),
        "wind": event_type("winds", max_messages=20),
        "newest": event_type("newest", allow_duplicates=False),
        "wiped": event_type("wiped"),
    },
}

Change = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]
"""Rows of a file to other rows."""


def publish(server: Server, name: str, first: int, last: int, ports: int = 5) -> None:
    """Publish notifications whose level is their sequence, or the same for all of a port in `newest`."""
    pairs: list[tuple[dict[str, Any], Any]] = []
    for number in range(first, last + 1):
        level = 1 if name == "newest" else number
        pairs.append(({"port": f"port {number % ports}", "level": level, "at": "06:00"}, {"n": number}))
    server.client.publish_many(name, pairs)


def audited(session: SparkSession, server: Server, *names: str, slice_length: int = 1_000_000) -> Audit:
    """Audit the server and the archive in its directory."""
    settings = load({}, server.config_file)
    log = ServerLog(read_options({"url": server.url}), settings.event_types)
    tables = Tables(str(server.directory / "lake"))
    return Auditor(session, log, tables, lambda stream: Removed(), slice_length).run(names)


def found(stream: StreamAudit) -> list[tuple[str, str, int, int]]:
    """The defects without words."""
    return [(each.kind, each.where, each.first, each.last) for each in stream.defects]


def file_with(root: Path, stream: str, sequence: int) -> DataFile:
    """The file that covers a sequence."""
    return next(each for each in Table(str(root), stream).snapshot().files if each.first <= sequence <= each.last)


def archive(server: Server) -> Path:
    """Archive all of a server that has no archive of its own, with the archive's own writer."""
    root, options = str(server.directory / "lake"), read_options({"url": server.url})
    catalogue = fetch_catalogue(options)
    for stream, view in ServerLog(options, ()).streams(()).items():
        shape = FileShape(view.event_type, columns_of(event_type_of(view.event_type, catalogue)))
        table = Table(root, stream)
        writer = FileWriter(table.folder, 1, view.last, shape.schema)
        wanted = SequenceRange(view.event_type, 1, view.last)
        stored = read_range(options, wanted)
        files = [file for batch in stored for file in writer.add(shape.batch(batch))]
        table.commit([*files, *writer.finish()], watermark=view.last, after=0)
    return Path(root)


def damage(root: Path, stream: str, sequence: int, change: Change) -> None:
    """Put other rows in the place of one, in the file that has it."""
    file = Path(file_with(root, stream, sequence).path)
    table = pq.read_table(file, partitioning=None)
    rows: list[dict[str, Any]] = []
    for row in table.to_pylist():
        rows += change([row]) if row["sequence"] == sequence else [row]
    beside = file.with_name("_damaged")
    footer = {"aviso": pq.read_metadata(file).metadata[b"aviso"]}
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema).replace_schema_metadata(footer), beside)
    beside.replace(file)


def lose_from_log(server: Server, stream: str, sequence: int) -> None:
    """Remove a notification from the log of a stopped server, as if an administrator had, and tell nobody else."""
    with sqlite3.connect(server.directory / "log" / "log.sqlite") as database:
        (number,) = database.execute("SELECT id FROM catalogue WHERE name = ?", (stream,)).fetchone()
        database.execute(f"DELETE FROM stream_{number:d} WHERE sequence = ?", (sequence,))
        add_absent(database, number, sequence, sequence)  # else the log calls itself damaged
    database.close()


def with_payload(text: str) -> Change:
    return lambda rows: [{**row, "payload": text} for row in rows]


def with_identifier(**values: Any) -> Change:
    """The identifier with other values, still compact and sorted."""

    def change(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        changed = []
        for row in rows:
            members = {**json.loads(row["identifier"]), **values}
            changed.append({**row, "identifier": json.dumps(members, sort_keys=True, separators=(",", ":"))})
        return changed

    return change
