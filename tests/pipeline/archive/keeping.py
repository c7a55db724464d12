"""What the tests of the archive share: the pipeline process of a server under test, and what lies in an archive."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from aviso_server.pipeline.archive.layout import listing, stream_folder
from tests.harness import Server

__all__ = ["Pipeline", "archived", "children", "in_log", "is_running", "until"]

SOURCES = Path(__file__).parents[3] / "src"
TOKEN = "a token for tests"


class Pipeline:
    """`python -m aviso_server.pipeline.process` for a server, as the server starts it."""

    def __init__(
        self, url: str, directory: Path, interval: float = 0.2, environment: dict[str, str] | None = None
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.url = url
        self.directory = directory
        self.archive = str(directory / "archive")
        self.interval = interval
        self.environment = environment or {}
        self.errors = directory / "stderr.txt"
        self._ready = directory / "ready.json"
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    def __enter__(self) -> Pipeline:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> Pipeline:
        """Start it and return once its bridge listens."""
        self._ready.unlink(missing_ok=True)
        with self.errors.open("ab") as errors:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "aviso_server.pipeline.process", "--url", self.url, "--path", self.archive),
                    *("--work", str(self.directory / "work"), "--ready-file", str(self._ready)),
                    *("--interval", str(self.interval), "--spark", "local[2]"),
                ],
                env={**os.environ, "PYTHONPATH": str(SOURCES), "AVISO_BRIDGE_TOKEN": TOKEN, **self.environment},
                stdin=subprocess.PIPE,
                stderr=errors,
            )
        until(lambda: self._ready.exists() or self.ended, 120, self.last_words)
        self._port = json.loads(self._ready.read_bytes()).get("port", 0) if self._ready.exists() else 0
        return self

    @property
    def ended(self) -> bool:
        """True if it is not running."""
        return self._process is None or self._process.poll() is not None

    def wait(self, seconds: float = 120.0) -> int:
        """Wait for its end and return its exit code."""
        assert self._process is not None
        return self._process.wait(seconds)

    def hang_up(self) -> int:
        """End its standard input, as the death of the server would, and wait for its end."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self.wait()

    def kill(self) -> None:
        """End it at once, and wait until its Java is gone too."""
        if self._process is None:
            return
        java = children(self._process.pid)
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process = None
        until(lambda: not [pid for pid in java if is_running(pid)], 20, lambda: "Java is still there")

    def kill_java(self) -> None:
        """End its Java at once, when there is one."""
        until(lambda: children(self.pid), 120, self.last_words)
        for pid in children(self.pid):
            os.kill(pid, signal.SIGKILL)

    def connect(self, **request: Any) -> socket.socket:
        """A connection over which a request has gone out."""
        connection = socket.create_connection(("127.0.0.1", self._port), timeout=60)
        connection.sendall(json.dumps({"token": TOKEN, **request}).encode() + b"\n")
        return connection

    def ask(self, **request: Any) -> Any:
        """The answer to a request."""
        with self.connect(**request) as connection, connection.makefile("rb") as answer:
            return json.loads(answer.readline())

    def archived(self, stream: str) -> int:
        """The last sequence that it says is archived; 0 if it does not answer."""
        try:
            return int(self.ask(op="status")["streams"].get(stream, {"last": 0})["last"])
        except (OSError, ValueError):
            return 0

    def until_archived(self, stream: str, last: int, seconds: float = 180.0) -> None:
        """Wait until the archive of a stream reaches a sequence."""
        until(lambda: self.archived(stream) >= last, seconds, self.last_words)

    def last_words(self) -> str:
        """What it has said on its error output."""
        return self.errors.read_text()[-3000:]


def until(condition: Callable[[], object], seconds: float, words: Callable[[], str] = lambda: "") -> None:
    """Wait for something; fail with the words if it does not come."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {words()}"
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    """The Java processes that a process has started."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                words = (place / "stat").read_text().rpartition(")")
            except OSError:
                continue
            if int(words[2].split()[1]) == pid and words[0].endswith("(java"):
                found.append(int(place.name))
    return found


def is_running(pid: int) -> bool:
    """True if there is such a process and it has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def archived(root: str, stream: str) -> pa.Table:
    """What a reader finds of a stream: the rows of its files one after the other, after a look at their names."""
    files = listing(stream_folder(root, stream))
    expected = 1
    tables = []
    for each in files:
        assert each.first == expected, f"a gap or an overlap before {each.path}"
        expected = each.last + 1
        table = pq.ParquetFile(each.path).read(["sequence", "time_ns", "topic", "identifier", "payload"])
        if table.num_rows:
            sequences = table.column("sequence").to_pylist()
            assert each.first <= sequences[0] <= sequences[-1] <= each.last
        tables.append(table)
    return pa.concat_tables(tables)


def in_log(server: Server, event_type: str) -> pa.Table:
    """The same out of the server's log."""
    body = json.dumps({"event_type": event_type, "identifier": {}, "from_id": "1"}).encode()
    headers = (
        ("Content-Type", "application/json"),
        ("Accept", "application/vnd.apache.arrow.stream"),
        ("Prefer", "handling=lenient"),
    )
    answer = server.client.request("POST", "/api/v1/replay", body, headers)
    assert answer.status == 200, answer.body
    table = pa.ipc.open_stream(answer.body).read_all()
    return table.select(["sequence", "time_ns", "topic", "identifier", "payload"]).replace_schema_metadata(None)
