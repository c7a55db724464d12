"""Processes of Spark for tests: masters, workers and servers, and the commands of the pipeline that use them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark

from aviso_server.spark.java import java_home
from tests.harness import Server
from tests.spark.archive.keeping import SOURCES, until

__all__ = ["HERE", "SPARK", "at_work", "daemon", "run_pipeline", "said"]

SPARK = Path(pyspark.__file__).parent
"""Where Spark is installed."""

HERE = {"SPARK_LOCAL_IP": "127.0.0.1"}
"""What keeps Spark from asking the network for the name of this machine."""

_SECONDS = 120.0


@contextmanager
def daemon(directory: Path, name: str, *command: str) -> Iterator[Path]:
    """A process of Spark that works in a directory, ended afterwards; its log, which is what it prints."""
    environment = {
        **os.environ,
        **HERE,
        "JAVA_HOME": str(java_home(directory, os.environ)),
        "SPARK_HOME": str(SPARK),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(SOURCES), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    log = directory / f"{name}.log"
    with log.open("wb") as printed:
        process = subprocess.Popen(command, cwd=directory, env=environment, stdout=printed, stderr=printed)
    try:
        yield log
    finally:
        process.terminate()
        process.wait(60)


def said(log: Path, pattern: str) -> str:
    """What a process says when it is ready: the first group of the pattern."""
    until(lambda: re.search(pattern, log.read_text()), _SECONDS, lambda: log.read_text()[-3000:])
    found = re.search(pattern, log.read_text())
    assert found is not None
    return found[1]


def at_work(directory: Path) -> list[str]:
    """The processes that run in a directory or below."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink().is_relative_to(directory):
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # it has ended, or is not ours
            continue
    return found


def run_pipeline(server: Server, *arguments: str) -> list[Any]:
    """What `aviso-server pipeline … --json` prints, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "aviso_server", "pipeline", *arguments, "--json", "--config", str(server.config_file)],
        cwd=server.directory,
        env={**os.environ, **HERE, "PYTHONPATH": os.pathsep.join([str(SOURCES), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
