"""The ledger of a load: how far each file has been published, over the end of the process."""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path

import msgspec

from aviso_server.errors import PipelineError
from aviso_server.pipeline.load.quarantine import RefusedRow

__all__ = ["Done", "LoadLedger"]


class Done(msgspec.Struct, frozen=True):
    """How far a file has been published: through the row at this offset, which had this key."""

    offset: int
    key: str
    rows: int  # that were sent, this one included
    refused: int = 0  # of these, by the server


class _Page(msgspec.Struct):
    event_type: str
    url: str
    salt: str = ""
    files: dict[str, Done] = {}


class LoadLedger:
    """One file for each server and event type; a second one beside it has the rows that the server refused.

    It saves work: what keeps rows from being published twice are their keys, which the server remembers for days.
    """

    def __init__(self, folder: Path, url: str, event_type: str) -> None:
        name = blake2b(f"{url}\n{event_type}".encode(), digest_size=8).hexdigest()
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{name}.json"
        self._refused = folder / f"{name}.refused.jsonl"
        self._page = self._read() or _Page(event_type, url)

    @property
    def salt(self) -> str:
        """What tells the keys of this load from those of an earlier one of the same rows."""
        return self._page.salt

    def forget(self, salt: str) -> None:
        """Begin anew: the rows are published again, under other keys."""
        self._page = _Page(self._page.event_type, self._page.url, salt)
        self._refused.unlink(missing_ok=True)
        self._write()

    def forget_file(self, name: str) -> None:
        """A file is not what it was: it is looked at from its beginning."""
        self._page.files.pop(name, None)

    def done(self, name: str) -> Done | None:
        """How far a file has been published; None if not at all."""
        return self._page.files.get(name)

    def advance(self, name: str, done: Done) -> None:
        """A file has been published through this row."""
        self._page.files[name] = done
        self._write()

    def refuse(self, rows: list[RefusedRow]) -> None:
        """The server has refused these rows."""
        with self._refused.open("ab") as file:
            file.write(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))

    def refused(self, names: set[str]) -> list[RefusedRow]:
        """What the server has refused of these files, each row once."""
        if not self._refused.exists():
            return []
        found: dict[tuple[str, int], RefusedRow] = {}
        for line in self._refused.read_bytes().splitlines():
            try:
                row = msgspec.json.decode(line, type=RefusedRow)
            except msgspec.DecodeError:  # the process ended while it was written
                continue
            if row.file in names:
                found[row.file, row.line] = row
        return list(found.values())

    def _read(self) -> _Page | None:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_Page)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise PipelineError(f"the ledger '{self._path}' cannot be read: {error}; remove it to begin anew") from None

    def _write(self) -> None:
        draft = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        draft.write_bytes(msgspec.json.encode(self._page))
        draft.replace(self._path)
