"""Log and archive side by side: tasks compare their rows, each a range of sequences, and say only what matters.

The canonical form is checked again: would the model write a stored notification as it is? Each distinct value of a
field is looked at once, and rows that differ one by one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from aviso_server.errors import InvalidRequest, MalformedRequest
from aviso_server.lake.files import DataFile
from aviso_server.lake.ranges import Range, clipped, without_ranges
from aviso_server.lake.storage import joined, open_file, write_file
from aviso_server.model import batch
from aviso_server.model import topic as topics
from aviso_server.model.batch import field_arrays
from aviso_server.model.event_type import Bulk, EventType, GenericType
from aviso_server.model.json_text import compact, loads
from aviso_server.model.shapes import polygon_json, polygon_of, with_array
from aviso_server.model.times import SECOND, seconds_text
from pyspark_aviso.read import BatchReader, SequenceRange

__all__ = [
    "Audit",
    "Defect",
    "Explained",
    "FormCheck",
    "Found",
    "Gap",
    "Held",
    "Hour",
    "LogReader",
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

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

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
        return self.last - self.first + 1

    def alike(self, other: Defect) -> bool:
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
        return sum(each.count for each in self.defects)


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    at: str
    seconds: float
    archive: str | None
    streams: dict[str, StreamAudit]

    @property
    def verdict(self) -> Verdict:
        """Defects weigh most, then what could not be checked."""
        return overall(each.verdict for each in self.streams.values())

    def describe(self) -> dict[str, Any]:
        shown: dict[str, Any] = msgspec.to_builtins(self)
        return {"verdict": self.verdict, **shown}

    def summary(self) -> dict[str, Any]:
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
    found = set(verdicts)
    return "defects" if "defects" in found else "unchecked" if "unchecked" in found or not found else "clean"


def hour_text(time_ns: int) -> str:
    """Return the hour that a time lies in."""
    seconds = time_ns // SECOND
    return seconds_text(seconds - seconds % _HOUR)


def keep_verdict(root: str, audit: Audit) -> None:
    """Write the verdict beside the archive, at once for all who look."""
    write_file(joined(root, f"{AUDIT}/{VERDICT}"), msgspec.json.encode(audit.summary()))


class Gap(msgspec.Struct, frozen=True):
    """Sequences without a row, and the times of the rows before and after; None where there are none."""

    first: int
    last: int
    before: int | None = None
    after: int | None = None


def gaps_of(sequences: Numbers, times: Numbers, first: int, last: int) -> tuple[Gap, ...]:
    """Return what is missing between two sequences; those that are there ascend."""
    chosen = (sequences >= first) & (sequences <= last)
    there = [first - 1, *sequences[chosen].tolist(), last + 1]
    known = [None, *times[chosen].tolist(), None]
    places = np.flatnonzero(np.diff(there) > 1).tolist()
    return tuple(Gap(there[at] + 1, there[at + 1] - 1, known[at], known[at + 1]) for at in places if first <= last)


def cut(gaps: Iterable[Gap], left: Sequence[Range]) -> list[Gap]:
    """Return the parts of gaps that lie in the ranges, with the times of the whole."""
    return [Gap(low, high, gap.before, gap.after) for gap in gaps for low, high in clipped(left, gap.first, gap.last)]


def outside(gaps: Iterable[Gap], ranges: Sequence[Range]) -> list[Gap]:
    """Return the parts of gaps that lie in none of the ranges."""
    found = list(gaps)
    return cut(found, without_ranges([(each.first, each.last) for each in found], ranges))


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
        return isinstance(self._kind, EventType) and self._kind.shaped

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is made on the spot."""
        return {**self.__dict__, "_bulk": None}

    def outcomes(
        self, topic: Sequence[str | None], identifiers: Sequence[bytes | None], payloads: Sequence[bytes | None]
    ) -> dict[int, Outcome]:
        """Return the rows that are not plainly right, by place."""
        suspects = {*self._odd_identifiers(topic, identifiers), *_odd_payloads(payloads)}
        found = {at: self._look(topic[at], identifiers[at], payloads[at]) for at in sorted(suspects)}
        return {at: outcome for at, outcome in found.items() if outcome != _RIGHT}

    def outcomes_of(self, rows: pa.Table) -> dict[int, Outcome]:
        """Return the rows of a table that are not plainly right, by place."""
        texts = [rows[name].cast(pa.binary()).to_pylist() for name in ("identifier", "payload")]
        return self.outcomes(rows["topic"].to_pylist(), *texts)

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
        """Check one row."""
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
        """Return True if the topic is the expected one, or has a polygon as the text that older servers wrote."""
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
    """Return identifiers with their polygons as arrays."""
    found = identifier.cast(pa.binary()).to_pylist()
    return pa.array([None if each is None else with_array(each) for each in found], pa.string())


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
    """Find payloads that would not be written as they are."""
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
    """Yield the defects of sequences that were counted and checked.

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
    """Return the archived sequences that no row of the log vouches for: `sequence`, `log` and `single`."""
    unlike = pc.or_(pc.equal(suspects["log"], 0), suspects["differs"])
    found = suspects.filter(pc.and_(pc.greater(suspects["archive"], 0), unlike))
    single = pc.equal(found["archive"], 1)
    return pa.table({"sequence": found["sequence"], "log": found["log"], "single": single})


def judged(rows: pa.Table) -> Iterator[Defect]:
    """Yield the defects of archived rows in doubt: a wrong form says more than that they differ."""
    wrong = pc.is_valid(rows["fault"])
    other = pc.and_(pc.invert(wrong), pc.and_(pc.equal(rows["log"], 1), rows["single"]))
    yield from _runs(rows, wrong, rows["fault"], "form", "archive", in_log=True)
    yield from _runs(rows, other, pa.repeat(_CONTENT, rows.num_rows), "content", "archive", in_log=True)


def _runs(
    rows: pa.Table, chosen: pa.ChunkedArray, reasons: pa.ChunkedArray, kind: Kind, where: Where, in_log: bool
) -> Iterator[Defect]:
    """Yield a defect for each run of neighbours among the rows that are chosen."""
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
_ROW = pa.schema(
    [
        ("sequence", pa.int64()),
        ("time_ns", pa.int64()),
        ("topic", pa.string()),
        ("identifier", pa.string()),
        ("payload", pa.string()),
    ]
)
_CONTENTS = ("time_ns", "topic", "identifier", "payload")


class LogReader(msgspec.Struct, frozen=True):
    """How tasks read a stream from its server. Pickles."""

    reader: BatchReader
    event_type: str
    identifier: dict[str, Any]  # what the server has to be asked for to send everything
    bounded: bool  # it knows where to stop

    def rows(self, first: int, last: int) -> pa.Table:
        wanted = SequenceRange(self.event_type, first, last, self.identifier, self.bounded)
        found = [pa.Table.from_batches([each]).cast(_ROW) for each in self.reader.read(wanted)]
        return pa.concat_tables([_ROW.empty_table(), *found])


class Slice(msgspec.Struct, frozen=True):
    """A range of sequences that one task compares: how far log and archive should have it, and how to read them."""

    first: int
    last: int
    log_from: int  # gaps in the log count from here on
    log_to: int  # lower than `first` if the log is not read
    archive_to: int
    check: FormCheck
    log: LogReader
    files: tuple[DataFile, ...]  # that cover some of it

    @property
    def warm(self) -> bool:
        return self.log_to >= self.first


class Found(msgspec.Struct, frozen=True):
    """What a slice has."""

    log: tuple[Gap, ...]
    archive: tuple[Gap, ...]
    hours: tuple[Hour, ...]
    defects: tuple[Defect, ...]
    foreign: int  # rows that fit another schema than today's
    broken: tuple[tuple[DataFile, str], ...]  # files that cannot be read, and why


def examine(part: Slice) -> Iterator[Found]:
    """Read a slice from log and archive and compare. Runs on a worker."""
    archive, misplaced, broken = _archived(part)
    log = part.log.rows(part.first, part.log_to) if part.warm else _ROW.empty_table()
    if part.check.shaped:  # what was archived earlier may have polygons as text
        log, archive = (
            each.set_column(3, _ROW.field(3), with_arrays(each["identifier"].combine_chunks()))
            for each in (log, archive)
        )
    yield _compared(part, log, archive, misplaced, broken)


def _archived(part: Slice) -> tuple[pa.Table, pa.Table, list[tuple[DataFile, str]]]:
    """Read the rows of the archive, those in files that cover other sequences, and which files cannot be read.

    Misplaced rows are looked for in every file once: in the slice that has its first sequence.
    """
    tables, misplaced, broken = [_ROW.empty_table()], [_ROW.empty_table()], list[tuple[DataFile, str]]()
    for file in part.files:
        is_first = part.first <= file.first <= part.last
        try:
            with open_file(file.path) as content:
                parquet = pq.ParquetFile(content)
                groups = [
                    each for each in range(parquet.num_row_groups) if _matters(parquet, each, part, file, is_first)
                ]
                found = [parquet.read_row_group(each, columns=_ROW.names) for each in groups]
        except (OSError, pa.ArrowException) as error:
            broken.append((file, str(error).splitlines()[0] if str(error) else type(error).__name__))
            continue
        rows = pa.concat_tables([_ROW.empty_table(), *(each.select(_ROW.names).cast(_ROW) for each in found)])
        placed = _between(rows["sequence"], file.first, file.last)
        tables.append(rows.filter(pc.and_(placed, _between(rows["sequence"], part.first, part.archive_to))))
        if is_first:
            misplaced.append(rows.filter(pc.invert(placed)))
    return pa.concat_tables(tables), pa.concat_tables(misplaced), broken


def _between(values: pa.ChunkedArray, first: int, last: int) -> pa.ChunkedArray:
    return pc.and_(pc.greater_equal(values, first), pc.less_equal(values, last))


def _matters(parquet: pq.ParquetFile, number: int, part: Slice, file: DataFile, is_first: bool) -> bool:
    """Return whether a row group may have rows of the slice, or rows that should not be in its file."""
    place = parquet.schema_arrow.get_field_index("sequence")
    limits = parquet.metadata.row_group(number).column(place).statistics
    if limits is None or not limits.has_min_max:
        return True
    inside = limits.max >= part.first and limits.min <= part.archive_to
    return inside or (is_first and (limits.min < file.first or limits.max > file.last))


def _compared(
    part: Slice, log: pa.Table, archive: pa.Table, misplaced: pa.Table, broken: Sequence[tuple[DataFile, str]]
) -> Found:
    rows = pa.concat_tables([log, archive])
    own, strays = rows["sequence"].to_numpy(), misplaced["sequence"].to_numpy()
    sequences, places = np.unique(np.concatenate([own, strays]), return_inverse=True)
    count = len(sequences)
    in_log = np.bincount(places[: log.num_rows], minlength=count)
    in_archive = np.bincount(places[log.num_rows : len(own)], minlength=count)
    astray = np.bincount(places[len(own) :], minlength=count)
    times = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(times, places[: len(own)], rows["time_ns"].to_numpy())
    stray_times = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(stray_times, places[len(own) :], misplaced["time_ns"].to_numpy())
    times = np.where(in_log + in_archive > 0, times, stray_times)
    differs = np.zeros(count, np.bool_)
    differs[np.searchsorted(sequences, _different(rows))] = True

    checked = log if part.warm else archive
    outcomes = part.check.outcomes_of(checked)
    faults: dict[int, str] = {}
    for at, (fault, _) in outcomes.items():
        if fault is not None:
            place = int(places[at])  # the rows that were checked come first
            faults[place] = min(fault, faults.get(place, fault))
    foreign = sum(is_foreign for _, is_foreign in outcomes.values())

    suspect = (in_log > 1) | (in_archive > 1) | (astray > 0)
    suspect[list(faults)] = True
    if part.warm:
        suspect |= (in_archive > 0) & ((in_log == 0) | differs)
    chosen = np.flatnonzero(suspect)
    suspects = pa.table(
        {
            "sequence": sequences[chosen],
            "time_ns": times[chosen],
            "log": in_log[chosen],
            "archive": in_archive[chosen],
            "misplaced": astray[chosen],
            "differs": differs[chosen],
            "fault": pa.array([faults.get(place) for place in chosen.tolist()], pa.string()),
        }
    )
    defects = list(compared(suspects, part.warm))
    if part.warm and (doubtful := in_doubt(suspects)).num_rows:
        looked = _looked_at(archive, doubtful, part.check)
        defects += judged(looked)
        foreign += pc.sum(pc.and_(looked["foreign"], pc.equal(looked["log"], 0))).as_py() or 0
    same = (in_log > 0) & (in_archive > 0) & ~differs
    return Found(
        gaps_of(sequences[in_log > 0], times[in_log > 0], part.log_from, part.log_to),
        gaps_of(sequences[in_archive > 0], times[in_archive > 0], part.first, part.archive_to),
        tuple(_hours(times, in_log > 0, in_archive > 0, same)),
        tuple(defects),
        foreign,
        tuple(broken),
    )


def _different(rows: pa.Table) -> Numbers:
    """Return the sequences whose rows are not all the same."""
    if rows.num_rows < 2:
        return np.empty(0, np.int64)
    rows = rows.take(pc.sort_indices(rows["sequence"])).combine_chunks()
    one, next_one = rows.slice(0, rows.num_rows - 1), rows.slice(1)
    alike = pa.repeat(True, rows.num_rows - 1)
    for name in _CONTENTS:
        a, b = one[name].combine_chunks(), next_one[name].combine_chunks()
        alike = pc.and_(alike, pc.coalesce(pc.equal(a, b), pc.and_(pc.is_null(a), pc.is_null(b))))
    sequences = rows["sequence"].to_numpy()
    found: Numbers = sequences[1:][(np.diff(sequences) == 0) & ~alike.to_numpy(zero_copy_only=False)]
    return found


def _hours(times: Numbers, log: Flags, archive: Flags, same: Flags) -> Iterator[Hour]:
    there = log | archive
    hours, places = np.unique(times[there] // _HOUR_NS, return_inverse=True)
    counts = [np.bincount(places[each[there]], minlength=len(hours)).tolist() for each in (log, archive, same)]
    for hour, *numbers in zip(hours.tolist(), *counts, strict=True):
        yield Hour(hour_text(hour * _HOUR_NS), *numbers)


def _looked_at(archive: pa.Table, doubtful: pa.Table, check: FormCheck) -> pa.Table:
    """Check the archived rows of these sequences."""
    places = pc.index_in(archive["sequence"], value_set=doubtful["sequence"].combine_chunks())
    rows, places = archive.filter(pc.is_valid(places)), places.drop_null()
    outcomes = check.outcomes_of(rows)
    found = [outcomes.get(at, _RIGHT) for at in range(rows.num_rows)]
    return pa.table(
        {
            "sequence": rows["sequence"],
            "time_ns": rows["time_ns"],
            "log": doubtful["log"].take(places),
            "single": doubtful["single"].take(places),
            "fault": pa.array([fault for fault, _ in found], pa.string()),
            "foreign": pa.array([foreign for _, foreign in found], pa.bool_()),
        }
    )
