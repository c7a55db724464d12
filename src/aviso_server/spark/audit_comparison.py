"""Log and archive side by side: Spark compares their rows in one pass, and only what matters comes back.

Two hashes of different kinds stand for the content of a row. The canonical form is checked again: would the model write
a stored notification as it is? Each distinct value of a field is looked at once, and rows that differ one by one.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from aviso_server.errors import InvalidRequest, MalformedRequest
from aviso_server.lake.ranges import Range, clipped, without_ranges
from aviso_server.lake.storage import Storage, joined
from aviso_server.model import batch
from aviso_server.model import topic as topics
from aviso_server.model.batch import field_arrays
from aviso_server.model.event_type import EventType, GenericType
from aviso_server.model.json_text import compact, loads
from aviso_server.model.publishing import Bulk
from aviso_server.model.shapes import polygon_json, polygon_of, with_array
from aviso_server.model.times import SECOND, seconds_text
from aviso_server.spark.session import arrow_function

__all__ = [
    "ROW",
    "Audit",
    "Defect",
    "Explained",
    "FormCheck",
    "Found",
    "Gap",
    "Held",
    "Hour",
    "Slice",
    "StreamAudit",
    "Verdict",
    "Where",
    "cut",
    "examine",
    "hour_text",
    "keep_verdict",
    "outside",
]

ROW = "sequence bigint, time_ns bigint, topic string, identifier string, payload string"
"""What makes a notification, as a schema for Spark."""

AUDIT = "_audit"
"""The folder in an archive that is about audits."""

VERDICT = "verdict.json"
"""The file in it that says what the last one found."""

Kind = Literal["hole", "duplicate", "content", "form", "misplaced", "unreadable", "behind"]
"""What is wrong: a sequence is missing, there twice, different in log and archive, not in canonical form, in a file
that is named otherwise, in a file that cannot be read, or the log is behind its archive."""

Where = Literal["log", "archive", "log and archive"]

Verdict = Literal["clean", "defects", "unchecked"]
"""Nothing is wrong, something is, or nobody can say."""

_HOUR = 3600
_SHOWN = 20  # defects of a stream in the verdict file


class Defect(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is wrong with some sequences of a stream."""

    kind: Kind
    where: Where
    first: int
    last: int
    hours: tuple[str, str] | None = None  # the first and the last one; None if nobody knows
    reason: str = ""
    repairable: bool = False  # by archiving anew what the log still has

    @property
    def count(self) -> int:
        """How many sequences."""
        return self.last - self.first + 1

    def alike(self, other: Defect) -> bool:
        """True if the same is wrong with others."""
        names = ("kind", "where", "repairable", "reason")
        return all(getattr(self, name) == getattr(other, name) for name in names)


class Hour(msgspec.Struct, frozen=True):
    """What is there of an hour; counts are those of different sequences."""

    hour: str
    log: int
    archive: int
    same: int  # in both, with the same content


class Held(msgspec.Struct, frozen=True):
    """A range, and how many of its sequences have a row."""

    first: int = 1
    last: int = 0
    rows: int = 0


class Explained(msgspec.Struct, frozen=True):
    """Sequences that are missing, in the log or in the archive, for a known reason."""

    deleted: int = 0
    wiped: int = 0
    retention: int = 0


class StreamAudit(msgspec.Struct, frozen=True, kw_only=True):
    """What was found out about a stream."""

    event_type: str
    verdict: Verdict
    acknowledged: int = 0  # the newest sequence that was given out
    log: Held | None = None  # what was read of the log
    archive: Held | None = None
    same: int = 0  # sequences with the same content in both
    lag: int = 0  # sequences that are not archived yet
    explained: Explained = Explained()
    defects: tuple[Defect, ...] = ()
    hours: tuple[Hour, ...] = ()
    unchecked: tuple[str, ...] = ()  # what could not be looked at, in sentences
    notes: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """How many sequences have a defect; one that has two counts twice."""
        return sum(each.count for each in self.defects)


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one audit."""

    at: str
    seconds: float
    archive: str | None
    streams: dict[str, StreamAudit]

    @property
    def verdict(self) -> Verdict:
        """Defects weigh most, then what could not be checked."""
        return overall(each.verdict for each in self.streams.values())

    def describe(self) -> dict[str, Any]:
        """All of it as JSON values."""
        shown: dict[str, Any] = msgspec.to_builtins(self)
        return {"verdict": self.verdict, **shown}

    def summary(self) -> dict[str, Any]:
        """What the verdict file says."""
        streams = {
            name: {
                "event_type": each.event_type,
                "verdict": each.verdict,
                "defects": each.count,
                "acknowledged": each.acknowledged,
                "lag": each.lag,
                "first_defects": [
                    {"kind": one.kind, "where": one.where, "first": one.first, "last": one.last}
                    for one in each.defects[:_SHOWN]
                ],
            }
            for name, each in self.streams.items()
        }
        return {"at": self.at, "verdict": self.verdict, "seconds": self.seconds, "streams": streams}


def overall(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict on all of them."""
    found = set(verdicts)
    return "defects" if "defects" in found else "unchecked" if "unchecked" in found or not found else "clean"


