"""Flight over real connections: who gets in, what is refused, and what happens to those who leave."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from aviso_server.errors import PipelineError
from aviso_server.lake.remove import Removed
from aviso_server.model.explain import Tally
from aviso_server.model.filter import LONGEST_FILTER, Filter
from aviso_server.spark.archiver import ArchiveStatus
from aviso_server.spark.flight import REPLAY_SCHEMA, Cancelled, FlightServer, Selection
from tests.harness.patience import PATIENCE
from tests.lake.scene import sequences, write
from tests.spark.archive.keeping import SOURCES, Caller, caller, until

TOKEN = "a token"
EVERYTHING = Filter("flood", "flood", "flood").to_json().decode()
ROWS = 2000


class MemoryReader:
    """An archive that is read batch by batch, as slowly as a test wants."""

    def __init__(self) -> None:
        self.batches = 3
        self.gate = threading.Event()  # closed: readers get their first batch and wait
        self.gate.set()
        self.fails_after: int | None = None
        self.open = 0
        self.cancelled = 0
        self.hidden: Removed | None = None  # from the last count
        self._lock = threading.Lock()

    def read(self, selection: Selection, cancelled: Cancelled) -> Iterator[pa.RecordBatch]:
        with self._lock:
            self.open += 1
        try:
            for number in range(self.batches):
                if number == self.fails_after:
                    raise PipelineError("a file is gone")
                first = selection.start + number * ROWS
                yield pa.RecordBatch.from_pylist(
                    [
                        {"sequence": n, "time_ns": n, "topic": "flood", "identifier": "{}", "payload": "x" * 100}
                        for n in range(first, first + ROWS)
                    ],
                    REPLAY_SCHEMA,
                )
                while not self.gate.wait(0.02):
                    if cancelled():
                        with self._lock:
                            self.cancelled += 1
                        return
        finally:
            with self._lock:
                self.open -= 1

    def count(self, selection: Selection, unit: int, hidden: Removed, cancelled: Cancelled) -> Tally:
        with self._lock:
            self.open += 1
            self.hidden = hidden
        while not self.gate.wait(0.02) and not cancelled():
            pass
        with self._lock:
            self.open -= 1
            self.cancelled += cancelled()
        tally = Tally(unit)
        tally.times.update({selection.start: selection.end})
        tally.cells.update({(-1, 5): 3})
        return tally

    def first_since(self, stream: str, time_ns: int, version: int | None = None) -> int:
        return time_ns + 1

    def last_until(self, stream: str, time_ns: int, version: int | None = None) -> int:
        return time_ns - 1

    def close(self) -> None:
        pass


class Scene:
    def __init__(self, root: Path) -> None:
        self.reader = MemoryReader()
        self.board = ArchiveStatus(str(root))
        self.server = FlightServer(TOKEN, self.board, lambda: self.reader)

    @contextmanager
    def caller(self, token: str = TOKEN) -> Iterator[Caller]:
        with caller(self.server.port, token) as found:
            yield found

    def ask(self, operation: str, **request: Any) -> Any:
        with self.caller() as call:
            return call.ask(operation, **request)

    @contextmanager
    def replay(self, start: int = 1) -> Iterator[flight.FlightStreamReader]:
        with self.caller() as call:
            yield call.open("replay", filter=EVERYTHING, start=start, end=10**9)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    found = Scene(tmp_path)
    yield found
    found.reader.gate.set()
    found.server.shutdown()


def test_a_replay_is_a_stream_of_rows(scene: Scene) -> None:
    with scene.replay(start=5) as answer:
        table = answer.read_all()
    assert table.schema.equals(REPLAY_SCHEMA)
    assert table.column("sequence").to_pylist() == list(range(5, 5 + 3 * ROWS))


def test_a_replay_that_finds_nothing_is_complete(scene: Scene) -> None:
    scene.reader.batches = 0
    with scene.replay() as answer:
        assert answer.read_all().num_rows == 0


@pytest.mark.parametrize("after", [0, 2], ids=["at once", "half way"])
def test_a_replay_that_fails_says_why_and_never_looks_complete(scene: Scene, after: int) -> None:
    scene.reader.fails_after = after
    with scene.replay() as answer:
        for _ in range(after):
            assert answer.read_chunk().data.num_rows == ROWS
        with pytest.raises(flight.FlightServerError) as failed:
            answer.read_chunk()
    assert failed.value.extra_info == b"a file is gone"


def test_whoever_leaves_stops_the_work(scene: Scene) -> None:
    scene.reader.gate.clear()
    with scene.replay() as answer:
        answer.read_chunk()
        assert scene.reader.open == 1
        answer.cancel()
        until(lambda: scene.reader.open == 0, PATIENCE)
    assert scene.reader.cancelled == 1


def test_whoever_breaks_off_stops_the_work(scene: Scene) -> None:
    """Not only one who says so: a server that is killed has no time to cancel anything."""
    scene.reader.gate.clear()
    reading = f"""
