"""The check of all rows on Spark: `spark.read` splits and unpacks the files, and tasks check what they read.

Rows go from Spark to its Python workers as Arrow batches, and each task checks the blocks that it was given.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import threading
import uuid
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # everybody's name for it
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from aviso_server.errors import AvisoError, PipelineError
from aviso_server.spark.load.blocks import Block, CheckTask, Told, check_text_block, leave
from aviso_server.spark.load.inputs import Input, linked, place_of
from aviso_server.spark.load.row_checks import Checker
from aviso_server.spark.load.row_texts import ARRAY_SEPARATOR, check_columns, table_chunks
from aviso_server.spark.session import reason

__all__ = ["check_all", "run_on_batches"]

T = TypeVar("T")

_SPLIT_BYTES = 32 * 1024 * 1024  # of a file that can be split: what a task gets at most
_WHOLE = 2**40  # bytes: more than a file has
_POLL = 0.3  # seconds
_PATH, _START, _ROW = "aviso file", "aviso block", "aviso row"  # columns beside those of the file


def check_all(
    session: SparkSession, files: Sequence[Input], task: CheckTask, told: Told, split_bytes: int | None = None
) -> list[Block]:
    """Check every row of the files; the blocks in order. PipelineError if a file cannot be read."""
    folder = Path(task.folder)
    given = linked(files, folder / "input")
    _use(session)
    with _settings(session, {"spark.sql.caseSensitive": "true", "spark.sql.legacy.parquet.nanosAsLong": "true"}):
        found: list[Block] = []
        for frame, settings in _frames(session, given, split_bytes or _SPLIT_BYTES, task):
            work = partial(_check_batches, {place_of(each.path): at for at, each in enumerate(given)}, given, task)
            with _settings(session, settings):
                found += run_on_batches(session, frame, work, folder, told)
    return sorted(found, key=lambda block: (block.file, block.start))


def _frames(
    session: SparkSession, files: Sequence[Input], split_bytes: int, task: CheckTask
) -> Iterator[tuple[DataFrame, dict[str, str]]]:
    """Yield a table for the files that are read in the same way, with the settings to read it with."""
    split = {"spark.sql.files.maxPartitionBytes": str(split_bytes)}
    whole = {"spark.sql.files.maxPartitionBytes": str(_WHOLE), "spark.sql.files.openCostInBytes": str(_WHOLE)}
    tables = [each for each in files if each.form == "parquet"]
    if tables:
        yield _table(session, tables, task), split
    arrays = [each for each in files if each.form == "json"]
    if arrays:
        yield _texts(session, arrays, ARRAY_SEPARATOR.decode()), whole
    closed, opened = _csv_by_quotes(session, [each for each in files if each.form == "csv"], split_bytes)
    if opened:
        yield _texts(session, opened), whole
    lines = [each for each in files if each.form == "ndjson"] + closed
    if lines:
        yield _texts(session, lines), split


def _texts(session: SparkSession, files: Sequence[Input], separator: str = "\n") -> DataFrame:
    """Read the pieces of text files as bytes: Spark reads any UTF-8, and leaves what is none as it is."""
    read = session.read.option("lineSep", separator).text([_escaped(each) for each in files])
    return read.select(
        F.col("value").cast("binary").alias("value"),
        F.col("_metadata.file_path").alias(_PATH),
        F.col("_metadata.file_block_start").alias(_START),
    )


def _escaped(given: Input) -> str:
    """Escape the path of a file, which Spark takes for a pattern."""
    return "".join(f"\\{letter}" if letter in "{}[]*?\\" else letter for letter in given.path)


def _table(session: SparkSession, files: Sequence[Input], task: CheckTask) -> DataFrame:
    """Read the rows of Parquet files; columns that are not in all of them are empty where they are not."""
    reader = session.read.option("mergeSchema", True)
    try:
        read = reader.parquet(*map(_escaped, files))
        for name in read.columns:
            if read.columns.count(name) > 1:
                raise PipelineError(f"'{files[0].name}': there are two columns '{name}'")
        for each in files if len(files) > 1 and _unknown(read.columns, task) else ():
            check_columns(reader.parquet(_escaped(each)).columns, task.event_type, each.name, task.wanted.history)
        check_columns(read.columns, task.event_type, files[0].name, task.wanted.history)
    except AvisoError:
        raise
    except Exception as error:  # Spark has many words for a file that is none of its own
        named = f"'{files[0].name}'" if len(files) == 1 else f"'{files[0].name}' and {len(files) - 1} more files"
        raise PipelineError(f"{named} cannot be read as Parquet: {reason(error)}") from None
    return read.select(
        "*",
        F.col("_metadata.file_path").alias(_PATH),
        F.col("_metadata.file_block_start").alias(_START),
        F.col("_metadata.row_index").alias(_ROW),
    )


def _unknown(columns: Sequence[str], task: CheckTask) -> bool:
    try:
        check_columns(columns, task.event_type, "", task.wanted.history)
    except PipelineError:
        return True
    return False


def _csv_by_quotes(session: SparkSession, files: Sequence[Input], split_bytes: int) -> tuple[list[Input], list[Input]]:
    """Tell CSV files that may be split at any line from those that one task has to read: with rows of several lines.

    Small and compressed files are read by one task anyway. In others Spark looks for lines with an odd number of
    quotes.
    """
    large = [each for each in files if not each.packed and (each.bytes is None or each.bytes > split_bytes)]
    if not large:
        return [], list(files)
    value = F.col("value")
    quotes = F.octet_length(value) - F.octet_length(F.replace(value.cast("string"), F.lit('"'), F.lit("")))
    rows = _texts(session, large).where(quotes % 2 == 1).select(_PATH).distinct().collect()
    opened = {place_of(row[0]) for row in rows}
    closed = [each for each in large if place_of(each.path) not in opened]
    return closed, [each for each in files if each not in closed]


def _use(session: SparkSession) -> None:
    """Make the session the one of this thread: Spark looks for data sources there."""
    if (java := getattr(session, "_jsparkSession", None)) is not None:  # a remote session has none
        session._jvm.SparkSession.setActiveSession(java)  # type: ignore[union-attr]  # it runs


@contextlib.contextmanager
def _settings(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    before = {name: session.conf.get(name) for name in settings}
    try:
        for name, value in settings.items():
            session.conf.set(name, value)
        yield
    finally:
        for name, known in before.items():
            session.conf.set(name, str(known))


def run_on_batches(
    session: SparkSession,
    frame: DataFrame,
    work: Callable[[Iterator[pa.RecordBatch]], list[T]],
    folder: Path,
    told: Told,
) -> list[T]:
    """Call `work` with the rows of each partition and return all its answers; PipelineError if it fails.

    `work` gives a list and pickles, as its answers do. Rows are Arrow batches, without pandas in between: Spark gives
    them so to the writer of a data source.
    """
    folder.mkdir(parents=True, exist_ok=True)
    answers = folder.resolve() / f"answers-{uuid.uuid4().hex}"
    session.dataSource.register(BatchSink)
    given = b64encode(pickle.dumps((work, str(answers)))).decode()
    sink = frame.write.format(BatchSink.name()).mode("append").option("work", given)
    _run_watched(session, sink.save, told)
    try:
        return pickle.loads(answers.read_bytes())  # type: ignore[no-any-return]  # the writer of `work` above
    finally:
        answers.unlink(missing_ok=True)


class BatchSink(DataSource):
    """Takes rows and calls a function with them. Spark makes one on the driver and pickles it."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`. Called on the driver."""
        return "aviso-batches"

    def writer(self, schema: StructType, overwrite: bool) -> _BatchWriter:
        """Make the writer. Called on the driver; the writer is pickled."""
        return _BatchWriter(*pickle.loads(b64decode(self.options["work"])))