def hour_text(time_ns: int) -> str:
    """The hour that a time lies in."""
    seconds = time_ns // SECOND
    return seconds_text(seconds - seconds % _HOUR)


def keep_verdict(root: str, audit: Audit, storage: Storage) -> None:
    """Write the verdict beside the archive, at once for all who look."""
    storage.write(joined(root, f"{AUDIT}/{VERDICT}"), msgspec.json.encode(audit.summary()))


BUCKET = 65_536
"""Sequences that one task puts in order."""


class Gap(msgspec.Struct, frozen=True):
    """Sequences without a row, and the times of the rows before and after; None where there are none."""

    first: int
    last: int
    before: int | None = None
    after: int | None = None


class Presence(msgspec.Struct, frozen=True):
    """What is there of a range of sequences."""

    rows: int  # different sequences
    gaps: tuple[Gap, ...]

    @property
    def missing(self) -> list[Range]:
        """The gaps as ranges."""
        return [(each.first, each.last) for each in self.gaps]


def row_before(present: Column) -> Column:
    """Sequence and time of the nearest earlier row of the `bucket` that is present."""
    order = Window.partitionBy("bucket").orderBy("sequence").rowsBetween(Window.unboundedPreceding, -1)
    return f.last(_here(present), ignorenulls=True).over(order)


def edges(present: Column, before: Column) -> Column:
    """An aggregate over rows of one bucket: how many are present, the first and the last, and the gaps before them."""
    gap = f.struct(
        (before["sequence"] + 1).alias("first"),
        (f.col("sequence") - 1).alias("last"),
        before["time_ns"].alias("before"),
        f.col("time_ns").alias("after"),
    )
    return f.struct(
        f.count(f.when(present, 1)).alias("rows"),
        f.min(_here(present)).alias("low"),
        f.max(_here(present)).alias("high"),
        f.collect_list(f.when(present & (f.col("sequence") > before["sequence"] + 1), gap)).alias("gaps"),
    )


def presence(parts: Iterable[tuple[int, Mapping[str, Any]]], first: int, last: int) -> Presence:
    """What there is of a range; a part is the number of its bucket and what `edges` says of some of its rows."""
    if first > last:
        return Presence(0, ())
    count, gaps = 0, list[Gap]()
    ends: dict[int, list[tuple[int, int]]] = {}
    for bucket, part in parts:
        if part["rows"]:
            count += part["rows"]
            gaps += [Gap(**each) for each in part["gaps"]]
            ends.setdefault(bucket, []).extend((part[end]["sequence"], part[end]["time_ns"]) for end in ("low", "high"))
    position, time = first, None
    for bucket in sorted(ends):
        low, low_time = min(ends[bucket])
        if low > position:
            gaps.append(Gap(position, low - 1, time, low_time))
        high, time = max(ends[bucket])
        position = high + 1
    if position <= last:
        gaps.append(Gap(position, last, time, None))
    return Presence(count, tuple(sorted(gaps, key=lambda gap: gap.first)))


def cut(gaps: Iterable[Gap], left: Sequence[Range]) -> list[Gap]:
    """The parts of gaps that lie in the ranges, with the times of the whole."""
    return [Gap(low, high, gap.before, gap.after) for gap in gaps for low, high in clipped(left, gap.first, gap.last)]


def outside(gaps: Iterable[Gap], ranges: Sequence[Range]) -> list[Gap]:
    """The parts of gaps that lie in none of the ranges."""
    found = list(gaps)
    return cut(found, without_ranges([(each.first, each.last) for each in found], ranges))


def _here(present: Column) -> Column:
    return f.when(present, f.struct("sequence", "time_ns"))


FORM = "struct<fault: string, foreign: boolean>"
"""What a check says of a row: why its form is wrong, and whether it fits another schema than today's."""

