"""A Spark session as the pipeline needs it: quiet, in UTC, with its files in one folder, gone when its owner is."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.resources import as_file, files
from pathlib import Path
from weakref import WeakKeyDictionary

import pyarrow as pa
import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import Column, SparkSession

from aviso_server.errors import PipelineError
from aviso_server.spark.java import java_home
from pyspark_aviso.source import register

__all__ = ["SparkFailed", "arrow_function", "close_session", "has_session", "open_session", "reason"]

_JAVA_OPTIONS = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
_OURS = re.compile(r"(?:PipelineError|Refused|Conflict): (.+)")
_PYTHONS = re.compile(r"^\s*((?:OSError|MemoryError|[a-z][\w.]*\.Arrow\w+): .+)$", re.MULTILINE)
_CALL = "An error occurred while calling"  # how Spark begins when it only passes on what Java said
_CAUSE = re.compile(r"^(?:Caused by)?: [\w.$]+: (.+)$", re.MULTILINE)
_users: WeakKeyDictionary[SparkSession, int] = WeakKeyDictionary()  # of each session that we have opened
_NAMES_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")


class SparkFailed(PipelineError):
    """Spark broke down; starting again may help."""


def reason(error: BaseException) -> str:
    """Say what happened: in our own words if it was us who complained, in Python's, or else in Spark's or Java's."""
    text = str(error)
    for pattern in (_OURS, _PYTHONS, *([_CAUSE] if text.startswith(_CALL) else [])):
        if found := pattern.findall(text):
            return str(found[-1]).strip()
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)


def has_session() -> bool:
    """Return True if this process has a session already."""
    return SparkSession.getActiveSession() is not None


def close_session(session: SparkSession) -> None:
    """End a session, unless others in this process use it, or somebody else has opened it."""
    if session in _users:
        _users[session] -= 1
        if not _users[session]:
            with suppress(Exception):  # Java may be gone
                session.stop()


def open_session(
    folder: Path, master: str = "local", name: str = "aviso", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Open a session that knows `format("aviso")`; PipelineError if there is no Java for it, SparkFailed if it broke.

    `folder` takes everything that Spark writes for itself: temporary files, the warehouse, its log. `master` is
    `local` (all cores), `local[2]`, a cluster's address, or `sc://host:port` for a Spark Connect server. `settings`
    are Spark's and win over ours. A process can have one session only: if it has one already, that one is returned as
    it is. The Java process ends with this process, even if that is killed.

    Workers run the Python of this process; on a cluster, where it may lie elsewhere, PYSPARK_PYTHON says where.
    """
    remote = master.startswith("sc://")
    session = None if remote else SparkSession.getActiveSession()
    if session is None:
        try:
            session = _connected(master, name) if remote else _started(folder, master, name, settings)
        except PipelineError:
            raise
        except Exception as error:  # Spark has many ways to say that Java is gone
            raise SparkFailed(f"Spark does not start: {reason(error)} (see {folder / 'java.log'})") from None
        _users[session] = 0
    if session in _users:
        _users[session] += 1
    register(session)
    return session


def _started(folder: Path, master: str, name: str, settings: Mapping[str, str] | None) -> SparkSession:
    folder = folder.resolve()
    for place in ("tmp", "warehouse"):
        (folder / place).mkdir(parents=True, exist_ok=True)
    # Workers start the `python3` of the PATH unless they are told otherwise.
    elsewhere = os.environ.get("PYSPARK_PYTHON") if not _is_local(master) else None
    os.environ["PYSPARK_PYTHON"] = elsewhere or sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["JAVA_HOME"] = str(java_home(folder, os.environ))
    with as_file(files("aviso_server.spark") / "log4j2.properties") as logging_file:
        conf = SparkConf(loadDefaults=False)
        conf.setAll([*_settings(folder, master, name, logging_file).items(), *(settings or {}).items()])
        with (folder / "java.log").open("ab") as chatter:
            # Java's own words and those of Python workers go to a file, not between ours.
            gateway = launch_gateway(conf, {"stdout": chatter, "stderr": chatter})  # type: ignore[no-untyped-call]  # as pyspark has it
        context = SparkContext(conf=conf, gateway=gateway)
    return SparkSession(context)


def arrow_function(function: Callable[..., pa.Array], returns: str) -> Callable[..., Column]:
    """A function of Arrow arrays as one of columns; PipelineError where Spark has none, which is before 4.1."""
    try:
        from pyspark.sql.pandas.functions import arrow_udf
    except ImportError:
        raise PipelineError(f"this needs Spark 4.1 or newer; installed is {pyspark.__version__}") from None
    made: Callable[..., Column] = arrow_udf(function, returns)  # type: ignore[call-overload]  # by its annotations
    return made


def _connected(address: str, name: str) -> SparkSession:
    """A session of a Spark Connect server. Its workers, its files and its Java are that server's."""
    try:
        return SparkSession.builder.remote(address).appName(name).getOrCreate()
    except ImportError as error:
        raise PipelineError(
            f"{address} is a Spark Connect server, and its client is not installed ({error}): "
            "pip install 'aviso-server[connect]'"
        ) from None


def _collector(environment: Mapping[str, str]) -> list[str]:
    """The garbage collector for Java; none if the environment names one, because with two Java does not start."""
    if any(_NAMES_COLLECTOR.search(environment.get(name, "")) for name in _JAVA_OPTIONS):
        return []
    # Pages and columns are large. The usual collector takes a third more of the time to read archived notifications.
    return ["-XX:+UseParallelGC"]


def _settings(folder: Path, master: str, name: str, logging_file: Path) -> dict[str, str]:
    java_options = [
        *_collector(os.environ),
        f"-Dlog4j2.configurationFile={logging_file.as_uri()}",
        f"-Daviso.spark.log={folder / 'spark.log'}",
        f"-Djava.io.tmpdir={folder / 'tmp'}",
        f"-Dderby.system.home={folder / 'tmp'}",
    ]
    settings = {
        "spark.app.name": name,
        "spark.master": "local[*]" if master == "local" else master,
        "spark.driver.extraJavaOptions": " ".join(f'"{option}"' for option in java_options),
        "spark.local.dir": str(folder / "tmp"),
        "spark.pyspark.python": os.environ["PYSPARK_PYTHON"],
        "spark.sql.ansi.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if _is_local(master):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return settings


def _is_local(master: str) -> bool:
    """True if the workers are on this machine, and no cluster's."""
    return master == "local" or master.startswith("local[")
