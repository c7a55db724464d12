"""The bridge over a real connection: who gets in, who waits, and what happens to those who leave."""

from __future__ import annotations

import base64
import json
import pickle
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from aviso_server.errors import PipelineError
from aviso_server.model.arrow import END_OF_STREAM
from aviso_server.model.filter import Filter
from aviso_server.model.tally import Tally
from aviso_server.pipeline.archive.layout import data_path, stream_folder
from aviso_server.pipeline.archive.status import Board
from aviso_server.pipeline.archive.storage import LOCAL
from aviso_server.pipeline.archive.tombstones import Tombstones, read_tombstones
from aviso_server.pipeline.bridge.operations import ArchiveOperations
from aviso_server.pipeline.bridge.server import REPLAY_SCHEMA, Bridge
from tests.pipeline.archive.keeping import until

TOKEN = "a token"
EVERYTHING = base64.b64encode(pickle.dumps(Filter("flood", "flood", "flood"))).decode()
ROWS = 2000


class Shelf:
    """An archive that is read batch by batch, as slowly as a test wants."""

    def __init__(self) -> None:
        self.batches = 3
        self.gate = threading.Event()  # closed: readers get their first batch and wait
        self.gate.set()
        self.passes: set[int] = set()  # where those readers start who need not wait
        self.fails_after: int | None = None
        self.open = 0
        self.most_open = 0
        self.order: list[int] = []
        self.cancelled = 0
        self.hidden: Tombstones | None = None  # from the last count
        self._lock = threading.Lock()

    def read(self, wanted: Filter, start: int, end: int, cancelled: threading.Event) -> Iterator[pa.RecordBatch]:
        with self._lock:
            self.open += 1
            self.most_open = max(self.most_open, self.open)
            self.order.append(start)
        try:
            for number in range(self.batches):
                if number == self.fails_after:
                    raise PipelineError("a file is gone")
                first = start + number * ROWS
                yield pa.RecordBatch.from_pylist(
                    [
                        {"sequence": n, "time_ns": n, "topic": "flood", "identifier": "{}", "payload": "x" * 100}
                        for n in range(first, first + ROWS)
                    ],
                    REPLAY_SCHEMA,
                )
                while start not in self.passes and not self.gate.wait(0.02):
                    if cancelled.is_set():
                        return
        finally:
            with self._lock:
                self.open -= 1
                self.cancelled += cancelled.is_set()

    def count(
        self, wanted: Filter, start: int, end: int, unit: int, hidden: Tombstones, cancelled: threading.Event
    ) -> Tally:
        with self._lock:
            self.open += 1
            self.hidden = hidden
        while not self.gate.wait(0.02) and not cancelled.is_set():
            pass
        with self._lock:
            self.open -= 1
            self.cancelled += cancelled.is_set()
        tally = Tally(unit)
        tally.times.update({start: end})
        tally.cells.update({(-1, 5): 3})
        return tally

    def first_since(self, stream: str, time_ns: int) -> int:
        return time_ns + 1

    def last_until(self, stream: str, time_ns: int) -> int:
        return time_ns - 1

    def close(self) -> None:
        pass


class Scene:
    def __init__(self, root: Path) -> None:
        self.shelf = Shelf()
        self.board = Board(str(root), LOCAL)
        self.told = threading.Event()
        self.bridge = Bridge(TOKEN, ArchiveOperations(self.board, lambda: self.shelf, self.told.set), most_replays=2)
        self.bridge.start()

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        return len(self.bridge._replays._waiting)

    def has_begun(self, count: int) -> bool:
        """True if so many have begun to read."""
        return len(self.shelf.order) >= count

    def connect(self, **request: Any) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.bridge.port), timeout=20)
        connection.sendall(json.dumps({"token": TOKEN, **request}).encode() + b"\n")
        return connection

    def ask(self, **request: Any) -> Any:
        with self.connect(**request) as connection, connection.makefile("rb") as answer:
            return json.loads(answer.readline())

    @contextmanager
    def replay(self, start: int = 1) -> Iterator[Any]:
        request = {"op": "replay", "stream": "flood", "filter": EVERYTHING, "start": start, "end": 10**9}
        with self.connect(**request) as connection, connection.makefile("rb") as answer:
            yield answer


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    found = Scene(tmp_path)
    yield found
    found.shelf.gate.set()
    found.bridge.close()


def test_a_replay_is_one_line_and_an_arrow_stream_to_its_mark(scene: Scene) -> None:
    with scene.replay(start=5) as answer:
        assert json.loads(answer.readline()) == {"ok": True}
        content = answer.read()
    assert content.endswith(END_OF_STREAM)
    table = pa.ipc.open_stream(content).read_all()
    assert table.schema.equals(REPLAY_SCHEMA)
    assert table.column("sequence").to_pylist() == list(range(5, 5 + 3 * ROWS))


def test_a_replay_that_finds_nothing_is_complete(scene: Scene) -> None:
    scene.shelf.batches = 0
    with scene.replay() as answer:
        assert json.loads(answer.readline()) == {"ok": True}
        content = answer.read()
    assert content.endswith(END_OF_STREAM)
    assert pa.ipc.open_stream(content).read_all().num_rows == 0


def test_a_replay_that_fails_at_once_says_why(scene: Scene) -> None:
    scene.shelf.fails_after = 0
    with scene.replay() as answer:
        assert json.loads(answer.readline()) == {"ok": False, "error": "a file is gone"}
        assert answer.read() == b""


