"""Which files are loaded: paths, globs, folders, standard input and addresses of stores, each with its form.

Files of this machine are found and looked at without Spark, so that a wrong name is answered at once. Spark lists and
reads those of other stores. Spark goes by the ending of a name and passes over some names, so it gets files of this
machine under names of our own: links in a folder of the load.
"""

from __future__ import annotations

import csv
import glob
import io
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa

from aviso_server.errors import PipelineError
from aviso_server.spark.load.load_report import Limit
from pyspark_aviso.options import Options

if TYPE_CHECKING:  # Spark is large: who lets a server do the work does without it
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "FORMS",
    "STDIN",
    "Form",
    "Input",
    "LoadRequest",
    "find_inputs",
    "linked",
    "listed",
    "place_of",
    "read_pieces",
    "split_header",
]

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
# What compressed files begin with, the ending by which Spark knows them, and what Arrow calls it. Hadoop's own LZ4 and
# Snappy are not those of anybody else: a file of the usual kind makes Spark run out of memory.
_COMPRESSED = ((b"\x1f\x8b", ".gz", "gzip"), (b"BZh", ".bz2", "bz2"), (b"\x28\xb5\x2f\xfd", ".zst", "zstd"))
_UNREADABLE = ((b"\x04\x22\x4d\x18", ".lz4"), (b"\xff\x06\x00\x00sNaPpY", ".snappy"))
_PACKED = frozenset(ending for _, ending, _ in _COMPRESSED)
_PARQUET = b"PAR1"
_LONGEST_HEADER = 1024 * 1024  # bytes that tell what a file is, and in which a CSV file names its columns
_BOM = b"\xef\xbb\xbf"
_ADDRESS = re.compile(r"(?!file:)[a-z][a-z0-9+.-]*://", re.IGNORECASE)


class Input(msgspec.Struct, frozen=True):
    """A file to load. Travels to workers."""

    name: str  # as people know it: in messages, in the quarantine and in keys
    path: str  # where it can be read
    form: Form | None  # None: an address of a store, to be listed by Spark
    packed: str = ""  # the ending that says how it is compressed
    columns: tuple[str, ...] = ()  # of CSV
    bytes: int | None = None  # as it lies there, if known

    @property
    def is_text(self) -> bool:
        """Return True for a text file of this machine."""
        return self.form not in (None, "parquet") and not self.is_remote

    @property
    def is_remote(self) -> bool:
        """Return True for a file of a store that only Spark can reach."""
        return _ADDRESS.match(self.path) is not None


class LoadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be loaded, and where to. Travels as JSON."""

    files: list[Input]
    form: Form | None
    event_type: str
    server: Options | None  # None: nothing is published
    dry_run: bool
    work: str  # a folder for what is left between the steps
    quarantine: str | None  # a folder
    ledgers: str  # a folder
    limit: Limit
    batch: int
    again: bool


def find_inputs(names: Sequence[str], stdin: BinaryIO, spool: Path, form: Form | None = None) -> list[Input]:
    """Return the files in order, those of a folder or a glob sorted by name; PipelineError names what is not there.

    Standard input is copied to `spool` first, so that it can be read like a file. Addresses of stores stay as they are:
    see `listed`.
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
        elif _ADDRESS.match(name):
            found.append(Input(name, name, None))
        else:
            found += [_looked_at(path, form) for path in _paths(name)]
    _refuse_twice([each.name for each in found])
    return found


def read_pieces(given: Input, separator: bytes, at_once: int = 1024 * 1024) -> Iterator[list[bytes]]:
    """Yield the pieces of a text file of this machine, cut as Spark cuts it; PipelineError if it cannot be read."""
    codec = next((codec for _, ending, codec in _COMPRESSED if ending == given.packed), None)
    try:
        with pa.input_stream(given.path, compression=codec) as content:
            rest = bytes(content.read(at_once)).removeprefix(_BOM)
            while block := bytes(content.read(at_once)):
                *pieces, rest = (rest + block).split(separator)
                yield pieces
    except (OSError, EOFError, pa.ArrowException) as error:
        raise PipelineError(f"'{given.name}' cannot be read: {error}") from None
    yield rest.removesuffix(separator).split(separator) if rest else []


def listed(session: SparkSession, given: Sequence[Input], form: Form | None = None) -> list[Input]:
    """Return the files with every address of a store replaced by the files that Spark finds there, sorted by name."""
    from pyspark.errors import PySparkException

    found: list[Input] = []
    for each in given:
        if each.form is not None:
            found.append(each)
            continue
        reader = session.read.option("recursiveFileLookup", True).option("lineSep", "\n")
        try:
            inside = sorted(unquote(path) for path in reader.text(each.path).inputFiles())
        except PySparkException as error:
            raise PipelineError(f"'{each.name}' cannot be read: {str(error).splitlines()[0]}") from None
        if not inside:
            raise PipelineError(f"there is no file '{each.name}'")
        found += [_looked_at_by_spark(session, path, form) for path in inside]
    _refuse_twice([each.name for each in found])
    return found


