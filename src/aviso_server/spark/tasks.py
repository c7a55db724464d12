"""Work that is done by Spark's tasks: a function, called once for each item, wherever Spark has a core for it.

The same on this machine, on a cluster and on a Spark Connect server, and without pandas. What is carried is small: the
rows that a task reads or writes go between the worker and the server or the store.
"""

from __future__ import annotations

import os
import pickle
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar
from weakref import WeakSet

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from aviso_server.lake.storage import SETTINGS

__all__ = ["run_tasks"]

T = TypeVar("T")
R = TypeVar("R")

_FORMAT = "aviso-tasks"
_registered: WeakSet[SparkSession] = WeakSet()
_ARROW = pa.schema([("result", pa.binary())])


def run_tasks(session: SparkSession, work: Callable[[T], Iterable[R]], items: Sequence[T]) -> list[R]:
    """Call `work` with each item in a task of its own; all results, in no order.

    `work` is a function of a module, and pickles as all items and results do. Spark tries a task that fails again, on a
    cluster several times; what it raises in the end is Spark's, and `reason` finds the sentence in it.
    """
    if not items:
        return []
    if session not in _registered:  # Spark warns of a second time
        session.dataSource.register(TaskSource)
        _registered.add(session)
    settings = {name: os.environ[name] for name in SETTINGS if name in os.environ}
    given = b64encode(pickle.dumps((work, list(items), settings))).decode()
    rows = session.read.format(_FORMAT).option("tasks", given).load().collect()
    return [pickle.loads(row.result) for row in rows]


class TaskSource(DataSource):
    """Results of tasks as rows. Spark makes one on the driver and pickles it."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`. Called on the driver."""
        return _FORMAT

    def schema(self) -> str:
        """One row per result. Called on the driver."""
        return "result binary"

    def reader(self, schema: StructType) -> _Tasks:
        """The reader. Called on the driver; the reader is pickled, and this with it, so that the items leave here."""
        return _Tasks(*pickle.loads(b64decode(self.options.pop("tasks"))))


class _Tasks(DataSourceReader):
    """Made on the driver; copies of it go to workers."""

    def __init__(self, work: Callable[[Any], Iterable[Any]], items: list[Any], settings: dict[str, str]) -> None:
        self._work = work
        self._items = items
        self._settings = settings  # where the store is; workers find credentials themselves

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the items: each travels to its own task only."""
        return {**self.__dict__, "_items": []}

    def partitions(self) -> Sequence[InputPartition]:
        """One for each item. Called on the driver."""
        return [InputPartition(each) for each in self._items]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Do the work. Called on a worker, once per attempt of a task."""
        os.environ.update(self._settings)
        for result in self._work(partition.value):
            yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(result)], pa.binary())], schema=_ARROW)
