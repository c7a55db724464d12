"""GET /api/v1/admin/overview: what an operator wants to see at a glance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from aviso_server import __version__
from aviso_server.delivery.outlet import Send
from aviso_server.delivery.watcher import Watcher
from aviso_server.diagnostics import RECENT, RecentRecord
from aviso_server.errors import LogError
from aviso_server.http.answers import Refusal, json_answer
from aviso_server.http.service import Service
from aviso_server.log.base import Batching, StoragePolicy, StreamState
from aviso_server.model.timestamp import SECOND, event_time

__all__ = ["overview"]

_MOST_STREAMS = 512  # names of generic event types are without limit
_MOST_WATCHERS = 20


async def overview(service: Service, send: Send, request_id: str) -> None:
    """The streams with what they hold and who reads them, the slowest watchers, and what went wrong lately."""
    try:
        states = await _states(service)
    except LogError as error:
        raise Refusal.error(503, "SERVICE_UNAVAILABLE", "service_unavailable", f"The log is away: {error}") from None
    log = service.log
    watchers = [each for each in service.hub.open_streams if isinstance(each, Watcher)]
    answer = {
        "time": event_time(service.clock()),
        "version": __version__,
        "log": {
            "kind": log.kind,
            "connected": log.connected,
            "waiting": log.waiting if isinstance(log, Batching) else 0,
        },
        "connections": service.connections(),
        "streams": [_stream(service, name, state, watchers) for name, state in states.items()],
        "slowest_watchers": _slowest(watchers, states),
        "lateness": None if service.lateness is None else service.lateness.describe(),
        "audit": _audit(service),
        "quarantine": await service.quarantined.describe(),
        "recent_errors": [_record(record) for record in RECENT.newest_first()],
        "request_id": request_id,
    }
    await json_answer(send, 200, answer, request_id)


async def _states(service: Service) -> dict[str, StreamState]:
    """What every stream holds: those of configured event types first, used or not, then the others."""
    configured = [each.base for each in service.catalogue.event_types.values()]
    folded = {name.lower() for name in configured}
    others = [name for name in await service.log.streams() if name.lower() not in folded]
    names = [*dict.fromkeys(configured), *others][:_MOST_STREAMS]
    return {name: await service.log.state(name) for name in names}


def _stream(service: Service, name: str, state: StreamState, watchers: Iterable[Watcher]) -> dict[str, Any]:
    own = [each for each in watchers if each.wanted.stream == name]
    behind = [each for each in own if each.catching_up]
    event_type = service.catalogue.of_stream(name)
    policy = service.settings.policies.get(name, StoragePolicy())
    return {
        "stream": name,
        "event_type": name if event_type is None else event_type.name,
        "configured": event_type is not None,
        "first": state.first,
        "last": state.last,
        "count": state.count,
        "bytes": state.bytes,
        "trimmed": state.trimmed,
        "retention": {
            "seconds": None if policy.retention_ns is None else policy.retention_ns // SECOND,
            "max_messages": policy.max_messages,
            "max_bytes": policy.max_bytes,
            "newest_of_each_topic_only": policy.allow_duplicates is False,
        },
        "watchers": {
            "live": len(own) - len(behind),
            "catching_up": len(behind),
            "backlog_bytes": sum(each.backlog_bytes for each in own),
            "furthest_behind": max((_behind(each, state) for each in behind), default=0),
        },
    }


def _audit(service: Service) -> dict[str, Any] | None:
    """What the last audit found; null if there was none."""
    lake = service.archive
    return None if lake is None or lake.audited is None else lake.audited.describe()


def _slowest(watchers: Iterable[Watcher], states: Mapping[str, StreamState]) -> list[dict[str, Any]]:
    """The watchers that are furthest behind or have the most waiting; those that keep up are left out."""
    shown = [
        {
            "event_type": each.wanted.event_type,
            "topic": each.wanted.topic,
            "user": each.user,
            "request_id": each.request_id,
            "catching_up": each.catching_up,
            "behind": _behind(each, states[each.wanted.stream]) if each.wanted.stream in states else 0,
            "backlog_bytes": each.backlog_bytes,
        }
        for each in watchers
        if each.catching_up or each.backlog_bytes
    ]
    return sorted(shown, key=lambda each: (each["behind"], each["backlog_bytes"]), reverse=True)[:_MOST_WATCHERS]


def _behind(watcher: Watcher, state: StreamState) -> int:
    """How many sequences lie between a watcher that catches up and the newest notification."""
    return max(state.last + 1 - watcher.position, 0) if watcher.catching_up else 0


def _record(record: RecentRecord) -> dict[str, Any]:
    return {
        "time": event_time(record.time),
        "level": record.level,
        "message": record.message,
        "event": record.event,
        "request_id": record.request_id,
    }