def linked(files: Sequence[Input], folder: Path) -> list[Input]:
    """Return the files as Spark gets them: those of this machine as links whose names say number and compression."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    found = []
    for number, each in enumerate(files):
        if each.is_remote:
            found.append(each)
            continue
        link = folder.resolve() / f"{number:06d}{each.packed}"
        link.symlink_to(each.path)
        found.append(msgspec.structs.replace(each, path=str(link)))
    return found


def place_of(path: str) -> str:
    """Return what is the same of a path however Spark writes it: `file:/a%20b`, `file:///a b`, `/a b`."""
    parts = urlsplit(path)
    if parts.scheme in ("", "file"):
        return unquote(parts.path)
    return f"{parts.scheme}://{parts.netloc}{unquote(parts.path)}"


def split_header(line: bytes, name: str) -> tuple[str, ...]:
    """Return the columns that the first line of a CSV file names."""
    try:
        text = line.removeprefix(_BOM).decode()
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise PipelineError(f"'{name}': the first line must name the columns of the CSV file: {error}") from None
    columns = tuple(each.strip() for each in rows[0]) if rows else ()
    if not columns or not all(columns):
        raise PipelineError(f"'{name}': the first line must name the columns of the CSV file, each of them")
    for place, column in enumerate(columns):
        if column in columns[:place]:
            raise PipelineError(f"'{name}': there are two columns '{column}'")
    return columns


def _refuse_twice(names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise PipelineError(f"'{name}' is named twice; a file is loaded once")
        seen.add(name)


def _paths(name: str) -> Iterator[Path]:
    path = Path(name.removeprefix("file://"))
    if path.is_dir():
        inside = sorted(each for each in path.rglob("*") if each.is_file() and _is_data(each.relative_to(path)))
        if not inside:
            endings = ", ".join((*_ENDINGS, *sorted(_PACKED)))
            raise PipelineError(f"the folder '{name}' has no files with the endings {endings}")
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
    """Return True for files that are taken from a folder: hidden ones and those of other programs are not."""
    plain = not any(part.startswith((".", "_")) for part in path.parts)
    return plain and _form_named(path.name) is not None


def _form_named(name: str) -> Form | None:
    path = Path(name)
    return _ENDINGS.get(Path(path.stem).suffix if path.suffix in _PACKED else path.suffix)


def _looked_at(path: Path, form: Form | None, name: str | None = None) -> Input:
    shown = name or str(path)
    try:
        with path.open("rb") as file:
            magic = file.read(16)
        size = path.stat().st_size
        for mark, ending in _UNREADABLE:
            if magic.startswith(mark):
                raise PipelineError(_unreadable(shown, ending))
        found = [(ending, codec) for mark, ending, codec in _COMPRESSED if magic.startswith(mark)]
        packed, codec = found[0] if found else ("", None)
        with pa.input_stream(str(path), compression=codec) as content:
            start = bytes(content.read(_LONGEST_HEADER))
    except (OSError, EOFError, pa.ArrowException) as error:
        raise PipelineError(f"'{shown}' cannot be read: {error}") from None
    return _input(name or str(path.resolve()), str(path.resolve()), start, form or _form_named(path.name), packed, size)


def _looked_at_by_spark(session: SparkSession, path: str, form: Form | None) -> Input:
    packed = Path(path).suffix if Path(path).suffix in _PACKED else ""
    if Path(path).suffix in [ending for _, ending in _UNREADABLE]:
        raise PipelineError(_unreadable(path, Path(path).suffix))
    known = form or _form_named(path)
    if known == "parquet":
        return Input(path, path, known, packed)
    # Up to the first brace an array has its bracket, and other files have nothing or a few lines.
    lines = beginning(session.read.option("lineSep", "\n" if known == "csv" else "{").text(path))
    return _input(path, path, lines, known, packed, None)


def beginning(frame: DataFrame) -> bytes:
    """Return the first piece of a text."""
    from pyspark.sql import functions as F  # noqa: N812  # everybody's name for it

    first = frame.select(F.substring(F.col("value").cast("binary"), 1, _LONGEST_HEADER).alias("value")).head()
    return b"" if first is None else bytes(first.value)


def _unreadable(name: str, ending: str) -> str:
    accepted = ", ".join(sorted(_PACKED))
    return f"'{name}' is compressed as {ending}, which Spark cannot read; accepted: {accepted}, or not compressed"


def _input(name: str, path: str, start: bytes, known: Form | None, packed: str, size: int | None) -> Input:
    form = _form(start, known, name)
    if form == "parquet" and packed:
        raise PipelineError(f"'{name}' is a packed Parquet file: unpack it first; Parquet packs by itself")
    columns = split_header(start.partition(b"\n")[0], name) if form == "csv" else ()
    return Input(name, path, form, packed, columns, size)


def _form(start: bytes, known: Form | None, name: str) -> Form:
    """Return the form that a file's name says; where that leaves a choice, what it begins with."""
    begins = start.removeprefix(_BOM).lstrip()[:1]
    if known == "json":
        return "ndjson" if begins in (b"{", b"") else "json"
    if known == "parquet" and not start.startswith(_PARQUET):
        raise PipelineError(f"'{name}' is not a Parquet file")
    if known is not None:
        return known
    if start.startswith(_PARQUET):
        return "parquet"
    return "json" if begins == b"[" else "ndjson" if begins in (b"{", b"") else "csv"
