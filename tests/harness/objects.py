"""An S3 server on loopback, and a way to it that is slow or refuses requests as often as a test wants."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.harness.patience import PATIENCE

__all__ = ["BUCKET", "FaultyWay", "ObjectStore", "environment", "store_running"]

BUCKET = "lake"
_REFUSAL = (
    b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nConnection: close\r\nContent-Length: 70\r\n\r\n"
    b"<Error><Code>SlowDown</Code><Message>reduce your rate</Message></Error>"
)


def environment(url: str) -> dict[str, str]:
    """The variables that lead to a store."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


class ObjectStore:
    """`moto_server` in a process of its own."""

    def __init__(self, directory: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = directory / "objects.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and make the bucket."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)],
                stdout=log, stderr=log, env={**os.environ, "MOTO_S3_CUSTOM_ENDPOINTS": self.url},
            )  # fmt: skip
        deadline = time.monotonic() + 2 * PATIENCE
        while True:
            try:
                request = urllib.request.Request(f"{self.url}/{BUCKET}", method="PUT")
                with urllib.request.urlopen(request, timeout=PATIENCE):
                    return
            except OSError:
                assert time.monotonic() < deadline, self._log.read_text()[-2000:]
                assert self._process.poll() is None, self._log.read_text()[-2000:]
                time.sleep(0.1)

    def stop(self) -> None:
        """End it; what it held is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def store_running(directory: Path) -> Iterator[ObjectStore]:
    """A store for a while."""
    store = ObjectStore(directory)
    store.start()
    try:
        yield store
    finally:
        store.stop()


class FaultyWay:
    """A proxy before a store: every so many connections are answered with 503, and all of them may be slow."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.refuse_every = 0  # 0: none
        self.delay = 0.0
        self.refused = 0
        self.lose_commits = 0  # so many more commits of tables are taken without an answer
        self._down = False
        self._open: set[socket.socket] = set()
        self.asked = 0  # requests so far
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Be as a store that has died: all connections break, and no new one is answered."""
        self._down = True
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Be as a store that is back, with all that it had acknowledged."""
        self._down = False

    def close(self) -> None:
        """Take no more connections."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._guarded, args=(connection,), daemon=True).start()

    def _guarded(self, connection: socket.socket) -> None:
        if self._down:
            connection.close()
            return
        self._open.add(connection)
        try:
            self._serve(connection)
        finally:
            self._open.discard(connection)

    def _serve(self, connection: socket.socket) -> None:
        """One request, and then the end: every request is a connection of its own, and may be refused."""
        with connection, suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                part = connection.recv(65536)
                if not part:
                    return
                head += part
            self.asked += 1
            time.sleep(self.delay)
            if self.refuse_every and self.asked % self.refuse_every == 0:
                self.refused += 1
                connection.sendall(_REFUSAL)
                return
            lines, _, rest = head.partition(b"\r\n\r\n")
            kept = [line for line in lines.split(b"\r\n") if not line.lower().startswith(b"connection:")]
            with socket.create_connection(("127.0.0.1", self._target), timeout=PATIENCE) as target:
                target.sendall(b"\r\n".join([*kept, b"Connection: close"]) + b"\r\n\r\n" + rest)
                threading.Thread(target=_pump, args=(connection, target), daemon=True).start()
                is_commit = head.startswith(b"PUT") and b"/_delta_log/" in lines.partition(b"\r\n")[0]
                while part := target.recv(65536):
                    if is_commit and self.lose_commits:
                        self.lose_commits -= 1
                        connection.shutdown(socket.SHUT_RDWR)
                        return
                    connection.sendall(part)


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while part := source.recv(65536):
            target.sendall(part)
