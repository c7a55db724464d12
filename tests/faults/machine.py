"""A server, the broker behind it if it has one, and everything that can go wrong with them."""

from __future__ import annotations

import mmap
import resource
import shutil
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any

from aviso_server.log.jetstream.local_broker import LocalBroker
from tests.faults import recorder
from tests.harness import Server
from tests.harness.broker import single
from tests.harness.client import body, encode
from tests.harness.patience import PATIENCE

__all__ = ["HOUR", "Machine", "machine"]

SHIM = Path(__file__).with_name("shim.c")
HOUR = 3600 * 10**9
NOWHERE_TO_WRITE = 1  # bytes of the largest file


class Machine:
    """One server with its log. Each method is a fault that begins and ends; `chance` decides the details."""

    def __init__(self, kind: str, server: Server, broker: LocalBroker | None, controls: mmap.mmap | None) -> None:
        self.kind = kind
        self.server = server
        self.broker = broker
        self._controls = controls

    def faults(self) -> dict[str, Callable[[Random], None]]:
        """What can happen to this log and be survived: a log in memory cannot survive its process."""
        found: dict[str, Callable[[Random], None]] = {"hang": self.hang, "broken connections": self.break_connections}
        if self.kind != "in_memory":
            found |= {"kill": self.kill, "restart": self.restart}
        if self.kind == "sqlite":
            found |= {"full disk": self.fill_disk}
        if self._controls is not None:
            found |= {"clock": self.jump}
            if self.kind == "sqlite":
                found |= {"failing disk": self.fail_to_sync}
        if self.broker is not None:
            found |= {"broker kill": self.kill_broker, "broker hang": self.hang_broker}
        return found

    def kill(self, chance: Random) -> None:
        """The process dies at once."""
        self.server.kill()
        time.sleep(chance.uniform(0.0, 0.3))
        self.server.start()

    def restart(self, chance: Random) -> None:
        """The process is told to stop, and started again."""
        self.server.stop()
        self.server.start()

    def hang(self, chance: Random) -> None:
        """The process gets no time."""
        self.server.signal(signal.SIGSTOP)
        time.sleep(chance.uniform(0.05, 1.5))
        self.server.signal(signal.SIGCONT)

    def break_connections(self, chance: Random) -> None:
        """Clients vanish in the middle of everything."""
        for _ in range(chance.randrange(5, 40)):
            operation = chance.choice(("watch", "replay", "notification"))
            start = {} if operation == "watch" and chance.random() < 0.5 else {"from_id": "1"}
            content = encode(body(recorder.EVENT_TYPE, {}, **start))
            lines = (f"POST /api/v1/{operation} HTTP/1.1", "Host: localhost", f"Content-Length: {len(content)}", "", "")
            head = "\r\n".join(lines).encode()
            request = (head + content) * 2
            with socket.create_connection((self.server.host, self.server.port), timeout=PATIENCE) as connection:
                if chance.random() < 0.5:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset
                cut = chance.choice((chance.randrange(1, len(request)), len(request)))
                if operation == "notification":
                    cut = min(cut, len(head) + len(content) - 1)  # what is whole would be published
                connection.sendall(request[:cut])
                if cut == len(request):
                    connection.recv(1)  # they leave while their stream is open and another request waits behind it

    def fill_disk(self, chance: Random) -> None:
        """No file can grow."""
        with self.full_disk():
            time.sleep(chance.uniform(0.1, 1.0))

    @contextmanager
    def failing_disk(self) -> Iterator[None]:
        """Let every fsync fail."""
        self._control(1, 1)
        try:
            yield
        finally:
            self._control(1, 0)

    @contextmanager
    def lying_disk(self) -> Iterator[None]:
        """Let every fsync of the database claim what it has not done; a power cut then takes what was written."""
        self._control(1, 2)
        try:
            yield
        finally:
            self._control(1, 0)

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """Let no file grow."""
        before = resource.prlimit(self.server.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.server.pid, resource.RLIMIT_FSIZE, (NOWHERE_TO_WRITE, before[1]))
        try:
            yield
        finally:
            resource.prlimit(self.server.pid, resource.RLIMIT_FSIZE, before)

    @property
    def has_shim(self) -> bool:
        """True if the disk can fail and lie, and the clock can jump."""
        return self._controls is not None

    def set_clock(self, nanoseconds: int) -> None:
        """Let the clock of the server differ from the true time by so much."""
        self._control(0, nanoseconds)

    def fail_to_sync(self, chance: Random) -> None:
        """The disk reports errors for a while: the log trusts nothing it wrote until it is started again."""
        with self.failing_disk():
            time.sleep(chance.uniform(0.1, 1.0))
            if chance.random() < 0.5:
                self.server.kill()
        self.server.stop()
        self.server.start()

    def jump(self, chance: Random) -> None:
        """The clock jumps, forwards or backwards, and stays there."""
        self.set_clock(chance.randrange(-48 * HOUR, 48 * HOUR))

    def kill_broker(self, chance: Random) -> None:
        """The broker dies at once."""
        assert self.broker is not None
        self.broker.kill()
        time.sleep(chance.uniform(0.0, 1.0))
        self.broker.start()

    def hang_broker(self, chance: Random) -> None:
        """The broker gets no time."""
        assert self.broker is not None
        self.broker.pause()
        time.sleep(chance.uniform(0.1, 2.0))
        self.broker.resume()

    def _control(self, place: int, value: int) -> None:
        assert self._controls is not None
        struct.pack_into("q", self._controls, 8 * place, value)


@contextmanager
def machine(kind: str, directory: Path) -> Iterator[Machine]:
    """Start a server with this kind of log; without a C compiler its clock and its disk are sound."""
    with ExitStack() as running:
        broker = running.enter_context(single(directory / "broker")) if kind == "jetstream" else None
        config = recorder.configuration(broker.url if broker is not None else "nats://127.0.0.1:1")
        backend: dict[str, Any] = config["notification_backend"]
        backend |= {"kind": kind, "sqlite": {"path": "log"}, "in_memory": {"max_history_per_topic": 10_000_000}}
        if kind == "in_memory":
            schema = recorder.SCHEMA["tide"]
            config["notification_schema"] = {"tide": {name: schema[name] for name in ("topic", "identifier")}}
        controls, environment = _controls(directory)
        server = Server(config, directory / "server", environment)
        running.callback(server.kill)
        server.start()
        yield Machine(kind, server, broker, controls)


def _controls(directory: Path) -> tuple[mmap.mmap | None, dict[str, str]]:
    compiler = shutil.which("cc")
    if compiler is None:
        print("no C compiler: clocks do not jump and disks do not fail")
        return None, {}
    library, file = directory / "shim.so", directory / "controls"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SHIM, "-ldl"], check=True)
    file.write_bytes(bytes(16))
    with file.open("r+b") as opened:
        controls = mmap.mmap(opened.fileno(), 16)
    return controls, {"LD_PRELOAD": str(library), "AVISO_FAULTS": str(file)}
