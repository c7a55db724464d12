"""Which files are loaded: paths, globs, folders and standard input, each with its form."""

from __future__ import annotations

import glob
import gzip
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from aviso_server.errors import PipelineError

__all__ = ["FORMS", "STDIN", "Form", "Input", "find_inputs", "opened"]

Form = Literal["ndjson", "json", "csv", "parquet"]
FORMS: tuple[Form, ...] = ("ndjson", "json", "csv", "parquet")
STDIN = "-"
"""The name that stands for standard input."""

_ENDINGS: dict[str, Form] = {
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".json": "json",
    ".csv": "csv",
    ".parquet": "parquet",
}
_GZIP = b"\x1f\x8b"
_PARQUET = b"PAR1"
_LOOK = 4096  # bytes that tell what a file is
_BOM = b"\xef\xbb\xbf"


class Input(msgspec.Struct, frozen=True):
    """A file to load."""

    name: str  # as people know it: in messages, in the quarantine and in keys
    path: str  # where it can be read
    form: Form
    packed: bool  # compressed with gzip
    bytes: int  # as it lies there


def find_inputs(names: Sequence[str], stdin: BinaryIO, spool: Path, form: Form | None = None) -> list[Input]:
    """The files in order; those of a folder or a glob sorted by name. PipelineError names what cannot be found.

    Standard input is copied to `spool` first, so that it can be read like a file.
    """
    found: list[Input] = []
    for name in names:
        if name == STDIN:
            if any(each.name == STDIN for each in found):
                raise PipelineError("standard input can be read only once")
            spool.parent.mkdir(parents=True, exist_ok=True)
            with spool.open("wb") as copy:
                shutil.copyfileobj(stdin, copy, 1024 * 1024)
            found.append(_looked_at(spool, form, STDIN))
        else:
            found += [_looked_at(path, form) for path in _paths(name)]
    seen: set[str] = set()
    for each in found:
        if each.name in seen:
            raise PipelineError(f"'{each.name}' is named twice; a file is loaded once")
        seen.add(each.name)
    return found


def opened(given: Input) -> BinaryIO:
    """The content of a file, unpacked."""
    return gzip.open(given.path, "rb") if given.packed else Path(given.path).open("rb")  # type: ignore[return-value]  # it has all of BinaryIO that is used


def _paths(name: str) -> Iterator[Path]:
    path = Path(name)
    if path.is_dir():
        inside = sorted(each for each in path.rglob("*") if each.is_file() and _is_data(each.relative_to(path)))
        if not inside:
            raise PipelineError(f"the folder '{name}' has no files with the endings {', '.join(_ENDINGS)} or .gz")
        yield from inside
    elif path.exists():
        yield path
    else:
        matching = sorted(Path(each) for each in glob.glob(name, recursive=True))  # noqa: PTH207  # any pattern, absolute or not
        inside = [each for each in matching if each.is_file()]
        if not inside:
            raise PipelineError(f"there is no file '{name}'")
        yield from inside


def _is_data(path: Path) -> bool:
    """True for files that are taken from a folder: hidden ones and those of other programs are not."""
    plain = not any(part.startswith((".", "_")) for part in path.parts)
    return plain and path.with_suffix("" if path.suffix == ".gz" else path.suffix).suffix in _ENDINGS


def _looked_at(path: Path, form: Form | None, name: str | None = None) -> Input:
    try:
        with path.open("rb") as file:
            packed = file.read(2) == _GZIP
        size = path.stat().st_size
        known = form or _ENDINGS.get(Path(path.stem if path.suffix == ".gz" else path.name).suffix)
        plain = Input(name or str(path.resolve()), str(path.resolve()), "ndjson", packed, size)
        with opened(plain) as content:
            start = content.read(_LOOK)
    except (OSError, EOFError) as error:
        raise PipelineError(f"'{name or path}' cannot be read: {error}") from None
    return msgspec.structs.replace(plain, form=_form(start, known, name or str(path)))


def _form(start: bytes, known: Form | None, name: str) -> Form:
    """The form that a file's name says; where that leaves a choice, what it begins with."""
    begins = start.removeprefix(_BOM).lstrip()[:1]
    if known == "json":
        return "ndjson" if begins == b"{" else "json"
    if known == "parquet" and not start.startswith(_PARQUET):
        raise PipelineError(f"'{name}' is not a Parquet file")
    if known is not None:
        return known
    if start.startswith(_PARQUET):
        return "parquet"
    return "json" if begins == b"[" else "ndjson" if begins in (b"{", b"") else "csv"