def test_a_replay_that_fails_half_way_has_no_mark_at_its_end(scene: Scene) -> None:
    scene.shelf.fails_after = 2
    with scene.replay() as answer:
        assert json.loads(answer.readline()) == {"ok": True}
        content = answer.read()
    assert not content.endswith(END_OF_STREAM)
    assert pa.ipc.open_stream(content).read_all().num_rows == 2 * ROWS


def test_so_many_at_a_time_and_the_others_in_their_order(scene: Scene) -> None:
    scene.shelf.gate.clear()
    connections = {}
    for number in range(5):
        connections[number] = scene.connect(op="replay", filter=EVERYTHING, start=number, end=10**9, stream="flood")
        until(lambda: scene.shelf.open + scene.waiting == len(connections), 20)  # each has its place before the next
    assert scene.shelf.order == [0, 1]
    connections.pop(2).close()  # leaves while it waits
    until(lambda: scene.waiting == 2, 20)
    for number in (0, 1, 3, 4):
        begun = len(scene.shelf.order)
        scene.shelf.passes.add(number)  # one place becomes free at a time, so that one begins after the other
        with connections[number] as connection, connection.makefile("rb") as answer:
            assert answer.readline() == b'{"ok":true}\n'
            assert answer.read().endswith(END_OF_STREAM)
        if number < 2:
            until(partial(scene.has_begun, begun + 1), 20)
    assert scene.shelf.order == [0, 1, 3, 4]
    assert scene.shelf.most_open == 2


def test_whoever_leaves_stops_the_work(scene: Scene) -> None:
    scene.shelf.gate.clear()
    with scene.replay() as answer:
        assert json.loads(answer.readline()) == {"ok": True}
        assert scene.shelf.open == 1
    until(lambda: scene.shelf.open == 0, 5)
    assert scene.shelf.cancelled == 1


def test_a_slow_reader_holds_the_archive_back(scene: Scene) -> None:
    scene.shelf.batches = 500
    with scene.replay() as answer:
        answer.readline()
        time.sleep(0.5)
        assert scene.shelf.open == 1, "most of it must still be to come"
        table = pa.ipc.open_stream(answer.read()).read_all()
    assert table.num_rows == 500 * ROWS


COUNT = {"op": "count", "filter": EVERYTHING, "start": 7, "end": 9, "unit": 60, "wiped_through": 3, "deleted": [8, 2]}


def test_a_count_is_one_line_of_sums(scene: Scene) -> None:
    assert scene.ask(**COUNT) == {"ok": True, "times": [[7, 9]], "cells": [[-1, 5, 3]]}
    assert scene.shelf.hidden == Tombstones(3, (8,))


def test_counts_wait_with_the_replays_and_end_with_who_asked(scene: Scene) -> None:
    scene.shelf.gate.clear()
    counts = [scene.connect(**COUNT) for _ in range(3)]
    until(lambda: scene.shelf.open == 2, 5)
    time.sleep(0.3)
    assert scene.shelf.open == 2, "so many at a time"
    for connection in counts:
        connection.close()
    until(lambda: scene.shelf.open == 0, 5)
    assert scene.shelf.cancelled >= 2


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({**COUNT, "unit": 0}, "unit: at least one nanosecond is needed"),
        ({**COUNT, "deleted": ["8"]}, "deleted: a list of whole numbers is needed"),
        ({**COUNT, "filter": ""}, "filter: a text is needed"),
        ({"op": "status", "token": "wrong"}, "the token is wrong"),
        ({"op": "replay", "token": ""}, "the token is wrong"),
        ({"op": "explode"}, "op: 'explode' is not an operation"),
        ({"op": "first_since", "stream": "flood"}, "time: a whole number is needed"),
        ({"op": "delete", "sequence": 1}, "stream: a text is needed"),
    ],
)
def test_what_is_refused(scene: Scene, request_: dict[str, Any], error: str) -> None:
    answer = scene.ask(**request_)
    assert answer["ok"] is False
    assert answer["error"].startswith(error)


def test_rubbish_harms_nobody(scene: Scene) -> None:
    for rubbish in (b"\n", b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b"\xff\xfe\n", b"no end"):
        with socket.create_connection(("127.0.0.1", scene.bridge.port), timeout=5) as connection:
            connection.sendall(rubbish)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1000)
    assert scene.ask(op="status")["ok"]


def test_status_and_seeking(scene: Scene) -> None:
    LOCAL.write(data_path(scene.board.root, "flood", 1, 10), b"12345")
    scene.board.read()
    answer = scene.ask(op="status")
    assert answer["job"]["state"] == "stopped"
    facts = answer["streams"]["flood"]
    assert (facts["first"], facts["last"], facts["files"], facts["bytes"], facts["last_error"]) == (1, 10, 1, 5, None)
    assert scene.ask(op="first_since", stream="flood", time=41) == {"ok": True, "sequence": 42}
    assert scene.ask(op="last_until", stream="flood", time=41) == {"ok": True, "sequence": 40}


def test_deletes_and_wipes_become_marks(scene: Scene) -> None:
    folder = stream_folder(scene.board.root, "flood")
    assert scene.ask(op="delete", stream="flood", sequence=7) == {"ok": True, "deleted": False}
    assert read_tombstones(folder) == Tombstones(0, (7,)), "it may be on its way into the archive"
    assert scene.told.is_set()
    assert scene.ask(op="wipe", stream="flood", through=9) == {"ok": True}
    assert read_tombstones(folder) == Tombstones(9)