_FORM = pa.struct([("fault", pa.string()), ("foreign", pa.bool_())])
_PLACEHOLDER = 0  # a payload that every event type takes: here only the identifier is asked about

_decode = msgspec.json.Decoder().decode

Outcome = tuple[str | None, bool]
_RIGHT: Outcome = (None, False)


class FormCheck:
    """Checks rows of one event type. Pickles: it is made on the driver and works on workers.

    With `layout`, the topic is made from the identifier again too; without it, nobody here knows how.
    """

    def __init__(self, kind: EventType | GenericType, layout: bool) -> None:
        self._kind = kind
        self._layout = layout
        self._bulk: Bulk | None = None

    @property
    def shaped(self) -> bool:
        """Whether the event type has a polygon or a point cloud."""
        return isinstance(self._kind, EventType) and self._kind.shaped

    def __getstate__(self) -> dict[str, Any]:
        """Everything but what is made on the spot."""
        return {**self.__dict__, "_bulk": None}

    def outcomes(
        self, topic: Sequence[str | None], identifiers: Sequence[bytes | None], payloads: Sequence[bytes | None]
    ) -> dict[int, Outcome]:
        """The rows that are not plainly right, by place."""
        suspects = {*self._odd_identifiers(topic, identifiers), *_odd_payloads(payloads)}
        found = {at: self._look(topic[at], identifiers[at], payloads[at]) for at in sorted(suspects)}
        return {at: outcome for at, outcome in found.items() if outcome != _RIGHT}

    def _odd_identifiers(self, topic: Sequence[str | None], identifiers: Sequence[bytes | None]) -> Sequence[int]:
        everything = range(len(identifiers))
        if not isinstance(self._kind, EventType) or not self._kind.fields or not identifiers:
            return everything
        if self._bulk is None:
            self._bulk = Bulk(self._kind)
        texts = [with_array(each) for each in identifiers if each is not None]
        if len(texts) < len(identifiers):
            return everything
        try:
            arrays = field_arrays([batch.Column(name, "text", name) for name in self._bulk.names], texts)
        except (msgspec.DecodeError, pa.ArrowException, ValueError, AttributeError):
            return everything  # some are not even objects
        found = self._bulk.canonical([arrays[name].to_pylist() for name in self._bulk.names])
        gone = set(found.refused)
        kept = [at for at in everything if at not in gone] if gone else everything
        odd = [at for at, made in zip(kept, found.identifiers, strict=True) if made != texts[at]]
        if self._layout:
            odd += [at for at, made in zip(kept, found.topics, strict=True) if topic[at] not in (None, made)]
        return [*found.refused, *odd]

    def _look(self, topic: str | None, identifier: bytes | None, payload: bytes | None) -> Outcome:
        """One row."""
        try:
            values = _canonical_text("identifier", identifier)
            _canonical_text("payload", payload)
        except _WrongForm as error:
            return str(error), False
        if not isinstance(values, dict):
            return "identifier: not an object", False
        if isinstance(self._kind, GenericType):
            return self._look_generic(topic, values)
        return self._look_configured(topic, identifier, values)

    def _look_configured(self, topic: str | None, identifier: bytes | None, values: dict[str, Any]) -> Outcome:
        assert isinstance(self._kind, EventType)
        if not values.keys() <= self._kind.fields.keys():
            return None, True
        left_out = {name: topics.WILDCARD for name in self._kind.fields if name not in values}
        try:
            draft = self._kind.check({**left_out, **values}, _PLACEHOLDER)
        except InvalidRequest as error:
            if error.field in left_out:
                return None, True
            return f"identifier: {error.message}", False
        if draft.identifier != with_array(identifier or b""):
            return f"identifier: expected {draft.identifier.decode()}", False
        if self._layout and topic is not None and not self._is_topic(topic, draft.topic):
            return f"topic: expected {draft.topic}", False
        return _RIGHT

    def _is_topic(self, topic: str, expected: str) -> bool:
        """True if the topic is the expected one, or has a polygon as the text that older servers wrote."""
        assert isinstance(self._kind, EventType)
        if topic == expected or "polygon" not in self._kind.key_order:
            return topic == expected
        place = 1 + self._kind.key_order.index("polygon")
        tokens = topic.split(".")
        if len(tokens) <= place:
            return False
        with suppress(ValueError):
            tokens[place] = topics.encode(polygon_json(polygon_of(topics.decode(tokens[place]), sys.maxsize)).decode())
        return ".".join(tokens) == expected

    def _look_generic(self, topic: str | None, values: dict[str, Any]) -> Outcome:
        for name, value in values.items():
            if not isinstance(value, str) or not value:
                return f"identifier: field '{name}' is not a text with something in it", False
        if topic is None:
            return _RIGHT
        try:
            base, *tokens = topics.parse(topic)
        except ValueError as error:
            return f"topic: {error}", False
        expected = [values[name] for name in sorted(values)]
        if base != self._kind.name or [each for each in tokens if each != topics.WILDCARD] != expected:
            return f"topic: expected {topics.build([self._kind.name, *expected])}", False
        return _RIGHT


