"""Asking the keeper of an archive to mend it: an order in a file, and the answer in another.

    <archive.path>/_audit/order-<name>.json
    <archive.path>/_audit/outcome-<name>.json

Whoever may write to the archive may order. An order goes only when its outcome is there, so a keeper that is killed
carries it out when it is back; doing it twice does no harm.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Callable

import msgspec

from aviso_server.errors import PipelineError
from aviso_server.pipeline.archive.ranges import Range
from aviso_server.pipeline.archive.storage import Storage, joined
from aviso_server.pipeline.audit.findings import AUDIT
from aviso_server.pipeline.audit.repair import Mended, Repairer

__all__ = ["Outcome", "carry_out", "order", "outcome", "withdraw"]

logger = logging.getLogger(__name__)

_NAME = re.compile(r"(order|outcome)-([0-9a-f]{32})\.json", re.ASCII)
_FORGOTTEN = 86_400.0  # seconds after which nobody comes for an outcome any more

_ranges = msgspec.json.Decoder(dict[str, list[Range]]).decode


class Outcome(msgspec.Struct, frozen=True):
    """What came of an order."""

    mended: tuple[Mended, ...] = ()
    error: str | None = None


def order(root: str, wanted: dict[str, list[Range]], storage: Storage) -> str:
    """Ask for these sequences to be mended; the name of the order."""
    name = uuid.uuid4().hex
    storage.write(_path(root, "order", name), msgspec.json.encode(wanted))
    return name


def outcome(root: str, name: str, storage: Storage) -> Outcome | None:
    """What came of an order, and forget it; None if it is still waiting."""
    for each in storage.list(joined(root, AUDIT)):
        if each.name == f"outcome-{name}.json":
            with storage.open(each.path) as file:
                found = msgspec.json.decode(file.read(), type=Outcome)
            storage.remove(each.path)
            return found
    return None


def withdraw(root: str, name: str, storage: Storage) -> None:
    """Nobody waits for it any more."""
    storage.remove(_path(root, "order", name))


def carry_out(root: str, storage: Storage, repairer: Repairer, pause: Callable[[], bool]) -> None:
    """Do what has been ordered; for the keeper, where it compacts.

    `pause` is called after each file and comes back when the next one may be written; False ends the work.
    """
    for each in storage.list(joined(root, AUDIT)):
        name = _NAME.fullmatch(each.name)
        if name is None:
            continue
        if name[1] == "outcome":
            if time.time() - each.modified > _FORGOTTEN:
                storage.remove(each.path)
            continue
        result = _carried_out(each.path, storage, repairer, pause)
        if result is None:
            return
        storage.write(_path(root, "outcome", name[2]), msgspec.json.encode(result))
        storage.remove(each.path)


def _carried_out(path: str, storage: Storage, repairer: Repairer, pause: Callable[[], bool]) -> Outcome | None:
    done: list[Mended] = []
    try:
        with storage.open(path) as file:
            wanted = _ranges(file.read())
        for each in repairer.run(wanted):
            done.append(each)
            if not pause():
                return None
    except (PipelineError, OSError, msgspec.DecodeError) as error:
        logger.warning("the archive could not be mended: %s", error, extra={"event": "archive.repair.failed"})
        return Outcome(tuple(done), str(error))
    return Outcome(tuple(done))


def _path(root: str, kind: str, name: str) -> str:
    return joined(root, f"{AUDIT}/{kind}-{name}.json")
