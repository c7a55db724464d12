"""A very small Kubernetes: pods that are started and ended as a rendered deployment says, and a service before them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.deploy.rendering import container, environment
from tests.harness import Client, Server
from tests.harness.broker import wait_until
from tests.harness.patience import PATIENCE

__all__ = ["Pod", "Service"]


class Pod:
    """The container of a deployment as a process: its arguments, variables, configuration, probe and end."""

    def __init__(self, found: Mapping[str, dict[str, Any]], directory: Path) -> None:
        self._container = container(found)
        self._grace = found["Deployment"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        directory.mkdir()
        file = directory / "config.yaml"
        file.write_text(found["ConfigMap"]["data"]["config.yaml"])
        # The image's entry point is `aviso-server`; where the process listens is the only thing that is asked besides.
        self._server = Server(
            file,
            directory,
            environment(found),
            arguments=self._container["args"],
            inherited={name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ},
        )
        self._server.launch()

    @property
    def host(self) -> str:
        """Where it listens."""
        return self._server.host

    @property
    def port(self) -> int:
        """Where it listens; 0 until it does."""
        return self._server.port

    def wait_until_ready(self) -> None:
        """Wait until the readiness probe succeeds."""
        client = self._server.wait_until_listening().client
        probe = self._container["readinessProbe"]["httpGet"]["path"]
        wait_until(lambda: client.request("GET", probe).status == 200)

    def end(self) -> tuple[int, float]:
        """End it as Kubernetes does; the exit code, and how many seconds of the grace period were left."""
        deadline = time.monotonic() + self._grace
        before = self._container["lifecycle"]["preStop"]["exec"]["command"]
        subprocess.run(before, check=True, timeout=self._grace)
        self._server.signal(signal.SIGTERM)
        try:
            code = self._server.wait(deadline - time.monotonic())
        except subprocess.TimeoutExpired:
            self.kill()
            code = -signal.SIGKILL
        return code, deadline - time.monotonic()

    def kill(self) -> None:
        """End it at once, if it still runs."""
        self._server.kill()


class Service:
    """One address for several pods: each new connection goes to the next of those that are in use."""

    def __init__(self) -> None:
        self.pods: tuple[Pod, ...] = ()
        self.host, self.port = "127.0.0.1", 0
        self._turn = itertools.count()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Service:
        self._thread.start()
        listening = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._forward, self.host), self._loop)
        self._server = listening.result(PATIENCE)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(PATIENCE)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"http://{self.host}:{self.port}"

    @property
    def client(self) -> Client:
        """A client for whichever pod it is."""
        return Client(self.host, self.port)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pods = self.pods
        pod = pods[next(self._turn) % len(pods)]
        try:
            back, forth = await asyncio.open_connection(pod.host, pod.port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_pump(reader, forth), _pump(back, writer))

    async def _close(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on what comes until one side hangs up."""
    with contextlib.suppress(OSError):
        while chunk := await reader.read(65536):
            writer.write(chunk)
            await writer.drain()
    writer.close()