class _Answer(WriterCommitMessage):
    """What one task has to say. Pickles."""

    def __init__(self, answer: list[Any]) -> None:
        self.answer = answer


class _BatchWriter(DataSourceArrowWriter):
    """Made on the driver; copies of it go to workers."""

    def __init__(self, work: Callable[[Iterator[pa.RecordBatch]], list[Any]], answers: str) -> None:
        self._work = work
        self._answers = answers

    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Answer:
        """Do the work with the rows of a partition. Called on a worker, once per attempt of a task."""
        gc.disable()  # rows come and go by the thousand and are in no circles
        try:
            return _Answer(self._work(iterator))
        finally:
            gc.enable()

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leave all answers for whoever asked. Called beside the driver, in another process, after all tasks."""
        found = [one for each in messages if isinstance(each, _Answer) for one in each.answer]
        draft = Path(f"{self._answers}.{os.getpid()}")
        draft.write_bytes(pickle.dumps(found))
        draft.replace(self._answers)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: some task failed, and there is no answer. Called beside the driver."""


def _run_watched(session: SparkSession, work: Callable[[], Any], told: Told) -> None:
    """Run a job of Spark and tell how far it is; PipelineError if it fails."""
    ended = threading.Event()
    total = 1

    def watch() -> None:
        nonlocal total
        while not ended.wait(_POLL):
            with contextlib.suppress(Exception):  # a remote session cannot tell
                tracker = session.sparkContext.statusTracker()
                stages = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
                total = max(total, sum(each.numTasks for each in stages if each is not None))
                told(sum(each.numCompletedTasks for each in stages if each is not None), total)

    watching = threading.Thread(target=watch, name="load progress", daemon=True)
    watching.start()
    try:
        work()
    except AvisoError:
        raise
    except Exception as error:  # Spark has many ways to say that a task failed
        raise PipelineError(reason(error)) from None
    finally:
        ended.set()
        watching.join()
        told(total, total)


def _check_batches(
    numbers: Mapping[str, int], files: Sequence[Input], task: CheckTask, batches: Iterator[pa.RecordBatch]
) -> list[Block]:
    """Check the rows of a partition, which has blocks of one file or of several. Runs on a worker."""
    checker = Checker(task.event_type, task.wanted, task.latest)
    found = []
    for (path, start), runs in groupby(_runs(batches), key=lambda run: run[0]):
        number = numbers[place_of(path)]
        rows = (batch for _, batch in runs)
        if files[number].form == "parquet":
            chunks = table_chunks(map(_table_rows, rows), checker, task.event_type)
            found.append(leave(chunks, number, start, task))
        else:
            pieces = (batch.column(0).to_pylist() for batch in rows)
            found.append(check_text_block(files[number], number, start, pieces, checker, task))
    return found


def _runs(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[tuple[str, int], pa.RecordBatch]]:
    """Yield the rows of each block, which are beside each other."""
    for batch in batches:
        left = batch
        while left.num_rows:
            path, start = left.column(_PATH), left.column(_START)
            count = left.num_rows
            if path[0] != path[-1] or start[0] != start[-1]:
                same = pc.and_(pc.equal(path, path[0]), pc.equal(start, start[0]))
                count = pc.index(same, False).as_py()
            yield (path[0].as_py(), start[0].as_py()), left.slice(0, count)
            left = left.slice(count)


def _table_rows(batch: pa.RecordBatch) -> tuple[int, pa.RecordBatch]:
    """Return a batch of a table without our own columns, with how many rows are before it."""
    return batch.column(_ROW)[0].as_py(), batch.select(range(batch.num_columns - 3))
