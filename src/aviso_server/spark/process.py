"""The pipeline process: the one that owns Spark and the archive. A server starts it as its child.

    python -m aviso_server.spark.process --url URL --path ARCHIVE --work FOLDER --ready-file FILE

It says in the ready file where it listens, and ends when its standard input does, Java with it. With --standby it
archives only between the lines `archive` and `standby` of its input, and answers questions in any case. The
environment has AVISO_FLIGHT_TOKEN, which callers must know, and AVISO_ARCHIVE_TOKEN if the server wants credentials.

Exit codes: 0 told to stop, 2 wrong usage, 3 the archive cannot be used (the reason is the last line on stderr and
stands in the ready file), 4 Spark broke down: starting again may help. Without Java it reads and does not archive.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from aviso_server.errors import PipelineError
from aviso_server.lake.problems import refuse_unusable
from aviso_server.spark.archiver import Archiver, ArchiveSettings
from aviso_server.spark.command_jobs import run_job
from aviso_server.spark.flight import FlightServer
from aviso_server.spark.insight import keep_insight
from aviso_server.spark.lateness_model import LearnedFiles, keep_learning, read_tasks
from aviso_server.spark.session import SparkFailed, reason

__all__ = ["BROKEN", "IMPOSSIBLE", "main"]

logger = logging.getLogger(__name__)

IMPOSSIBLE = 3
"""The exit code that says: do not try again soon."""

BROKEN = 4
"""The exit code that says: try again."""

_PR_SET_PDEATHSIG = 1  # see prctl(2)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Keep the archive of one server until standard input ends."""
    given = _arguments(arguments)
    elected = threading.Event()
    if not given.standby:
        elected.set()
    _end_with_parent(elected)
    logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stderr, level=logging.INFO)
    for chatty in ("httpx", "py4j"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    flight_token = os.environ.pop("AVISO_FLIGHT_TOKEN", "")
    if not flight_token:
        _end(2, "AVISO_FLIGHT_TOKEN is not set: callers must know it")
    archiver = Archiver(given.path, given.work, given.spark)
    archiver.status.state = "starting"
    archive_token = os.environ.pop("AVISO_ARCHIVE_TOKEN", None)
    settings = ArchiveSettings(url=given.url, interval=given.interval, token=archive_token)
    try:
        refuse_unusable(given.path)
        archiver.look()
        # What is archived can be read before Spark is there.
        server = FlightServer(flight_token, archiver.status, archiver.cold, partial(run_job, archiver.wait_for_session))
        _write(given.ready_file, {"port": server.port, "pid": os.getpid(), "token": flight_token})
        session, stop = archiver.open_in_time(), threading.Event()
        if given.insight_interval is not None:
            keep_insight(session, archiver.status, settings, given.insight_interval, stop)
        if given.lateness:
            learned_files = LearnedFiles(given.path, given.work / "lateness")
            keep_learning(
                session, archiver.status, learned_files, read_tasks(given.lateness), given.lateness_interval, stop
            )
        archiver.run(settings, stop, elected=elected.is_set)
    except SparkFailed as error:
        _end(BROKEN, str(error))
    except PipelineError as error:
        _write(given.ready_file, {"error": str(error)})
        _end(IMPOSSIBLE, str(error))
    except Exception as error:  # Java may die at any moment, and Spark says so in many ways
        logger.exception("the pipeline broke down")
        _end(BROKEN, reason(error))
    _end(0)


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m aviso_server.spark.process", allow_abbrev=False)
    parser.add_argument("--url", required=True, help="the server to archive")
    parser.add_argument("--path", required=True, help="the folder of the archive, local or any that Spark can write")
    parser.add_argument("--work", required=True, type=Path, help="a folder for Spark's own files")
    parser.add_argument("--ready-file", required=True, type=Path, help="where to say on which port it listens")
    parser.add_argument("--interval", type=float, default=10.0, help="seconds between two looks at the log")
    parser.add_argument("--spark", default="local", help="local, or the address of a cluster")
    parser.add_argument("--standby", action="store_true", help="archive only when told to")
    parser.add_argument("--insight-interval", type=float, help="seconds between two roll-ups; none without it")
    parser.add_argument("--lateness", default="", help="the event types whose lateness is learned, as JSON")
    parser.add_argument("--lateness-interval", type=float, default=3600.0, help="seconds from learning to learning")
    return parser.parse_args(arguments)


def _end_with_parent(elected: threading.Event) -> None:
    """Hear from the parent whether to archive, and end when it does, however that happens."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the parent gets it too and decides

    def wait() -> None:
        for line in sys.stdin.buffer:
            if line == b"archive\n":
                elected.set()
            elif line == b"standby\n":
                elected.clear()
        os._exit(0)  # Java ends when its own input does

    threading.Thread(target=wait, name="parent", daemon=True).start()


def _write(file: Path, members: dict[str, Any]) -> None:
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    draft.touch(0o600)  # the token is for commands of the same user
    draft.write_bytes(msgspec.json.encode(members))
    draft.replace(file)


def _end(code: int, sentence: str = "") -> NoReturn:
    if sentence:
        print(sentence, file=sys.stderr, flush=True)  # noqa: T201  # the last line, for the parent
    os._exit(code)


if __name__ == "__main__":
    main()
