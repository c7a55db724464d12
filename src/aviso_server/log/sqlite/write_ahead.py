"""Commits in the write-ahead file that SQLite does not read, because a page before them is damaged.

SQLite ends its recovery at the first frame (a page with its header) whose checksum is wrong, without a word. After a
power cut that is right for the commit that was being written. Everything before it is on disk, because the writer
begins a transaction only when the last one was forced there. So a commit that another frame continues was on disk: if
SQLite does not reach it, the file is damaged.

The format is described at https://sqlite.org/walformat.html.
"""

from __future__ import annotations

import contextlib
import sqlite3
import struct
import sys
from pathlib import Path

from aviso_server.errors import LogDamaged
from aviso_server.lockfile import replace_file

__all__ = ["bring_back", "count_unread", "refuse_unread", "wal_of"]

_HEADER = struct.Struct(">8I")  # magic, version, page size, checkpoints, two salts, two checksums
_FRAME = struct.Struct(">6I")  # page, pages of the database after a commit or 0, two salts, two checksums
_MAGIC = {"little": 0x377F0682, "big": 0x377F0683}
_VERSION = 3_007_000
_FRAMES_READ = struct.Struct("=16xI")  # of the index that SQLite keeps beside the file
_LOW = 0xFFFFFFFF

_Pair = tuple[int, int]


def wal_of(file: Path) -> Path:
    """Return the path of a database's write-ahead file."""
    return file.with_name(f"{file.name}-wal")


def refuse_unread(file: Path) -> None:
    """Raise LogDamaged if commits lie behind a damaged page; nothing is changed."""
    if count := count_unread(file):
        raise LogDamaged(
            f"'{wal_of(file)}' is damaged: {count} commits behind the damage cannot be read. Nothing was changed. "
            "'aviso-server log repair' brings back what can be read of them"
        )


def count_unread(file: Path) -> int:
    """Count the commits that were on disk and that SQLite does not reach; nothing is changed."""
    found = _load(file)
    return 0 if found is None else len(found.unread)


def bring_back(file: Path) -> None:
    """Make SQLite read all commits: damaged pages are taken as they are, and rows find out by their own checksums."""
    found = _load(file)
    if found is not None and found.unread:
        replace_file(wal_of(file), found.with_new_checksums(), mode=0o600)
        file.with_name(f"{file.name}-shm").unlink(missing_ok=True)


def _load(file: Path) -> _Frames | None:
    with contextlib.suppress(FileNotFoundError):
        content = wal_of(file).read_bytes()
        if len(content) > _HEADER.size and any(content):
            return _Frames(content, _page_size(file), _frames_read(file))
    return None


def _page_size(file: Path) -> int:
    with file.open("rb") as stream:
        return int.from_bytes(stream.read(18)[16:18], "big")


def _frames_read(file: Path) -> int:
    """Return how many frames SQLite takes for sound, up to the last commit among them."""
    uri = f"{file.absolute().as_uri()}?mode=ro"
    with contextlib.closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        with file.with_name(f"{file.name}-shm").open("rb") as index:
            return int(_FRAMES_READ.unpack(index.read(_FRAMES_READ.size))[0])


class _Frames:
    """The frames of a write-ahead file."""

    def __init__(self, content: bytes, page_size: int, read: int) -> None:
        self._content = content
        self._page_size = page_size
        self._size = _FRAME.size + page_size
        self._read = read
        self._count = (len(content) - _HEADER.size) // self._size
        magic, _, _, _, *rest = _HEADER.unpack_from(content)
        self._order = "big" if magic == _MAGIC["big"] else "little" if magic == _MAGIC["little"] else sys.byteorder
        self._sound = self._sum((0, 0), content[: _HEADER.size - 8]) == tuple(rest[2:])
        self._salts: list[int] = rest[:2] if self._sound or not self._count else list(self._head(0)[2:4])
        self.unread = [place for place in self._commits() if self._continues(place + 1)]

    def with_new_checksums(self) -> bytes:
        """Return the file up to its last commit, with checksums as if everything in it were sound."""
        last = max([*self.unread, *(place for place in self._commits() if self._continues(place))])
        header = self._content[: _HEADER.size]
        if not self._sound:
            start = struct.pack(">6I", _MAGIC[self._order], _VERSION, self._page_size, 0, *self._salts)
            header = start + struct.pack(">2I", *self._sum((0, 0), start))
        sums: _Pair = _HEADER.unpack(header)[6:]
        made = bytearray(header)
        for place in range(last + 1):
            page, size, *_, first, second = self._head(place)
            if place < self._read:
                sums = first, second
            else:
                sums = self._sum(sums, struct.pack(">2I", page, size) + self._page(place))
            made += _FRAME.pack(page, size, *self._salts, *sums) + self._page(place)
        return bytes(made)

    def _commits(self) -> list[int]:
        """List the frames behind those that are read which end a commit of this turn of the file."""
        heads = ((place, self._head(place)) for place in range(self._read, self._count))
        return [place for place, head in heads if head[1] and list(head[2:4]) == self._salts]

    def _continues(self, place: int) -> bool:
        """Return whether a frame was written after the one before it."""
        if not 0 < place < self._count or list(self._head(place)[2:4]) != self._salts:
            return False
        start = _HEADER.size + place * self._size
        sums = self._sum(self._head(place - 1)[4:], self._content[start : start + 8] + self._page(place))
        return sums == self._head(place)[4:]

    def _head(self, place: int) -> tuple[int, ...]:
        return _FRAME.unpack_from(self._content, _HEADER.size + place * self._size)

    def _page(self, place: int) -> bytes:
        start = _HEADER.size + place * self._size + _FRAME.size
        return self._content[start : start + self._page_size]

    def _sum(self, before: tuple[int, ...], content: bytes) -> _Pair:
        first, second = before
        for one, other in struct.iter_unpack("<2I" if self._order == "little" else ">2I", content):
            first = (first + one + second) & _LOW
            second = (second + other + first) & _LOW
        return first, second
