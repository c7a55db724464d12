"""Event names: written down once, used as written down, documented."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from aviso_server.diagnostics.events import EVENTS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "logging.md").read_text(encoding="utf-8")

# the names that the contract asks to keep and that can happen here
CONTRACT = [
    "startup.configuration.dumped",
    "startup.configuration.loaded",
    "startup.server.started",
    "startup.signal.sigterm.received",
    "startup.shutdown.received",
    "startup.server.stopped",
    "configuration.schema_strict.explicit_disabled",
    "api.notification.processed",
    "api.watch.stream.established",
    "api.replay.stream.established",
    "api.schema.list.succeeded",
    "api.schema.get.succeeded",
    "api.request.parse.failed",
    "api.request.validation.failed",
    "api.request.processing.failed",
    "stream.sse.initialization.failed",
    "stream.replay.batch.failed",
    "admin.stream.wipe.requested",
    "admin.stream.wipe.succeeded",
    "admin.stream.wipe.failed",
    "admin.all.wipe.requested",
    "admin.all.wipe.succeeded",
    "admin.all.wipe.failed",
    "admin.notification.delete.succeeded",
    "admin.notification.delete.not_found",
    "admin.notification.delete.invalid_id",
    "admin.notification.delete.failed",
    "auth.middleware.request.denied",
    "auth.middleware.remote.validation.failed",
    "auth.ecpds.check.allowed",
    "auth.ecpds.check.denied",
    "auth.ecpds.check.unavailable",
    "auth.ecpds.check.error",
    "auth.ecpds.fetch.failed",
    "backend.in_memory.topic.evicted",
    "backend.jetstream.connection.retry",
    "backend.jetstream.stream.create.succeeded",
    "backend.jetstream.subscription.failed",
]


def used_names() -> Iterator[tuple[str, str]]:
    """Every event name in the sources as a regular expression, with the file it is in."""
    for path in (ROOT / "src" / "aviso_server").rglob("*.py"):
        if path.name == "events.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == "event":
                        yield from ((pattern, path.name) for pattern in _patterns(value))
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "_failed":
                yield from ((pattern, path.name) for pattern in _patterns(node.args[0]))
            elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "event":
                yield from ((pattern, path.name) for pattern in _patterns(node.value) if r"\." in pattern)


def _patterns(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield re.escape(node.value)
    elif isinstance(node, ast.JoinedStr):
        yield "".join(
            re.escape(str(part.value)) if isinstance(part, ast.Constant) else r"[a-z_.]+" for part in node.values
        )


def test_every_name_in_use_is_written_down() -> None:
    for pattern, file in used_names():
        assert any(re.fullmatch(pattern, name) for name in EVENTS), f"{file} uses {pattern}, which EVENTS does not have"


def test_every_name_written_down_is_in_use() -> None:
    patterns = {pattern for pattern, _ in used_names()}
    unused = [name for name in EVENTS if not any(re.fullmatch(pattern, name) for pattern in patterns)]
    assert unused == []


def test_the_names_of_the_contract_are_kept() -> None:
    assert [name for name in CONTRACT if name not in EVENTS] == []
    for name in ("api.request.parse.failed", "api.request.validation.failed"):
        assert EVENTS[name][0] == "warn"
    for name in ("api.request.processing.failed", "stream.sse.initialization.failed"):
        assert EVENTS[name][0] == "error"


def test_every_name_is_documented_with_its_level() -> None:
    rows = re.findall(r"^\| `([a-z_.]+)` \| (\w+) \| ([^|]+) \|$", PAGE, re.MULTILINE)
    assert {name: (level, meaning) for name, level, meaning in rows} == EVENTS