def with_arrays(identifier: pa.Array) -> pa.Array:
    """Identifiers with their polygons as arrays."""
    found = identifier.cast(pa.binary()).to_pylist()
    return pa.array([None if each is None else with_array(each) for each in found], pa.string())


def forms_of(check: FormCheck) -> Callable[[pa.Array, pa.Array, pa.Array], pa.Array]:
    """What a worker does with topics, identifiers and payloads: a value of FORM for each row."""

    def forms(topic: pa.Array, identifier: pa.Array, payload: pa.Array) -> pa.Array:
        found = check.outcomes(
            topic.to_pylist(), identifier.cast(pa.binary()).to_pylist(), payload.cast(pa.binary()).to_pylist()
        )
        faults, foreign = pa.nulls(len(topic), pa.string()), pa.repeat(False, len(topic))
        if found:
            outcomes = [found.get(at, _RIGHT) for at in range(len(topic))]
            faults = pa.array([fault for fault, _ in outcomes], pa.string())
            foreign = pa.array([other for _, other in outcomes], pa.bool_())
        return pa.StructArray.from_arrays([faults, foreign], fields=list(_FORM))

    return forms


class _WrongForm(Exception):
    """A text is not JSON, or not in the one form that is stored."""


def _canonical_text(name: str, text: bytes | None) -> Any:
    if text is None:
        raise _WrongForm(f"{name}: there is none")
    try:
        value = loads(text)
    except MalformedRequest as error:
        raise _WrongForm(f"{name}: not JSON ({error.details})") from None
    if compact(value) != text:
        raise _WrongForm(f"{name}: not compact with sorted keys")
    return value


def _odd_payloads(payloads: Sequence[bytes | None]) -> list[int]:
    """The places of payloads that are not what writing them again would give."""
    bad = {text for text in set(payloads) if not _plain(text)}
    return [at for at, text in enumerate(payloads) if text in bad] if bad else []


def _plain(text: bytes | None) -> bool:
    try:
        return text is not None and compact(_decode(text)) == text
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False


_ALIKE = "the rows are the same"
_DIFFERENT = "the rows differ"
_CONTENT = "log and archive differ"


def compared(suspects: pa.Table, in_log: bool) -> Iterator[Defect]:
    """The defects of sequences that were counted and checked.

    A row has `sequence`, `time_ns`, how many rows `log` and `archive` have, how many files have it that should not
    (`misplaced`), whether its rows differ (`differs`) and what is wrong with its form (`fault`). `in_log` says that
    the log was read, and its rows are those that were checked.
    """
    doubled = pc.if_else(suspects["differs"], _DIFFERENT, _ALIKE)
    nothing = pa.repeat("", suspects.num_rows)
    checked: Where = "log" if in_log else "archive"
    yield from _runs(suspects, pc.greater(suspects["log"], 1), doubled, "duplicate", "log", in_log)
    yield from _runs(suspects, pc.greater(suspects["archive"], 1), doubled, "duplicate", "archive", in_log)
    yield from _runs(suspects, pc.is_valid(suspects["fault"]), suspects["fault"], "form", checked, in_log)
    yield from _runs(suspects, pc.greater(suspects["misplaced"], 0), nothing, "misplaced", "archive", in_log)


def in_doubt(suspects: pa.Table) -> pa.Table:
    """The sequences in the archive that no row of the log vouches for: `sequence`, `log` and `single`."""
    unlike = pc.or_(pc.equal(suspects["log"], 0), suspects["differs"])
    found = suspects.filter(pc.and_(pc.greater(suspects["archive"], 0), unlike))
    single = pc.equal(found["archive"], 1)
    return pa.table({"sequence": found["sequence"], "log": found["log"], "single": single})


