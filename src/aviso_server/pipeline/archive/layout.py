"""How the archive lies on disk: a folder per stream, and in it files named by the sequences that they cover.

    <archive.path>/<stream>/00000000000000000001-00000000000000250000.parquet
    <archive.path>/<stream>/_tombstones/…

A file covers every sequence from its first to its last; those without a row in it were deleted. One file begins where
the one before it ends. A file that covers others hides them, so that merged files take the place of their parts at
once. Names that begin with `_` or `.` are never read as data.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from urllib.parse import quote, unquote

import msgspec

from aviso_server.pipeline.archive.storage import LOCAL, Entry, Storage, joined

__all__ = [
    "ROW_GROUP_ROWS",
    "TOMBSTONES",
    "DataFile",
    "data_path",
    "every_file",
    "file_name",
    "hidden",
    "holes",
    "listing",
    "stream_folder",
    "streams",
    "visible",
    "watermark",
]

ROW_GROUP_ROWS = 25_000
"""How many rows are read at once at least: what statistics can skip."""

TOMBSTONES = "_tombstones"
"""The folder in a stream's folder that says what has been deleted."""

_NAME = re.compile(r"(\d{20})-(\d{20})\.parquet", re.ASCII)


class DataFile(msgspec.Struct, frozen=True, order=True):
    """One file of a stream; in order of their sequences when sorted."""

    first: int  # the first sequence that it covers
    last: int  # the last one
    path: str
    bytes: int = 0
    modified: float = 0.0  # when it was written: seconds since 1970


def stream_folder(root: str, stream: str) -> str:
    """The folder of a stream."""
    name = quote(stream, safe="")
    if name[:1] in ("_", "."):  # would not be read as data
        name = f"%{ord(name[0]):02X}{name[1:]}"
    return joined(str(root), name)


def file_name(first: int, last: int) -> str:
    """The name of the file that covers these sequences."""
    return f"{first:020d}-{last:020d}.parquet"


def data_path(root: str, stream: str, first: int, last: int) -> str:
    """The path of the file of a stream that covers these sequences."""
    return joined(stream_folder(root, stream), file_name(first, last))


def streams(root: str, storage: Storage = LOCAL) -> dict[str, str]:
    """The streams of an archive and their folders, sorted."""
    folders = [each for each in storage.list(str(root)) if each.is_folder and each.name[:1] not in ("_", ".")]
    return dict(sorted((unquote(each.name), each.path) for each in folders))


def listing(folder: str, storage: Storage = LOCAL) -> list[DataFile]:
    """The files of a stream that count, in order of their sequences."""
    return visible(every_file(storage.list(str(folder))))


def every_file(entries: Iterable[Entry]) -> list[DataFile]:
    """All data files among the entries of a folder, those that others hide too."""
    found = []
    for each in entries:
        name = _NAME.fullmatch(each.name)
        if name is not None and not each.is_folder and 0 < int(name[1]) <= int(name[2]):
            found.append(DataFile(int(name[1]), int(name[2]), each.path, each.bytes, each.modified))
    return found


def visible(files: Iterable[DataFile]) -> list[DataFile]:
    """Those that no other file covers, in order."""
    kept: list[DataFile] = []
    for each in sorted(files, key=lambda file: (file.first, -file.last)):
        if not kept or each.last > kept[-1].last:
            kept.append(each)
    return kept


def hidden(files: Iterable[DataFile]) -> list[tuple[DataFile, DataFile]]:
    """Those that another file covers, each with the one that does."""
    every = sorted(files)
    shown = visible(every)
    return [
        (each, next(wide for wide in shown if wide.first <= each.first and each.last <= wide.last))
        for each in every
        if each not in shown
    ]


def watermark(files: Sequence[DataFile]) -> int:
    """The last sequence that the archive holds, 0 if there is none; of files in order."""
    return files[-1].last if files else 0


def holes(files: Sequence[DataFile]) -> list[tuple[int, int]]:
    """The ranges between files in order that no file covers: files must have been lost."""
    return [(before.last + 1, after.first - 1) for before, after in pairwise(files) if after.first > before.last + 1]
