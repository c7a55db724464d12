"""The processes of a benchmark: our server, the rivals, and the load generator."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from tests.harness import Server

__all__ = ["Bench", "Holding", "Measured", "Replayed", "Target"]

ROOT = Path(__file__).parents[1]
SOURCE = Path(__file__).with_name("load.c")
LONGEST = 300  # seconds that one run of the load generator may take


class Target(msgspec.Struct, frozen=True):
    """A running server: ours or a rival."""

    name: str
    port: int
    pid: int


class Measured(msgspec.Struct, frozen=True):
    """What the load generator saw in one run."""

    requests: int
    refused: int
    request_seconds: float
    ack_p50_us: int
    ack_p99_us: int
    deliveries: int
    missing: int
    lost: int
    seconds: float
    delivery_p50_us: int
    delivery_p99_us: int
    load_cpu: float  # of one core
    server_seconds: float  # CPU time of the server, all its threads

    @property
    def publishes_per_second(self) -> float:
        """Acknowledged publishes per second."""
        return self.requests / self.request_seconds

    @property
    def deliveries_per_second(self) -> float:
        """Events per second, all watchers together, until the last one has arrived."""
        return self.deliveries / self.seconds


class Replayed(msgspec.Struct, frozen=True):
    """What one replay brought."""

    deliveries: int
    bytes: int
    seconds: float
    first_us: int
    load_cpu: float  # of one core
    server_seconds: float  # CPU time of the server, all its threads

    @property
    def events_per_second(self) -> float:
        """Events per second, from the request to the last byte."""
        return self.deliveries / self.seconds


class Bench:
    """A temporary directory, the processes that run in it, and the load generator."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="aviso-bench-"))
        self.load = _build_load()
        self._servers: list[Server] = []
        self._rivals: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Bench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_all()
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def generator(self) -> str:
        """Which load generator is used."""
        return "C" if self.load[0] != sys.executable else "Python (no C compiler found)"

    def home(self, name: str) -> Path:
        """The working directory of our server of that name."""
        return self.directory / f"server-{name}"

    def server(self, config: Mapping[str, Any], name: str) -> Target:
        """Our server, running; the name says which one is meant."""
        server = Server(config, self.home(name)).start()
        self._servers.append(server)
        return Target(name, server.port, server.pid)

    def rival(self, name: str) -> Target:
        """A rival, running."""
        ready = self.directory / f"{name}.ready"
        ready.unlink(missing_ok=True)
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen([sys.executable, "-m", "bench.rivals", name, str(ready)], env=environment)
        self._rivals.append(process)
        deadline = time.monotonic() + 30
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the rival {name} did not start")
            time.sleep(0.01)
        return Target(name, json.loads(ready.read_bytes())["port"], process.pid)

    def stop_all(self) -> None:
        """End all servers and rivals."""
        for server in self._servers:
            server.stop()
        for process in self._rivals:
            process.terminate()
        for process in self._rivals:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._servers, self._rivals = [], []

    def run(self, target: Target, **options: Any) -> Measured:
        """Publish and watch; options as the load generator names them, True for those without a value."""
        return msgspec.json.decode(self._load("run", target, options), type=Measured)

    def replay(self, target: Target, filters: Path) -> Replayed:
        """One replay to its end."""
        return msgspec.json.decode(self._load("replay", target, {"filters": filters}), type=Replayed)

    def hold(self, target: Target, watchers: int, filters: Path) -> Holding:
        """Idle watchers, as long as the context lasts."""
        return Holding([*self.load, "run", *_options(target, {"watchers": watchers, "filters": filters}), "--hold"])

    def _load(self, mode: str, target: Target, options: Mapping[str, Any]) -> bytes:
        command = [*self.load, mode, *_options(target, options)]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=LONGEST).stdout


class Holding:
    """Watchers that stay connected and do nothing."""

    def __init__(self, command: list[str]) -> None:
        self._command = command

    def __enter__(self) -> Holding:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            raise RuntimeError("the watchers could not be opened")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate(timeout=30)


def _options(target: Target, options: Mapping[str, Any]) -> list[str]:
    words = ["--port", str(target.port), "--pid", str(target.pid)]
    for name, value in options.items():
        words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return words


def _build_load() -> list[str]:
    """The command of the load generator: compiled once per version of its source, else the slower one in Python."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return [sys.executable, str(Path(__file__).with_name("load.py"))]
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    program = ROOT / "build" / f"load-{digest}"
    if not program.exists():
        program.parent.mkdir(exist_ok=True)
        draft = program.with_suffix(f".{os.getpid()}")
        subprocess.run([compiler, "-O2", "-o", str(draft), str(SOURCE)], check=True)
        draft.rename(program)
    return [str(program)]
