"""The audit of one stream: slice after slice, then everything that is missing is held against what explains it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from pyspark.sql import SparkSession

from aviso_server.errors import PipelineError
from aviso_server.pipeline.archive.job import reason
from aviso_server.pipeline.archive.ranges import Range, without_ranges
from aviso_server.pipeline.archive.storage import Storage
from aviso_server.pipeline.audit.archive_side import ArchiveFiles
from aviso_server.pipeline.audit.evidence import Evidence, Removals, gather_evidence
from aviso_server.pipeline.audit.findings import Defect, Explained, Held, Hour, StreamAudit, Where, hour_text
from aviso_server.pipeline.audit.forms import FormCheck
from aviso_server.pipeline.audit.gaps import Gap, cut, outside
from aviso_server.pipeline.audit.log_side import LogView, ServerLog
from aviso_server.pipeline.audit.slices import Found, Slice, examine

__all__ = ["Pending", "Told", "audit_stream"]

SLICE = 1_000_000
"""Sequences that are compared at once."""

_MOST_ATTEMPTS = 5

Pending = Callable[[str], Removals]
"""The deletes and wipes of a stream that the archive has not heard of, as of now."""

Told = Callable[[str, int, int], None]
"""Called with a stream, how many of its sequences are done, and how many there are."""


def audit_stream(
    session: SparkSession,
    server: ServerLog,
    view: LogView,
    root: str | None,
    storage: Storage,
    pending: Pending,
    told: Told,
    slice_length: int = SLICE,
) -> StreamAudit:
    """Look at all of a stream; PipelineError if log or archive cannot be read."""
    files = None if root is None else ArchiveFiles(session, root, view.stream, storage)
    archived = 0 if files is None else files.last
    kind, layout = server.kind(view)
    check = FormCheck(kind, layout)
    parts = list(_slices(view, archived, slice_length))
    found: list[tuple[Slice, Found]] = []
    told(view.stream, 0, max(view.last, archived))
    for part in parts:
        found.append((part, _examined(session, server, view, files, part, check)))
        told(view.stream, part.last, max(view.last, archived))
    now = server.again(view)
    evidence = gather_evidence(root, view.stream, storage, pending(view.stream), now.trimmed, max(view.last, archived))
    # a log that waits for the archive lets go of nothing that is not in it: such files were there and are lost
    lost = (archived + 1, view.trimmed) if server.log_waits and archived else (1, 0)
    weighing = _Weighing(view, evidence, files, archived, lost, found)
    defects = weighing.defects()
    unchecked, notes = _words(server, view, root, archived, layout, sum(each.foreign for _, each in found))
    hours = _joined_hours(each.hours for _, each in found)
    return StreamAudit(
        event_type=view.event_type,
        verdict="defects" if defects else "clean",
        acknowledged=view.last,
        log=Held(view.start, view.last, sum(each.log for each in hours)) if view.last >= view.start else Held(),
        archive=None if root is None else Held(1, archived, sum(each.archive for each in hours)),
        same=sum(each.same for _, each in found),
        lag=max(0, view.last - archived) if root is not None else 0,
        explained=weighing.explained(),
        defects=tuple(defects),
        hours=tuple(hours),
        unchecked=tuple(unchecked),
        notes=tuple(notes),
    )


def _slices(view: LogView, archived: int, longest: int) -> Iterator[Slice]:
    """Everything, cut where the log begins and where it ends, and then into parts that are not too long."""
    edges = [
        (1, min(view.start - 1, archived), False),
        (view.start, view.last, True),
        (max(view.last, view.start - 1) + 1, archived, False),
    ]
    for first, last, warm in edges:
        for low in range(first, last + 1, longest):
            high = min(low + longest - 1, last)
            log_from = max(low, view.trimmed + 1)
            yield Slice(low, high, log_from, high if warm else 0, min(high, archived))


def _examined(
    session: SparkSession, server: ServerLog, view: LogView, files: ArchiveFiles | None, part: Slice, check: FormCheck
) -> Found:
    attempt = 0
    while True:
        attempt += 1
        try:
            log = server.rows(session, view, part.first, part.last) if part.warm else None
            archive = None
            if files is not None and part.archive_to >= part.first:
                archive = files.rows(part.first, part.archive_to)
            return examine(part, log, archive, check)
        except Exception as error:  # Spark wraps what happened in many ways
            if isinstance(error, PipelineError) or attempt == _MOST_ATTEMPTS or files is None:
                raise PipelineError(reason(error)) from None
            # files are merged while they are read, and some may be damaged
            changed = files.look_again()
            if not files.find_broken(part.first, part.last) and not changed:
                raise PipelineError(reason(error)) from None


class _Weighing:
    """What is missing against what explains it."""

    def __init__(
        self,
        view: LogView,
        evidence: Evidence,
        files: ArchiveFiles | None,
        archived: int,
        lost: Range,
        found: Sequence[tuple[Slice, Found]],
    ) -> None:
        self._view = view
        self._evidence = evidence
        self._archived = archived
        self._found = found
        broken = {} if files is None else files.broken
        self._broken = {(each.first, each.last): why for each, why in broken.items()}
        self._log = _joined_gaps(gap for _, each in found for gap in each.log.gaps)
        gaps = [gap for _, each in found for gap in each.archive.gaps]
        if lost[0] <= lost[1]:
            gaps.append(Gap(*lost))
        self._archive = outside(_joined_gaps(gaps), list(self._broken))

    def explained(self) -> Explained:
        """How much is missing for a known reason, in the log or in the archive; once if in both."""
        log, archive = _ranges(self._log), _ranges(self._archive)
        one = self._evidence.explained(log, in_log=True)
        other = self._evidence.explained(without_ranges(archive, log), in_log=False)
        return Explained(one.deleted + other.deleted, one.wiped + other.wiped, one.retention + other.retention)

    def defects(self) -> list[Defect]:
        """All of them, by sequence."""
        rows = {each: None for _, found in self._found for each in found.defects}
        holes = [*self._holes(), *self._damaged()]
        if self._archived > self._view.last and self._view.whole:
            holes.append(
                Defect(
                    kind="behind",
                    where="log",
                    first=self._view.last + 1,
                    last=self._archived,
                    reason="the archive goes further than the log: these sequences could be given out a second time",
                )
            )
        return sorted(_joined_defects([*rows, *holes]), key=lambda each: (each.first, each.last, each.kind))

    def _holes(self) -> Iterator[Defect]:
        log = self._evidence.unexplained(_ranges(self._log), in_log=True)
        archive = self._evidence.unexplained(_ranges(self._archive), in_log=False)
        both = without_ranges(log, without_ranges(log, archive))
        sides: list[tuple[Where, Sequence[Range], Sequence[Gap], str]] = [
            ("log and archive", both, self._log, "it was given out and is nowhere"),
            ("log", without_ranges(log, both), self._log, self._log_words()),
            ("archive", without_ranges(archive, both), self._archive, "nothing explains it"),
        ]
        for where, missing, gaps, words in sides:
            for gap in cut(gaps, missing):
                # a gap may reach from where only the archive has something into what the log holds
                for low, high, in_log in _at(gap, self._view.start, self._view.last):
                    repairable = where == "archive" and in_log
                    yield Defect(
                        kind="hole", where=where, first=low, last=high, hours=_hours_of(gap), reason=words,
                        repairable=repairable,
                    )  # fmt: skip

    def _log_words(self) -> str:
        return "nothing explains it" if self._view.whole else "this server keeps no record of deletes"

    def _damaged(self) -> Iterator[Defect]:
        for (first, last), why in self._broken.items():
            yield Defect(
                kind="unreadable",
                where="archive",
                first=first,
                last=last,
                reason=f"the file cannot be read: {why}",
                repairable=first >= self._view.start and last <= self._view.last,
            )


def _words(
    server: ServerLog, view: LogView, root: str | None, archived: int, layout: bool, foreign: int
) -> tuple[list[str], list[str]]:
    unchecked, notes = [], []
    if not server.lists_streams:
        unchecked.append(
            "the server does not say which sequences it has given out and removed: only what lies between the oldest "
            "and the newest that it holds was checked, and deletes look like holes"
        )
        unchecked.append("the server does not send topics, and identifiers and payloads only as values")
    elif not server.archives:
        unchecked.append(
            f"a server without an archive keeps no record of deletes and wipes: what lies before sequence {view.first} "
            "was not checked, and deletes look like holes"
        )
    if root is None:
        unchecked.append("no archive was looked at")
    elif not archived and view.last:
        notes.append("nothing is archived yet")
    if not layout and server.lists_streams:
        unchecked.append("topics: the configuration does not describe the event type as the server does")
    if foreign:
        notes.append(f"{foreign} notifications have other fields than the schema has now")
    return unchecked, notes


def _at(gap: Gap, start: int, last: int) -> Iterator[tuple[int, int, bool]]:
    """A gap in parts: before, in and after what is read from the log."""
    for low, high, in_log in ((gap.first, start - 1, False), (start, last, True), (last + 1, gap.last, False)):
        first, end = max(low, gap.first), min(high, gap.last)
        if first <= end:
            yield first, end, in_log


def _ranges(gaps: Iterable[Gap]) -> list[Range]:
    return [(each.first, each.last) for each in gaps]


def _joined_gaps(gaps: Iterable[Gap]) -> list[Gap]:
    found: list[Gap] = []
    for gap in sorted(gaps, key=lambda each: each.first):
        if found and gap.first == found[-1].last + 1:
            found[-1] = Gap(found[-1].first, gap.last, found[-1].before, gap.after)
        else:
            found.append(gap)
    return found


def _hours_of(gap: Gap) -> tuple[str, str] | None:
    times = [each for each in (gap.before, gap.after) if each is not None]
    return (hour_text(times[0]), hour_text(times[-1])) if times else None


def _joined_defects(defects: Iterable[Defect]) -> list[Defect]:
    """Neighbours of the same sort together; slices have cut them apart."""
    found: list[Defect] = []
    order = sorted(defects, key=lambda each: (each.kind, each.where, each.repairable, each.first))
    for each in order:
        if found:
            one = found[-1]
            alike = (one.kind, one.where, one.repairable, one.reason) == (
                each.kind, each.where, each.repairable, each.reason
            )  # fmt: skip
            if alike and each.first == one.last + 1:
                known = [hours for hours in (one.hours, each.hours) if hours is not None]
                found[-1] = Defect(
                    kind=one.kind, where=one.where, first=one.first, last=each.last, reason=one.reason,
                    repairable=one.repairable, hours=(known[0][0], known[-1][1]) if known else None,
                )  # fmt: skip
                continue
        found.append(each)
    return found


def _joined_hours(parts: Iterable[Sequence[Hour]]) -> list[Hour]:
    found: dict[str, Hour] = {}
    for each in (hour for part in parts for hour in part):
        one = found.get(each.hour, Hour(each.hour, 0, 0, 0))
        found[each.hour] = Hour(each.hour, one.log + each.log, one.archive + each.archive, one.same + each.same)
    return [found[name] for name in sorted(found)]
