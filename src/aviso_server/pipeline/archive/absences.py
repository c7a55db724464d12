"""Why sequences have no row in the archive: a record that outlives the marks of deletes.

    <stream folder>/_absences/deleted-00000000000000000042
    <stream folder>/_absences/overtaken-00000000000000000001-00000000000000000900
    <stream folder>/_absences/record.json

Whoever learns of an absence makes a small file whose name says everything. Compaction, and nobody else, gathers them in
the record. Readers look at the small files first and then at the record, so they miss none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from aviso_server.errors import PipelineError
from aviso_server.pipeline.archive.ranges import Range, joined_ranges, without_ranges
from aviso_server.pipeline.archive.storage import LOCAL, Storage, joined

__all__ = ["Absences", "gather", "note_deleted", "note_overtaken", "read_absences"]

_FOLDER = "_absences"
_RECORD = "record.json"
_NAME = re.compile(r"(deleted|overtaken)-(\d{20})(?:-(\d{20}))?", re.ASCII)


class Absences(msgspec.Struct, frozen=True):
    """What the archive of a stream lacks for a known reason."""

    wiped_through: int = 0  # everything up to here was wiped
    deleted: tuple[Range, ...] = ()  # one by one, by an administrator
    overtaken: tuple[Range, ...] = ()  # the log's own limits may have removed some of these before they were archived


def read_absences(folder: str, storage: Storage = LOCAL) -> Absences:
    """All that is known of a stream in its folder."""
    return _read(folder, storage)[0]


def note_deleted(folder: str, sequence: int, storage: Storage = LOCAL) -> None:
    """The notification was deleted and the archive never had it."""
    storage.write(joined(folder, f"{_FOLDER}/deleted-{sequence:020d}"), b"")


def note_overtaken(folder: str, first: int, last: int, storage: Storage = LOCAL) -> None:
    """The log had removed something at or after these sequences, by its own limits, when they were archived."""
    storage.write(joined(folder, f"{_FOLDER}/overtaken-{first:020d}-{last:020d}"), b"")


def gather(folder: str, wiped_through: int, deleted: Iterable[int], storage: Storage = LOCAL) -> None:
    """Bring all notes into the record, with deletes and wipes whose marks are about to go; compaction only."""
    known, notes = _read(folder, storage)
    gone = [(each, each) for each in deleted]
    if not notes and not gone and wiped_through <= known.wiped_through:
        return
    wiped = max(known.wiped_through, wiped_through)
    left = without_ranges([*known.deleted, *gone], [(1, wiped)])
    record = Absences(wiped, tuple(left), tuple(without_ranges(known.overtaken, [(1, wiped)])))
    storage.write(joined(folder, f"{_FOLDER}/{_RECORD}"), msgspec.json.encode(record))
    for path in notes:
        storage.remove(path)


def _read(folder: str, storage: Storage) -> tuple[Absences, list[str]]:
    """What is known, and the paths of notes that are not in the record yet."""
    place = joined(folder, _FOLDER)
    found: dict[str, list[Range]] = {"deleted": [], "overtaken": []}
    notes: list[str] = []
    for each in storage.list(place):
        name = _NAME.fullmatch(each.name)
        if name is not None:
            found[name[1]].append((int(name[2]), int(name[3] or name[2])))
            notes.append(each.path)
    record = Absences()
    for each in storage.list(place):
        if each.name == _RECORD:
            with storage.open(each.path) as file:
                try:
                    record = msgspec.json.decode(file.read(), type=Absences)
                except msgspec.DecodeError as error:
                    raise PipelineError(f"{each.path} cannot be read: {error}") from None
    return Absences(
        record.wiped_through,
        tuple(joined_ranges([*record.deleted, *found["deleted"]])),
        tuple(joined_ranges([*record.overtaken, *found["overtaken"]])),
    ), notes
