"""The jobs of commands that need Spark: done by a running server's process, or by the command with Spark of its own.

Requests and answers are JSON, so that both ways are one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from aviso_server.errors import PipelineError
from aviso_server.lake.removal_journal import read_removals
from aviso_server.model.event_type import EventType, GenericType, build_event_type
from aviso_server.model.lateness import Learned, Watched
from pyspark_aviso.options import Options

if TYPE_CHECKING:  # Spark is large: a command that asks a server does without it
    from pyspark.sql import SparkSession

    from aviso_server.lake.remove import Removed

__all__ = [
    "SETTINGS",
    "AuditRequest",
    "Heard",
    "LearnReport",
    "LearnRequest",
    "definition_of",
    "read_definition",
    "run_job",
]

SETTINGS: Mapping[str, Mapping[str, str]] = {
    "load": {
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    },
    "audit": {
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    },
    "learn": {"spark.sql.shuffle.partitions": "2"},
}
"""What a Spark that is started for a job is told."""

Heard = Callable[[str, int, int], None]
"""Called with a step, how much of it is done, and how much there is."""


class AuditRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be audited. Travels as JSON."""

    streams: list[str]  # or event types; all if there are none
    repair: bool
    server: Options
    root: str  # of the archive
    journal: str  # the file with removals that the archive has not heard of; none if the server is elsewhere
    event_types: list[dict[str, Any]]  # as configured
    verdicts: list[str]  # folders that keep the verdict, where the server looks for it


class LearnRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Whose rhythm is to be learned. Travels as JSON."""

    root: str  # of the archive
    folder: str  # for what is learned of an archive that is elsewhere
    watched: list[Watched]


class LearnReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was learned. Travels as JSON."""

    learned: list[Learned]


def run_job(session: Callable[[], SparkSession], name: str, request: dict[str, Any], heard: Heard) -> dict[str, Any]:
    """Do the job of this name and return its answer; PipelineError says what is wrong with a request."""
    try:
        match name:
            case "load":
                from aviso_server.spark.load.inputs import LoadRequest
                from aviso_server.spark.load.loading import load

                kind = read_definition(request["event_type"])
                wanted = msgspec.convert(request["load"], LoadRequest)
                return _plain(load(session(), kind, wanted, heard))
            case "audit":
                return _audit(session, msgspec.convert(request, AuditRequest), heard)
            case "learn":
                return _plain(_learn(session, msgspec.convert(request, LearnRequest)))
    except (KeyError, msgspec.ValidationError) as error:
        raise PipelineError(f"the request for the job '{name}' is wrong: {error}") from None
    raise PipelineError(f"name: '{name}' is not a job; accepted: {', '.join(SETTINGS)}")


def _audit(session: Callable[[], SparkSession], request: AuditRequest, heard: Heard) -> dict[str, Any]:
    """Return the audit as JSON values, and as `repaired` what came of each range that was to be mended."""
    from aviso_server.lake.previous import refuse_previous
    from aviso_server.lake.table import Tables
    from aviso_server.spark.audit import Auditor, Repairer, ServerLog, to_mend
    from aviso_server.spark.audit_comparison import keep_verdict
    from aviso_server.spark.tasks import run_tasks

    kinds = [read_definition(each) for each in request.event_types]
    server = ServerLog(request.server, [kind for kind in kinds if isinstance(kind, EventType)])
    server.streams(request.streams)  # before Spark starts: a name may be wrong
    tables = Tables(request.root)
    refuse_previous(request.root)
    auditor = Auditor(session(), server, tables, lambda stream: _pending(Path(request.journal), stream))

    def told(stream: str, done: int, total: int) -> None:
        heard(stream, done, total)

    found, mended = auditor.run(request.streams, told), None
    if request.repair and (wanted := to_mend(found)):
        mended = list(Repairer(tables, request.server, partial(run_tasks, session())).run(wanted))
        found = auditor.run(request.streams, told)
    if not request.streams and server.lists_streams and any(each.archive for each in found.streams.values()):
        for place in request.verdicts:
            keep_verdict(place, found)
    return {**found.describe(), "repaired": msgspec.to_builtins(mended)}


def _pending(journal: Path, stream: str) -> Removed:
    """Return what the server has noted and the archive has not heard of yet; nothing if the server is elsewhere."""
    from aviso_server.lake.remove import Removed

    own = [each for each in read_removals(journal) if each.stream == stream]
    return Removed(
        max((each.sequence for each in own if each.kind == "wipe"), default=0),
        tuple(each.sequence for each in own if each.kind == "delete"),
    )


def _learn(session: Callable[[], SparkSession], request: LearnRequest) -> LearnReport:
    from aviso_server.lake.previous import refuse_previous
    from aviso_server.lake.table import Tables
    from aviso_server.spark.lateness_model import LearnedFiles, learn

    refuse_previous(request.root)
    files = LearnedFiles(request.root, Path(request.folder))
    learned = []
    for each in request.watched:
        learned.append(learn(session(), Tables(request.root), each, int(time.time())))
        files.put(learned[-1])
    return LearnReport(learned=learned)


def definition_of(kind: EventType | GenericType) -> dict[str, Any]:
    """Return an event type as JSON values."""
    if isinstance(kind, GenericType):
        return {"name": kind.name, "definition": None}
    topic = {"base": kind.base, "key_order": list(kind.key_order)}
    return {
        "name": kind.name,
        "definition": {**kind.describe(), "topic": topic},
        "max_polygon_vertices": kind.max_polygon_vertices,
    }


def read_definition(members: dict[str, Any]) -> EventType | GenericType:
    """Return the event type that `definition_of` has described."""
    name, definition = str(members["name"]), members["definition"]
    if definition is None:
        return GenericType(name)
    built, problems = build_event_type(name, definition)
    if built is None:
        raise PipelineError(f"event type '{name}' cannot be read: {problems[0]}")
    return msgspec.structs.replace(built, max_polygon_vertices=int(members["max_polygon_vertices"]))


def _plain(answer: msgspec.Struct) -> dict[str, Any]:
    return dict(msgspec.to_builtins(answer))
