"""The pipeline process: the one that owns Spark and the archive. A server starts it as its child.

    python -m aviso_server.pipeline.process --url URL --path ARCHIVE --work FOLDER --ready-file FILE

It says in the ready file where its bridge listens, and ends when its standard input does, Java with it. The
environment has AVISO_BRIDGE_TOKEN, which callers must know, and AVISO_ARCHIVE_TOKEN if the server wants credentials.

Exit codes: 0 told to stop, 2 wrong usage, 3 Spark cannot run here (the reason is the last line on stderr and stands in
the ready file), 4 Spark broke down or somebody else keeps the archive: starting again later may help.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from aviso_server.errors import PipelineError
from aviso_server.pipeline.archive.job import SparkFailed, reason
from aviso_server.pipeline.archive.keeper import Keeper
from aviso_server.pipeline.archive.source import ArchiveTask
from aviso_server.pipeline.bridge.operations import ArchiveOperations
from aviso_server.pipeline.bridge.server import Bridge
from aviso_server.pipeline.insight.background import keep_insight
from aviso_server.pipeline.lateness.relearning import keep_learning, read_tasks
from aviso_server.pipeline.lateness.shelf import Shelf

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
    _end_with_parent()
    logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stderr, level=logging.INFO)
    for chatty in ("httpx", "py4j"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    bridge_token = os.environ.pop("AVISO_BRIDGE_TOKEN", "")
    if not bridge_token:
        _end(2, "AVISO_BRIDGE_TOKEN is not set: callers of the bridge must know it")
    keeper = Keeper(given.path, given.work, given.spark)
    try:
        keeper.lock()
    except PipelineError as error:
        _end(BROKEN, str(error))
    keeper.board.state = "starting"
    bridge = Bridge(bridge_token, ArchiveOperations(keeper.board, keeper.cold, keeper.deleted.set), given.max_replays)
    bridge.start()
    _write(given.ready_file, {"port": bridge.port, "pid": os.getpid()})
    archive_token = os.environ.pop("AVISO_ARCHIVE_TOKEN", None)
    task = ArchiveTask(url=given.url, root=given.path, offsets={}, interval=given.interval, token=archive_token)
    try:
        session, stop = keeper.open(), threading.Event()
        if given.insight_interval is not None:
            keep_insight(session, keeper.board, task, given.work, given.insight_interval, stop)
        if given.lateness:
            shelf = Shelf(given.path, keeper.board.storage, given.work / "lateness")
            keep_learning(session, keeper.board, shelf, read_tasks(given.lateness), given.lateness_interval, stop)
        keeper.archive(task, stop)
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
    parser = argparse.ArgumentParser(prog="python -m aviso_server.pipeline.process", allow_abbrev=False)
    parser.add_argument("--url", required=True, help="the server to archive")
    parser.add_argument("--path", required=True, help="the folder of the archive, local or any that Spark can write")
    parser.add_argument("--work", required=True, type=Path, help="a folder for Spark's own files")
    parser.add_argument("--ready-file", required=True, type=Path, help="where to say the port of the bridge")
    parser.add_argument("--interval", type=float, default=10.0, help="seconds between two looks at the log")
    parser.add_argument("--spark", default="local", help="local, or the address of a cluster")
    parser.add_argument("--max-replays", type=int, default=4, help="replays at a time; the others wait")
    parser.add_argument("--insight-interval", type=float, help="seconds between two roll-ups; none without it")
    parser.add_argument("--lateness", default="", help="the event types whose lateness is learned, as JSON")
    parser.add_argument("--lateness-interval", type=float, default=3600.0, help="seconds from learning to learning")
    return parser.parse_args(arguments)


def _end_with_parent() -> None:
    """End when the parent does, however that happens."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the parent gets it too and decides

    def wait() -> None:
        while sys.stdin.buffer.read(4096):
            pass
        os._exit(0)  # Java ends when its own input does

    threading.Thread(target=wait, name="parent", daemon=True).start()


def _write(file: Path, members: dict[str, Any]) -> None:
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    draft.write_bytes(msgspec.json.encode(members))
    draft.replace(file)


def _end(code: int, sentence: str = "") -> NoReturn:
    if sentence:
        print(sentence, file=sys.stderr, flush=True)  # noqa: T201  # the last line, for the parent
    os._exit(code)


if __name__ == "__main__":
    main()