def judged(rows: pa.Table) -> Iterator[Defect]:
    """The defects of archived rows in doubt that were checked: a wrong form says more than that they differ."""
    wrong = pc.is_valid(rows["fault"])
    other = pc.and_(pc.invert(wrong), pc.and_(pc.equal(rows["log"], 1), rows["single"]))
    yield from _runs(rows, wrong, rows["fault"], "form", "archive", in_log=True)
    yield from _runs(rows, other, pa.repeat(_CONTENT, rows.num_rows), "content", "archive", in_log=True)


def _runs(
    rows: pa.Table, chosen: pa.ChunkedArray, reasons: pa.ChunkedArray, kind: Kind, where: Where, in_log: bool
) -> Iterator[Defect]:
    """The rows that are chosen, in order, neighbours together."""
    own = pa.table({"sequence": rows["sequence"], "time_ns": rows["time_ns"], "reason": reasons}).filter(chosen)
    if not own.num_rows:
        return
    own = own.take(pc.sort_indices(own["sequence"]))
    sequences, times = own["sequence"].to_numpy(), own["time_ns"].to_numpy()
    for run in np.split(np.arange(len(sequences)), np.flatnonzero(np.diff(sequences) > 1) + 1):
        low, high = int(run[0]), int(run[-1])
        reason = str(own["reason"][low].as_py())
        yield Defect(
            kind=kind,
            where=where,
            first=int(sequences[low]),
            last=int(sequences[high]),
            hours=(hour_text(int(times[low])), hour_text(int(times[high]))),
            reason=reason,
            repairable=where == "archive" and (in_log or reason == _ALIKE),
        )


_HOUR_NS = 3600 * 1_000_000_000
_TEXTS = ("time_ns", "topic", "identifier", "payload")


class Slice(msgspec.Struct, frozen=True):
    """A range of sequences, and how far log and archive should have it."""

    first: int
    last: int
    log_from: int  # gaps in the log count from here on
    log_to: int  # lower than `first` if the log is not read
    archive_to: int

    @property
    def warm(self) -> bool:
        """True if the log is read."""
        return self.log_to >= self.first


class Found(msgspec.Struct, frozen=True):
    """What a slice has."""

    log: Presence
    archive: Presence
    same: int
    hours: tuple[Hour, ...]
    defects: tuple[Defect, ...]
    foreign: int  # rows that fit another schema than today's


def examine(part: Slice, log: DataFrame | None, archive: DataFrame | None, check: FormCheck) -> Found:
    """Compare; the frames have the columns of a notification, that of the archive `misplaced` too."""
    sides = []
    log, archive = _with_arrays(log, check), _with_arrays(archive, check)
    if log is not None:
        sides.append(_side(log.withColumn("misplaced", f.lit(False)), check, in_log=True))
    if archive is not None:
        # what is the same in the log has been checked there
        sides.append(_side(archive, None if log is not None else check, in_log=False))
    if not sides:
        return _found(part, [], (), 0)
    table = _summary(part, _sequences(part, reduce(DataFrame.unionByName, sides))).toArrow()
    parts = table.drop_columns("suspects").to_pylist()
    foreign = sum(each["foreign"] for each in parts)
    if not table.num_rows:
        return _found(part, parts, (), foreign)
    suspects = pa.Table.from_struct_array(table["suspects"].combine_chunks().flatten())
    defects = list(compared(suspects, part.warm))
    if part.warm and archive is not None:
        doubtful = in_doubt(suspects)
        if doubtful.num_rows:
            looked = _looked_at(archive, doubtful, check)
            defects += judged(looked)
            foreign += pc.sum(pc.and_(looked["foreign"], pc.equal(looked["log"], 0))).as_py() or 0
    return _found(part, parts, defects, foreign)


def _with_arrays(rows: DataFrame | None, check: FormCheck) -> DataFrame | None:
    """The rows with polygons as they are stored today: what was archived earlier may have them as text."""
    if rows is None or not check.shaped:
        return rows
    arrays = arrow_function(with_arrays, "string")
    return rows.withColumn("identifier", arrays("identifier"))


