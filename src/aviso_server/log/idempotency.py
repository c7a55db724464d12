"""Storing under keys, for logs that see all their keys at once: each content once, other content never."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from aviso_server.errors import KeyRefused, KeyReused
from aviso_server.log.base import Appended, BatchKey, Key, Keyed
from aviso_server.model.notification import Draft

__all__ = ["KnownBatch", "KnownKey", "append_once", "pack_places", "unpack_places", "with_own_keys"]


class KnownKey(NamedTuple):
    """What was stored under a key."""

    content: bytes
    sequence: int


class KnownBatch(NamedTuple):
    """What was stored under the key of a batch."""

    content: bytes
    sequences: Mapping[int, int]  # by places in the batch


class KeyBook(Protocol):
    """The keys that are remembered."""

    def get(self, name: bytes) -> KnownKey | None:
        """Return what was stored under this name; None if nothing was, or if that was too long ago."""

    def add(self, key: Key, sequence: int) -> None:
        """Note what was stored just now."""

    def get_batch(self, name: bytes) -> KnownBatch | None:
        """Return what was stored under this name of a batch; else as `get`."""

    def add_batch(self, name: bytes, known: KnownBatch) -> None:
        """Note what was stored just now, or some of it earlier."""


def append_once(
    entries: Sequence[Keyed],
    whole: bool,
    book: KeyBook,
    store: Callable[[Sequence[Draft]], Sequence[int]],
    batch: BatchKey | None = None,
) -> list[Appended | KeyRefused]:
    """Store what is new; KeyReused if `whole` and one of the keys stands for something else, before any is stored."""
    if whole:
        _refuse_reuse(entries, book)
    earlier = None if batch is None else book.get_batch(batch.name)
    if batch is not None and earlier is not None and earlier.content != batch.content:
        raise KeyReused
    if batch is not None and earlier is None and not any([entry.key for entry in entries]):  # noqa: C419  # quicker
        sequences = store([entry.draft for entry in entries])
        book.add_batch(batch.name, KnownBatch(batch.content, dict(zip(batch.places, sequences, strict=True))))
        return [Appended(sequence) for sequence in sequences]
    known_places = {} if earlier is None else earlier.sequences
    new_places: dict[int, int] = {}
    outcomes: list[Appended | KeyRefused] = []
    for number, entry in enumerate(entries):
        key = entry.key
        if key is not None:
            known = book.get(key.name)
            if known is None:
                [sequence] = store([entry.draft])
                book.add(key, sequence)
                outcomes.append(Appended(sequence))
            elif known.content == key.content:
                outcomes.append(Appended(known.sequence, repeated=True))
            else:
                outcomes.append(KeyReused())
        elif batch is None:
            outcomes.append(Appended(store([entry.draft])[0]))
        elif (place := batch.places[number]) in known_places:
            outcomes.append(Appended(known_places[place], repeated=True))
        else:
            [sequence] = [new_places[place]] = store([entry.draft])
            outcomes.append(Appended(sequence))
    if batch is not None and new_places:
        book.add_batch(batch.name, KnownBatch(batch.content, {**known_places, **new_places}))
    return outcomes


def with_own_keys(entries: Sequence[Keyed], batch: BatchKey) -> list[Keyed]:
    """Give each entry a key of its own: for logs that keep one for each notification."""
    return [
        entry if entry.key is not None else Keyed(entry.draft, batch.of(number)) for number, entry in enumerate(entries)
    ]


def pack_places(sequences: Mapping[int, int]) -> bytes:
    """Pack the sequences of a batch by places into as few bytes as there are interruptions."""
    runs: list[list[int]] = []  # place, sequence, length
    for place, sequence in sorted(sequences.items()):
        if runs and place == runs[-1][0] + runs[-1][2] and sequence == runs[-1][1] + runs[-1][2]:
            runs[-1][2] += 1
        else:
            runs.append([place, sequence, 1])
    return msgspec.msgpack.encode(runs)


def unpack_places(packed: bytes) -> Iterable[tuple[int, int]]:
    """Return the places and sequences that went into `pack_places`."""
    for place, sequence, length in msgspec.msgpack.decode(packed, type=list[tuple[int, int, int]]):
        yield from zip(range(place, place + length), range(sequence, sequence + length), strict=True)


def _refuse_reuse(entries: Sequence[Keyed], book: KeyBook) -> None:
    contents: dict[bytes, bytes] = {}
    for key in [entry.key for entry in entries if entry.key is not None]:
        known = book.get(key.name)
        content = contents.setdefault(key.name, key.content) if known is None else known.content
        if content != key.content:
            raise KeyReused
