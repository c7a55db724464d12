"""The receivers in the guide to subscriptions work as they are printed."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness import Server
from tests.subscriptions.receiver import until
from tests.subscriptions.scene import Api, configuration, publish

PAGE = (Path(__file__).parents[2] / "docs" / "subscriptions.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(configuration("in_memory"), tmp_path_factory.mktemp("guide")) as running:
        yield running


@contextmanager
def running(command: list[str], output: Path, **environment: str) -> Iterator[None]:
    """A program, whose output goes to a file, until the context is left."""
    with output.open("wb") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env={"PATH": "", "PYTHONUNBUFFERED": "1", **environment}
        )
        try:
            yield
        finally:
            process.kill()
            process.wait()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_receiver_takes_what_is_signed(server: Server, tmp_path: Path) -> None:
    (code,) = [block for block in BLOCKS if "Webhook(" in block]
    (tmp_path / "receiver.py").write_text(code)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "flask", "--app", str(tmp_path / "receiver.py"), "run", "--port", str(port)]
    api, output = Api(server.client), tmp_path / "output.txt"
    with running(command, output, AVISO_SECRET="whsec_bm90IHRoZSByaWdodCBvbmU="):
        until(lambda: listens(port), output.read_text)
        made = api.push("guide", f"http://127.0.0.1:{port}/aviso", {"sea": "guide"})
        assert made["status"] == "active", output.read_text()
        publish(server.client, "guide", 1)
        until(lambda: api.show("guide")["health"] == "failing")  # it knows another secret
    with running(command, output, AVISO_SECRET=made["secret"]):
        until(lambda: listens(port), output.read_text)
        publish(server.client, "guide", 2)
        until(lambda: api.show("guide")["delivered"] == 2, output.read_text)
        assert "wave@" in output.read_text()


def test_the_worker_pulls_and_acknowledges(server: Server, tmp_path: Path) -> None:
    (code,) = [block for block in BLOCKS if "/pull" in block]
    api, output = Api(server.client), tmp_path / "output.txt"
    api.make("my-queue", {"sea": "worker"})
    (tmp_path / "worker.py").write_text(code.replace("http://localhost:8000", server.url))
    with running([sys.executable, str(tmp_path / "worker.py")], output):
        publish(server.client, "worker", 1, 2, 3)
        until(lambda: api.show("my-queue")["delivered"] == 3, output.read_text)
    assert output.read_text().count("wave@") == 3