import json, os
from pyarrow import flight
client = flight.connect("grpc://127.0.0.1:{scene.server.port}")
options = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer {TOKEN}")])
request = {{"op": "replay", "filter": {EVERYTHING!r}, "start": 1, "end": 9}}
client.do_get(flight.Ticket(json.dumps(request).encode()), options).read_chunk()
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", reading], env={"PYTHONPATH": str(SOURCES)}, check=False, timeout=60)
    until(lambda: scene.reader.open == 0 and scene.reader.cancelled == 1, 60)


def test_a_slow_reader_holds_the_archive_back(scene: Scene) -> None:
    scene.reader.batches = 500
    with scene.replay() as answer:
        first = answer.read_chunk().data
        time.sleep(0.5)
        assert scene.reader.open == 1, "most of it must still be to come"
        assert first.num_rows + answer.read_all().num_rows == 500 * ROWS


COUNT = {"filter": EVERYTHING, "start": 7, "end": 9, "unit": 60, "wiped_through": 3, "deleted": [8, 2]}


def test_a_count_is_one_row_of_sums(scene: Scene) -> None:
    with scene.caller() as call:
        (row,) = call.open("count", **COUNT).read_all().to_pylist()
    assert json.loads(row["tally"]) == {"times": [[7, 9]], "cells": [[-1, 5, 3]]}
    assert scene.reader.hidden == Removed(3, (8,))


def test_a_count_ends_with_who_asked(scene: Scene) -> None:
    scene.reader.gate.clear()
    with scene.caller() as call:
        counts = [call.open("count", **COUNT) for _ in range(3)]
        until(lambda: scene.reader.open == 3, PATIENCE)
        for each in counts:
            each.cancel()
        until(lambda: scene.reader.open == 0, PATIENCE)
    assert scene.reader.cancelled == 3


def test_streams_are_bounded(scene: Scene) -> None:
    scene.reader.gate.clear()
    with scene.caller() as call:
        held = [call.open("replay", filter=EVERYTHING, start=1, end=10**9) for _ in range(64)]
        until(lambda: scene.reader.open == 64, PATIENCE)
        with pytest.raises(flight.FlightServerError) as refused:
            call.open("replay", filter=EVERYTHING, start=1, end=10**9).read_chunk()
        assert refused.value.extra_info == b"more than 64 streams are open"
        for each in held:
            each.cancel()
        until(lambda: scene.reader.open == 0, PATIENCE)
        scene.reader.gate.set()
        assert call.open("replay", filter=EVERYTHING, start=1, end=10**9).read_all().num_rows == 3 * ROWS


@pytest.mark.parametrize("token", ["", "wrong", "Bearer"])
def test_nobody_gets_in_without_the_token(scene: Scene, token: str) -> None:
    with scene.caller(token) as call:
        with pytest.raises(flight.FlightUnauthenticatedError, match="the token is wrong"):
            call.ask("status")
        with pytest.raises(flight.FlightUnauthenticatedError, match="the token is wrong"):
            call.open("replay", filter=EVERYTHING, start=1, end=2).read_all()


