"""Where the lake's files lie: the few operations on files that it needs, on a disk or in an object store.

Credentials for a store come the usual way: from the environment (`AWS_ACCESS_KEY_ID`, …), a profile, or the machine's
role. `AWS_ENDPOINT_URL` names a store other than Amazon's, `AWS_REGION` its region. An object appears when all of it is
there, so that a writer that is killed leaves nothing that anybody sees.
"""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa
import pyarrow.fs as pafs

from aviso_server.errors import PipelineError
from aviso_server.lockfile import force_to_disk, move_into_place

__all__ = [
    "SETTINGS",
    "Entry",
    "create_file",
    "delta_options",
    "is_local",
    "joined",
    "list_folder",
    "local_path",
    "open_file",
    "remove",
    "settle",
    "stamp",
    "table_uri",
    "write_file",
]

SETTINGS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION")
"""The variables that say where a store is; workers get those of the driver."""

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


def is_local(path: str) -> bool:
    """Return True for a path of this machine, with or without `file:` in front."""
    return urlsplit(path).scheme in ("", "file")


def local_path(path: str) -> Path:
    """Return the path on this machine."""
    parts = urlsplit(path)
    return Path(unquote(parts.path)) if parts.scheme == "file" else Path(path)


def joined(folder: str, name: str) -> str:
    """Return the path of what lies in a folder."""
    return f"{folder.rstrip('/')}/{name}"


def list_folder(folder: str) -> list[Entry]:
    """List a folder, sorted by name; nothing if there is no such folder."""
    files, place = _find(folder)
    try:
        found = files.get_file_info(pafs.FileSelector(place, allow_not_found=True))
    except NotADirectoryError:
        return []
    scheme = "" if is_local(folder) else f"{urlsplit(folder).scheme}://"
    entries = [
        Entry(
            name=each.base_name,
            path=f"{scheme}{each.path}",
            is_folder=each.type == pafs.FileType.Directory,
            bytes=each.size or 0,
            modified=(each.mtime_ns or 0) / 1e9,
        )
        for each in found
    ]
    return sorted(entries, key=lambda each: each.name)


def stamp(path: str) -> str | None:
    """Return what tells a file from another one of its name; None if there is none."""
    files, place = _find(path)
    facts = files.get_file_info(place)
    return f"{facts.mtime_ns} {facts.size}" if facts.type == pafs.FileType.File else None


def open_file(path: str) -> pa.NativeFile:
    """Open a file, to be read in parts."""
    files, place = _find(path)
    return files.open_input_file(place)


def create_file(path: str) -> pa.NativeFile:
    """Make a file, to be written; on a disk closing it does not make it durable yet, in a store it appears then."""
    if is_local(path):
        local_path(path).parent.mkdir(parents=True, exist_ok=True)
    files, place = _find(path)
    return files.open_output_stream(place, compression=None)


def settle(path: str) -> None:
    """Return when a file that was created survives a power cut; a store has it when it has answered."""
    if is_local(path):
        force_to_disk(local_path(path))
        force_to_disk(local_path(path).parent)


def write_file(path: str, data: bytes) -> None:
    """Make a small file, durably and at once, over what was there."""
    draft = str(local_path(path).with_name(f"_{uuid.uuid4().hex}")) if is_local(path) else path
    with create_file(draft) as sink:
        sink.write(data)
    if is_local(path):
        move_into_place(Path(draft), local_path(path))


def remove(path: str) -> None:
    """Remove a file or a folder with all that is in it; nothing happens if it is gone already."""
    files, place = _find(path)
    kind = files.get_file_info(place).type
    with suppress(FileNotFoundError):
        if kind == pafs.FileType.Directory:
            files.delete_dir(place)
        elif kind == pafs.FileType.File:
            files.delete_file(place)


def table_uri(folder: str) -> str:
    """Return a folder as delta-rs wants to hear of it."""
    if not is_local(folder):
        return f"s3://{_find(folder)[1]}"
    path = local_path(folder).absolute()
    if "%" in str(path):
        raise PipelineError(f"archive.path: '{path}' has a '%' in it, which delta-rs cannot open; rename it")
    return path.as_uri()


def delta_options(folder: str) -> dict[str, str]:
    """Return what delta-rs has to know besides the environment."""
    if is_local(folder):
        return {}
    endpoint, region = _where()
    found = {"timeout": f"{_PATIENCE}s"}
    if endpoint is not None:
        found |= {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": str(endpoint.startswith("http:")).lower()}
    return found if region is None else {**found, "AWS_REGION": region}


def _find(path: str) -> tuple[pafs.FileSystem, str]:
    """Return the file system of a path, and the path in it; PipelineError if it is of no kind that we can reach."""
    if is_local(path):
        return pafs.LocalFileSystem(), str(local_path(path))
    scheme, _, place = path.partition("://")
    if scheme in ("s3", "s3a"):
        return _object_store(*_where()), place
    words = "; hdfs:// would need Hadoop's own library, which PySpark does not bring" if scheme == "hdfs" else ""
    raise PipelineError(
        f"archive.path: '{path}' cannot be reached; accepted: a folder, file://…, s3://…, s3a://…{words}"
    )


def _where() -> tuple[str | None, str | None]:
    """Return the endpoint and the region of the store, as far as the environment names them."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return endpoint, region or ("us-east-1" if endpoint else None)


@cache
def _object_store(endpoint: str | None, region: str | None) -> pafs.FileSystem:
    given: dict[str, Any] = {"request_timeout": float(_PATIENCE), "connect_timeout": float(_CONNECTING)}
    if endpoint is not None:
        given |= {"endpoint_override": urlsplit(endpoint).netloc, "scheme": urlsplit(endpoint).scheme}
    if region is not None:
        given["region"] = region
    return pafs.S3FileSystem(retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS), **given)
