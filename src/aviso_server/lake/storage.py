"""Where the lake's files lie: the few operations on files that it needs, on a disk or in an object store."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote, urlsplit

import msgspec

from aviso_server.errors import PipelineError
from aviso_server.lockfile import force_to_disk, move_into_place

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs as pafs

__all__ = [
    "LOCAL",
    "Entry",
    "LocalStorage",
    "ObjectStorage",
    "Storage",
    "is_local",
    "joined",
    "local_path",
    "storage_of",
]

_SETTINGS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION")
_PATIENCE = 30  # seconds for an answer of an object store
_CONNECTING = 10
_ATTEMPTS = 8  # at a request that a store refuses for now


class Entry(msgspec.Struct, frozen=True):
    """A file or a folder, as listed."""

    name: str
    path: str
    is_folder: bool
    bytes: int
    modified: float  # seconds since 1970


class Storage(Protocol):
    """Files by path; paths are those that Spark is given to read."""

    @property
    def options(self) -> dict[str, str]:
        """What delta-rs has to know besides the environment."""

    def list(self, folder: str) -> list[Entry]:
        """What lies in a folder, sorted by name; nothing if there is no such folder."""

    def stamp(self, path: str) -> str | None:
        """What tells a file from another one of its name; None if there is none."""

    def open(self, path: str) -> pa.NativeFile:
        """The file, to be read."""

    def create(self, path: str) -> pa.NativeFile:
        """A new file, to be written; closing it does not make it durable yet."""

    def settle(self, path: str) -> None:
        """Return when a file that was created survives a power cut."""

    def uri(self, folder: str) -> str:
        """The folder as delta-rs wants to hear of it."""

    def put(self, local: Path, path: str) -> None:
        """Move a file of this machine to its place, durably and at once, over what was there."""

    def write(self, path: str, data: bytes) -> None:
        """Make a small file, durably and at once, over what was there."""

    def remove(self, path: str) -> None:
        """Remove a file or a folder with all that is in it; nothing happens if it is gone already."""


class LocalStorage:
    """Files of this machine or of a file system that is mounted here."""

    @property
    def options(self) -> dict[str, str]:
        """What delta-rs has to know besides the environment: nothing."""
        return {}

    def list(self, folder: str) -> list[Entry]:
        """What lies in a folder, sorted by name; nothing if there is no such folder."""
        found = []
        try:
            with os.scandir(local_path(folder)) as entries:
                for each in entries:
                    try:
                        facts = each.stat()
                    except FileNotFoundError:  # removed meanwhile
                        continue
                    found.append(Entry(each.name, each.path, each.is_dir(), facts.st_size, facts.st_mtime))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(found, key=lambda each: each.name)

    def stamp(self, path: str) -> str | None:
        """What tells a file from another one of its name; None if there is none."""
        try:
            facts = local_path(path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return f"{facts.st_ino} {facts.st_mtime_ns} {facts.st_size}"

    def open(self, path: str) -> pa.NativeFile:
        """The file, to be read."""
        import pyarrow as pa  # large, and a server that only looks at names does without it

        return pa.OSFile(str(local_path(path)), "rb")

    def create(self, path: str) -> pa.NativeFile:
        """A new file, to be written; closing it does not make it durable yet."""
        import pyarrow as pa

        target = local_path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        return pa.OSFile(str(target), "wb")

    def settle(self, path: str) -> None:
        """Return when a file that was created survives a power cut."""
        target = local_path(path)
        force_to_disk(target)
        force_to_disk(target.parent)

    def uri(self, folder: str) -> str:
        """The folder as delta-rs wants to hear of it."""
        path = local_path(folder).absolute()
        if "%" in str(path):
            raise PipelineError(f"archive.path: '{path}' has a '%' in it, which delta-rs cannot open; rename it")
        return path.as_uri()

    def put(self, local: Path, path: str) -> None:
        """Move a file of this machine to its place, durably and at once, over what was there."""
        target = local_path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if local.stat().st_dev != target.parent.stat().st_dev:
            beside = target.with_name(f"_{uuid.uuid4().hex}")
            shutil.copyfile(local, beside)
            local.unlink()
            local = beside
        move_into_place(local, target)

    def write(self, path: str, data: bytes) -> None:
        """Make a small file, durably and at once, over what was there."""
        target = local_path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_name(f"_{uuid.uuid4().hex}")
        beside.write_bytes(data)
        self.put(beside, path)

    def remove(self, path: str) -> None:
        """Remove a file or a folder with all that is in it; nothing happens if it is gone already."""
        target = local_path(path)
        try:
            if target.is_dir():
                shutil.rmtree(target)
            else:
                target.unlink()
        except FileNotFoundError:
            pass


LOCAL = LocalStorage()
"""The storage of local paths; it has no state."""


class ObjectStorage:
    """Objects of a store that speaks S3.

    Credentials come the usual way: from the environment (`AWS_ACCESS_KEY_ID`, …), a profile, or the machine's role.
    `AWS_ENDPOINT_URL` names a store other than Amazon's, `AWS_REGION` its region. An object appears when all of it
    is there, so that a writer that is killed leaves nothing that anybody sees.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
        region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
        self._endpoint = None if endpoint is None else urlsplit(endpoint)
        self._region = region or ("us-east-1" if endpoint else None)
        self._files: pafs.FileSystem | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Where the store is, for workers; they find credentials themselves."""
        return {**self.__dict__, "_files": None}

    @property
    def options(self) -> dict[str, str]:
        """What delta-rs has to know besides the environment."""
        found = {"timeout": f"{_PATIENCE}s"}
        if self._endpoint is not None:
            found["AWS_ENDPOINT_URL"] = self._endpoint.geturl()
            found["AWS_ALLOW_HTTP"] = str(self._endpoint.scheme == "http").lower()
        if self._region is not None:
            found["AWS_REGION"] = self._region
        return found

    def list(self, folder: str) -> list[Entry]:
        """What lies in a folder, sorted by name; nothing if there is no such folder."""
        import pyarrow.fs as pafs

        scheme, place = _address(folder)
        found = self._store.get_file_info(pafs.FileSelector(place, allow_not_found=True))
        entries = [
            Entry(
                name=each.base_name,
                path=f"{scheme}://{each.path}",
                is_folder=each.type == pafs.FileType.Directory,
                bytes=each.size or 0,
                modified=(each.mtime_ns or 0) / 1e9,
            )
            for each in found
        ]
        return sorted(entries, key=lambda each: each.name)

    def stamp(self, path: str) -> str | None:
        """What tells a file from another one of its name; None if there is none."""
        import pyarrow.fs as pafs

        facts = self._store.get_file_info(_address(path)[1])
        return f"{facts.mtime_ns} {facts.size}" if facts.type == pafs.FileType.File else None

    def open(self, path: str) -> pa.NativeFile:
        """The file, to be read in parts."""
        return self._store.open_input_file(_address(path)[1])

    def create(self, path: str) -> pa.NativeFile:
        """A new file, to be written; it appears when it is closed."""
        return self._store.open_output_stream(_address(path)[1])

    def settle(self, path: str) -> None:
        """Return when a file that was created survives a power cut: a store has it when it has answered."""

    def uri(self, folder: str) -> str:
        """The folder as delta-rs wants to hear of it."""
        return f"s3://{_address(folder)[1]}"

    def put(self, local: Path, path: str) -> None:
        """Move a file of this machine to its place, durably and at once, over what was there."""
        self.write(path, local.read_bytes())
        local.unlink()

    def write(self, path: str, data: bytes) -> None:
        """Make a small file, durably and at once, over what was there."""
        with self.create(path) as sink:
            sink.write(data)

    def remove(self, path: str) -> None:
        """Remove a file or a folder with all that is in it; nothing happens if it is gone already."""
        import pyarrow.fs as pafs

        place = _address(path)[1]
        kind = self._store.get_file_info(place).type
        with suppress(FileNotFoundError):
            if kind == pafs.FileType.Directory:
                self._store.delete_dir(place)
            elif kind == pafs.FileType.File:
                self._store.delete_file(place)

    @property
    def _store(self) -> pafs.FileSystem:
        if self._files is None:
            import pyarrow.fs as pafs

            given: dict[str, Any] = {"request_timeout": float(_PATIENCE), "connect_timeout": float(_CONNECTING)}
            if self._endpoint is not None:
                given |= {"endpoint_override": self._endpoint.netloc, "scheme": self._endpoint.scheme}
            if self._region is not None:
                given["region"] = self._region
            retries = pafs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS)
            self._files = pafs.S3FileSystem(retry_strategy=retries, **given)
        return self._files


def _address(path: str) -> tuple[str, str]:
    """The scheme of an address, and the bucket and the key in it."""
    scheme, _, place = path.partition("://")
    return scheme, place


@cache
def _object_storage(*settings: tuple[str, str]) -> ObjectStorage:
    return ObjectStorage(dict(settings))


def storage_of(root: str) -> Storage:
    """The storage for an archive; PipelineError if its address is of no kind that we can reach."""
    if is_local(root):
        return LOCAL
    scheme = urlsplit(root).scheme
    if scheme in ("s3", "s3a"):
        return _object_storage(*((name, os.environ[name]) for name in _SETTINGS if name in os.environ))
    words = "; hdfs:// would need Hadoop's own library, which PySpark does not bring" if scheme == "hdfs" else ""
    raise PipelineError(
        f"archive.path: '{root}' cannot be reached; accepted: a folder, file://…, s3://…, s3a://…{words}"
    )


def is_local(path: str) -> bool:
    """True for a path of this machine, with or without `file:` in front."""
    scheme = urlsplit(path).scheme
    return scheme in ("", "file")


def local_path(path: str) -> Path:
    """The path on this machine."""
    parts = urlsplit(path)
    return Path(unquote(parts.path)) if parts.scheme == "file" else Path(path)


def joined(folder: str, name: str) -> str:
    """The path of what lies in a folder."""
    return f"{folder.rstrip('/')}/{name}"
