"""An aviso-server process under test: start it, read what it prints, end it, start it again on the same data."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import yaml

from tests.harness.client import Client
from tests.harness.patience import PATIENCE
from tests.harness.warm import Forked, nest

__all__ = ["Server", "StartFailed"]

SOURCES = Path(__file__).parents[2] / "src"


class StartFailed(Exception):
    """The process ended before it listened; `exit_code` and `output` say how."""

    def __init__(self, exit_code: int, output: str) -> None:
        super().__init__(f"the server ended with exit code {exit_code} before it listened:\n{output}")
        self.exit_code = exit_code
        self.output = output


class Server:
    """`aviso-server serve` in its own process, with its own working directory.

    `config` is a mapping (written to `config.yaml` in the directory) or the path of a file. The configuration should
    say `application.port: 0`, so that the process picks a free port and reports it through its ready file. The process
    gets the variables in `environment`, and those in `inherited`: by default all of this process but our own.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | Path,
        directory: Path,
        environment: Mapping[str, str] | None = None,
        open_files: int | None = None,
        arguments: Sequence[str] = ("serve",),
        inherited: Mapping[str, str] | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        if isinstance(config, Path):
            self.config_file = config
        else:
            self.config_file = directory / "config.yaml"
            self.config_file.write_text(yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))
        self.directory = directory
        self.environment = dict(environment or {})
        self.open_files = open_files  # as many as the system lets the process have; None: as many as this one
        self._arguments = arguments
        self._inherited = inherited
        self._ready = directory / "ready.json"
        self.host = ""
        self.port = 0
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self._stdout: list[bytes] = []
        self._stderr: list[bytes] = []
        self._readers: list[threading.Thread] = []

    def __enter__(self) -> Server:
        return self if self._process is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Where the server answers, without a slash at the end."""
        return f"http://{self.host}:{self.port}"

    @property
    def client(self) -> Client:
        """A client for this server."""
        return Client(self.host, self.port)

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    @property
    def stdout(self) -> str:
        """What this process has printed so far."""
        return b"".join(self._stdout).decode()

    @property
    def stderr(self) -> str:
        """What this process has printed to its error output so far."""
        return b"".join(self._stderr).decode()

    def start(self, timeout: float = 2 * PATIENCE) -> Server:
        """Start the process and return once it listens; raise StartFailed if it ends instead."""
        self.launch()
        return self.wait_until_listening(timeout)

    def launch(self) -> None:
        """Start the process."""
        assert self._process is None, "the server is running already"
        self._ready.unlink(missing_ok=True)
        self._stdout, self._stderr = [], []
        process = self._process = self._started([*self._arguments, "--ready-file", str(self._ready)])
        # Pipes and not files: a test may limit the size of the files that the process writes.
        self._readers = [_drain(process.stdout, self._stdout), _drain(process.stderr, self._stderr)]

    def wait_until_listening(self, timeout: float = 2 * PATIENCE) -> Server:
        """Return once the process listens; raise StartFailed if it ends instead."""
        assert self._process is not None, "the server is not running"
        deadline = time.monotonic() + timeout
        while not self._ready.exists():
            if self._process.poll() is not None:
                code = self.wait()
                raise StartFailed(code, self.stdout + self.stderr)
            if time.monotonic() > deadline:
                self.kill()
                raise TimeoutError(f"the server did not listen within {timeout} s:\n{self.stdout}{self.stderr}")
            time.sleep(0.01)
        address = json.loads(self._ready.read_bytes())
        self.host, self.port = address["host"], address["port"]
        return self

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        assert self._process is not None, "the server is not running"
        self._process.send_signal(number)

    def wait(self, timeout: float = PATIENCE) -> int:
        """Wait for the process to end by itself and return its exit code."""
        assert self._process is not None, "the server is not running"
        code = self._process.wait(timeout)
        for reader in self._readers:
            reader.join(timeout)
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()
        self._process = None
        return code

    def stop(self, timeout: float = PATIENCE) -> int | None:
        """End the process in the orderly way; the exit code, or None if it was not running."""
        if self._process is None:
            return None
        self.signal(signal.SIGTERM)
        try:
            return self.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        """End the process at once, as a crash would."""
        if self._process is not None:
            self.signal(signal.SIGKILL)
            self.wait()

    def restart(self) -> Server:
        """End the process in the orderly way and start it again on the same data."""
        self.stop()
        return self.start()

    def _started(self, arguments: list[str]) -> subprocess.Popen[bytes] | Forked:
        # Python itself reads other variables than ours when it starts.
        plain = self._inherited is None and all(name.startswith("AVISOSERVER_") for name in self.environment)
        warm = nest(str(SOURCES)) if plain else None
        if warm is not None:
            return warm.fork(arguments, self.directory, self._environ(), self.open_files)
        return subprocess.Popen(
            [sys.executable, "-m", "aviso_server", *arguments],
            cwd=self.directory,
            env=self._environ(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=None if self.open_files is None else self._limit_open_files,
        )

    def _limit_open_files(self) -> None:
        assert self.open_files is not None
        resource.setrlimit(resource.RLIMIT_NOFILE, (self.open_files, self.open_files))

    def _environ(self) -> dict[str, str]:
        inherited = _own_environment() if self._inherited is None else self._inherited
        paths = [str(SOURCES), *filter(None, [inherited.get("PYTHONPATH")])]
        return {
            **inherited,
            "HOME": str(self.directory),  # nobody's own configuration is read
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONUNBUFFERED": "1",
            "AVISOSERVER_CONFIG_FILE": str(self.config_file),
            **self.environment,
        }


def _own_environment() -> dict[str, str]:
    # by name, because pytest takes a variable away while threads start servers
    own = {name: os.environ.get(name, "") for name in os.environ if not name.upper().startswith("AVISOSERVER_")}
    for name in ("NATS_TOKEN", "RUST_LOG"):
        own.pop(name, None)
    return own


def _drain(pipe: IO[bytes] | None, lines: list[bytes]) -> threading.Thread:
    assert pipe is not None
    thread = threading.Thread(target=lambda: lines.extend(pipe), daemon=True)
    thread.start()
    return thread