REPLAY = {"op": "replay", "filter": EVERYTHING, "start": 1, "end": 2}


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({"op": "count", **COUNT, "unit": 0}, "the request is wrong: Expected `int` >= 1 - at `$.unit`"),
        (
            {"op": "count", **COUNT, "deleted": ["8"]},
            "the request is wrong: Expected `int`, got `str` - at `$.deleted[0]`",
        ),
        ({"op": "count", **COUNT, "filter": ""}, "filter: Input data was truncated"),
        ({**REPLAY, "filter": "[1]"}, "filter: Expected `object`, got `array`"),
        ({**REPLAY, "filter": "no JSON"}, "filter: JSON is malformed"),
        ({**REPLAY, "filter": "x" * (LONGEST_FILTER + 1)}, "filter: a filter of 16,777,217 bytes is too long"),
        ({**REPLAY, "start": True}, "the request is wrong: Expected `int`, got `bool` - at `$.start`"),
        ({"op": "explode"}, "the request is wrong: Invalid value 'explode' - at `$.op`"),
        ({}, "the request is wrong: Expected `str` - at `$.op`"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_streams_that_are_refused(scene: Scene, request_: dict[str, Any], error: str) -> None:
    with scene.caller() as call, pytest.raises(flight.FlightServerError) as refused:
        call.open(request_.pop("op", None), **request_).read_all()
    assert refused.value.extra_info.decode().startswith(error)


@pytest.mark.parametrize(
    ("operation", "request_", "error"),
    [
        ("explode", {}, "'explode' is not an action"),
        ("first_since", {"stream": "flood"}, "the request is wrong: Object missing required field `time`"),
        ("delete", {"sequences": [1]}, "the request is wrong: Object missing required field `stream`"),
        (
            "delete",
            {"stream": "flood", "sequences": 1},
            "the request is wrong: Expected `array`, got `int` - at `$.sequences`",
        ),
    ],
)
def test_actions_that_are_refused(scene: Scene, operation: str, request_: dict[str, Any], error: str) -> None:
    with pytest.raises(flight.FlightServerError) as refused:
        scene.ask(operation, **request_)
    assert refused.value.extra_info.decode().startswith(error)


def test_rubbish_harms_nobody(scene: Scene) -> None:
    for rubbish in (b"\n", b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b"\xff\xfe\n", b"no end"):
        with socket.create_connection(("127.0.0.1", scene.server.port), timeout=60) as connection:
            connection.sendall(rubbish)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1000)
    assert scene.ask("status")["streams"] == {}


def test_only_this_machine_is_listened_to(scene: Scene) -> None:
    tables = [Path(name).read_text().splitlines()[1:] for name in ("/proc/net/tcp", "/proc/net/tcp6")]
    listening = [line.split()[1] for table in tables for line in table if line.split()[3] == "0A"]
    places = [place.partition(":")[0] for place in listening if place.endswith(f":{scene.server.port:04X}")]
    assert places in (["0100007F"], ["0000000000000000FFFF00000100007F"]), "127.0.0.1, and nowhere else"


def test_status_and_seeking(scene: Scene) -> None:
    table = write(Path(scene.board.tables.root), 1, 10)
    scene.board.read()
    answer = scene.ask("status")
    assert answer["job"]["state"] == "stopped"
    facts = answer["streams"]["flood"]
    size = table.snapshot().files[0].bytes
    assert (facts["first"], facts["last"], facts["gapless"]) == (1, 10, 10)
    assert (facts["files"], facts["bytes"], facts["last_error"]) == (1, size, None)
    assert scene.ask("first_since", stream="flood", time=41) == {"sequence": 42}
    assert scene.ask("last_until", stream="flood", time=41) == {"sequence": 40}


def test_what_was_known_at_a_time(scene: Scene) -> None:
    write(Path(scene.board.tables.root), 1, 10)
    time.sleep(0.01)
    now = time.time_ns()
    time.sleep(0.01)
    write(Path(scene.board.tables.root), 11, 20)
    assert scene.ask("version_at", stream="flood", time=now) == {"version": 0, "last": 10}
    assert scene.ask("version_at", stream="flood", time=time.time_ns())["last"] == 20
    assert scene.ask("version_at", stream="flood", time=1)["gone"].startswith("the oldest version of its table")
    assert scene.ask("version_at", stream="tide", time=1) == {"gone": "nothing of stream 'tide' was archived then"}


def test_deletes_and_wipes_are_carried_out_or_remembered(scene: Scene) -> None:
    root = Path(scene.board.tables.root)
    write(root, 1, 20)
    answer = scene.ask("delete", stream="flood", sequences=[7, 8, 25])
    assert answer == {"deleted": [7, 8], "early": [25]}
    assert scene.ask("delete", stream="flood", sequences=[7]) == {"deleted": [], "early": []}
    assert sequences(root) == [number for number in range(1, 21) if number not in (7, 8)]
    assert scene.ask("wipe", stream="flood", through=9) == {"early": False}
    assert sequences(root) == list(range(10, 21))
    assert scene.ask("wipe", stream="flood", through=22) == {"early": True}
    assert sequences(root) == []
    with scene.board.removals.settling("flood", 20) as removed:
        assert removed == Removed(22, (25,)), "rows may be on their way into the archive"
    assert scene.ask("status")["streams"]["flood"]["last"] == 20