def _side(rows: DataFrame, check: FormCheck | None, in_log: bool) -> DataFrame:
    """The rows of one side as they are compared: what they are stands in two hashes of different kinds."""
    placed = ~f.col("misplaced")
    fault, foreign = f.lit(None).cast("string"), f.lit(False)
    if check is not None:
        rows = rows.withColumn("form", _form(check))
        fault, foreign = f.col("form.fault"), f.col("form.foreign")
    return rows.select(
        "sequence",
        "time_ns",
        "misplaced",
        f.lit(int(in_log)).alias("log"),
        (f.lit(0) if in_log else placed.cast("int")).alias("archive"),
        f.when(placed, f.xxhash64(*_TEXTS)).alias("digest"),
        f.when(placed, f.hash(*reversed(_TEXTS))).alias("second"),
        f.when(placed, fault).alias("fault"),
        (placed & foreign).cast("int").alias("foreign"),
    )


def _form(check: FormCheck) -> Column:
    form = arrow_function(forms_of(check), FORM)
    found: Column = form("topic", "identifier", "payload")
    return found


def _sequences(part: Slice, rows: DataFrame) -> DataFrame:
    """A row for each sequence. Neighbours are brought together first, and stay together from then on."""
    time = f.coalesce(f.min(f.when(~f.col("misplaced"), f.col("time_ns"))), f.min("time_ns"))
    differs = (f.min("digest") != f.max("digest")) | (f.min("second") != f.max("second"))
    return (
        rows.withColumn("bucket", f.expr(f"(sequence - {part.first}) div {BUCKET}"))
        .repartition("bucket")
        .groupBy("bucket", "sequence")
        .agg(
            time.alias("time_ns"),
            f.sum("log").alias("log"),
            f.sum("archive").alias("archive"),
            f.sum(f.col("misplaced").cast("int")).alias("misplaced"),
            f.coalesce(differs, f.lit(False)).alias("differs"),
            f.min("fault").alias("fault"),
            f.sum("foreign").alias("foreign"),
        )
    )


def _summary(part: Slice, sequences: DataFrame) -> DataFrame:
    """A row for each hour of a bucket: counts, edges and gaps of both sides, and the sequences that are suspect."""
    in_log, in_archive, differs = f.col("log") > 0, f.col("archive") > 0, f.col("differs")
    suspect = (
        (f.col("log") > 1) | (f.col("archive") > 1) | (f.col("misplaced") > 0) | f.col("fault").isNotNull()
    )  # fmt: skip
    if part.warm:
        suspect |= in_archive & (~in_log | differs)
    members = f.struct("sequence", "time_ns", "log", "archive", "misplaced", "differs", "fault")
    log_counts = in_log & f.col("sequence").between(part.log_from, part.log_to)
    archive_counts = in_archive & f.col("sequence").between(part.first, part.archive_to)
    looked = sequences.withColumns(
        {"log_before": row_before(log_counts), "archive_before": row_before(archive_counts)}
    ).withColumn("hour", f.expr(f"time_ns div {_HOUR_NS}"))
    return looked.groupBy("bucket", "hour").agg(
        f.count_if(in_log).alias("log"),
        f.count_if(in_archive).alias("archive"),
        f.count_if(in_log & in_archive & ~differs).alias("same"),
        f.sum("foreign").alias("foreign"),
        edges(log_counts, f.col("log_before")).alias("log_edges"),
        edges(archive_counts, f.col("archive_before")).alias("archive_edges"),
        f.collect_list(f.when(suspect, members)).alias("suspects"),
    )


def _looked_at(archive: DataFrame, doubtful: pa.Table, check: FormCheck) -> pa.Table:
    """The archived rows of these sequences, checked."""
    low, high = pc.min_max(doubtful["sequence"]).as_py().values()
    wanted = archive.sparkSession.createDataFrame(doubtful)
    rows = archive.where(~f.col("misplaced") & f.col("sequence").between(low, high))
    looked = rows.join(f.broadcast(wanted), "sequence").withColumn("form", _form(check))
    return looked.select("sequence", "time_ns", "log", "single", "form.fault", "form.foreign").toArrow()


def _found(part: Slice, parts: Sequence[Mapping[str, Any]], defects: Sequence[Defect], foreign: int) -> Found:
    counts: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
    for each in parts:
        if each["log"] or each["archive"]:
            known = counts[each["hour"]]
            counts[each["hour"]] = [known[0] + each["log"], known[1] + each["archive"], known[2] + each["same"]]
    return Found(
        presence(((each["bucket"], each["log_edges"]) for each in parts), part.log_from, part.log_to),
        presence(((each["bucket"], each["archive_edges"]) for each in parts), part.first, part.archive_to),
        sum(same for _, _, same in counts.values()),
        tuple(Hour(hour_text(hour * _HOUR_NS), *counts[hour]) for hour in sorted(counts)),
        tuple(defects),
        foreign,
    )
