"""What the tests of the archive share: the pipeline process of a server under test, and what lies in an archive."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
from pyarrow import flight

from aviso_server.model.filter import Filter
from tests.harness import Server
from tests.harness.patience import PATIENCE
from tests.lake.scene import rows_in

__all__ = ["Caller", "Pipeline", "archived", "caller", "children", "in_log", "is_running", "until"]

SOURCES = Path(__file__).parents[3] / "src"
TOKEN = "a token for tests"


class Pipeline:
    """`python -m aviso_server.spark.process` for a server, as the server starts it."""

    def __init__(
        self,
        url: str,
        directory: Path,
        interval: float = 0.2,
        environment: dict[str, str] | None = None,
        options: tuple[str, ...] = (),
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.url = url
        self.directory = directory
        self.archive = str(directory / "archive")
        self.interval = interval
        self.environment = environment or {}
        self.options = options
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
        """Start it and return once it listens."""
        self._ready.unlink(missing_ok=True)
        with self.errors.open("ab") as errors:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "aviso_server.spark.process", "--url", self.url, "--path", self.archive),
                    *("--work", str(self.directory / "work"), "--ready-file", str(self._ready)),
                    *("--interval", str(self.interval), "--spark", "local[2]", *self.options),
                ],
                env={**os.environ, "PYTHONPATH": str(SOURCES), "AVISO_FLIGHT_TOKEN": TOKEN, **self.environment},
                stdin=subprocess.PIPE,
                stderr=errors,
            )
        until(lambda: self._ready.exists() or self.ended, 5 * PATIENCE, self.last_words)
        self._port = json.loads(self._ready.read_bytes()).get("port", 0) if self._ready.exists() else 0
        return self

    @property
    def ended(self) -> bool:
        """True if it is not running."""
        return self._process is None or self._process.poll() is not None

    def wait(self, seconds: float = 5 * PATIENCE) -> int:
        """Wait for its end and return its exit code."""
        assert self._process is not None
        return self._process.wait(seconds)

    def tell(self, word: str) -> None:
        """Say a word as the server does."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(word.encode() + b"\n")
        self._process.stdin.flush()

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
        until(lambda: not [pid for pid in java if is_running(pid)], PATIENCE, lambda: "Java is still there")

    def kill_java(self) -> None:
        """End its Java at once, when there is one."""
        until(lambda: children(self.pid), 5 * PATIENCE, self.last_words)
        for pid in children(self.pid):
            os.kill(pid, signal.SIGKILL)

    def ask(self, operation: str, **request: Any) -> Any:
        """Return the answer to an action."""
        with caller(self._port, TOKEN) as call:
            return call.ask(operation, **request)

    def replay(self, wanted: Filter, start: int, end: int) -> pa.Table:
        """Return the rows of a replay."""
        with caller(self._port, TOKEN) as call:
            return call.open("replay", filter=wanted.to_json().decode(), start=start, end=end).read_all()

    def archived(self, stream: str) -> int:
        """The last sequence that it says is archived; 0 if it does not answer."""
        try:
            return int(self.ask("status")["streams"].get(stream, {"last": 0})["last"])
        except flight.FlightError:
            return 0

    def until_archived(self, stream: str, last: int, seconds: float = 5 * PATIENCE) -> None:
        """Wait until the archive of a stream reaches a sequence."""
        until(lambda: self.archived(stream) >= last, seconds, self.last_words)

    def last_words(self) -> str:
        """What it has said on its error output."""
        return self.errors.read_text()[-3000:]


class Caller:
    """One who asks a Flight server of Spark's process, as a server does."""

    def __init__(self, client: flight.FlightClient, token: str) -> None:
        self._client = client
        self._options = flight.FlightCallOptions(
            headers=[(b"authorization", f"Bearer {token}".encode())], timeout=5 * PATIENCE
        )

    def ask(self, operation: str, **request: Any) -> Any:
        """Return the answer to an action."""
        (found,) = self._client.do_action(flight.Action(operation, json.dumps(request).encode()), self._options)
        return json.loads(found.body.to_pybytes())

    def open(self, operation: str, **request: Any) -> flight.FlightStreamReader:
        """Begin a replay or a count."""
        ticket = flight.Ticket(json.dumps({"op": operation, **request}).encode())
        return self._client.do_get(ticket, self._options)


@contextmanager
def caller(port: int, token: str) -> Iterator[Caller]:
    """A connection to a Flight server."""
    with flight.connect(f"grpc://127.0.0.1:{port}", generic_options=[("grpc.use_local_subchannel_pool", 1)]) as client:
        yield Caller(client, token)


def until(condition: Callable[[], object], seconds: float, words: Callable[[], str] = lambda: "") -> None:
    """Wait for something; fail with the words if it does not come."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {words()}"
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    """Find the Java of Spark that a process has started, not one that only tells its version."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                words = (place / "stat").read_text().rpartition(")")
                command = (place / "cmdline").read_bytes()
            except OSError:
                continue
            if int(words[2].split()[1]) == pid and words[0].endswith("(java") and b"org.apache.spark" in command:
                found.append(int(place.name))
    return found


def is_running(pid: int) -> bool:
    """True if there is such a process and it has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def archived(root: str, stream: str) -> pa.Table:
    """What a reader finds of a stream."""
    return rows_in(root, stream)


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
