"""POST /api/v1/replay in the forms that are asked for with `Accept`: lines of JSON, an Arrow stream, a Parquet file."""

from __future__ import annotations

import asyncio
from typing import Any

from aviso_server.delivery.forms import ARROW, EVENT_STREAM, LINES, PARQUET, Bounds, JsonLines, TableForm
from aviso_server.delivery.outlet import Send
from aviso_server.delivery.replay import Replay
from aviso_server.http.accept import preferred
from aviso_server.http.body import Receive, client_left
from aviso_server.http.service import Service
from aviso_server.model.columns import STORED, wire_columns
from aviso_server.model.filter import Filter
from aviso_server.model.span import Span

__all__ = ["is_lenient", "send_in_form", "wanted_form"]

_LENIENT = b"handling=lenient"
_MINIMAL = b"return=minimal"  # what the log keeps, without the columns that are made of it


def wanted_form(service: Service, scope: Any, wanted: Filter, request_id: str) -> TableForm | None:
    """The form that the client likes best; None for server-sent events."""
    accepted = [value.decode("latin-1") for name, value in scope["headers"] if name == b"accept"]
    media_type = preferred(accepted, (EVENT_STREAM, ARROW, LINES, PARQUET))
    if media_type == ARROW:
        from aviso_server.delivery.arrow_form import ArrowStream  # pyarrow is large: only who asks for it waits for it

        columns = STORED if _prefers(scope, _MINIMAL) else wire_columns(service.catalogue.find(wanted.event_type))
        return ArrowStream(wanted.event_type, columns, request_id)
    if media_type == PARQUET:
        from aviso_server.delivery.parquet_form import ParquetFile

        return ParquetFile(wanted.event_type, wire_columns(service.catalogue.find(wanted.event_type)), request_id)
    if media_type == LINES:
        return JsonLines(wanted.topic, service.hub.renderer(wanted.event_type), request_id)
    return None


def is_lenient(scope: Any) -> bool:
    """True if the client prefers that required fields may be left out: the header `Prefer: handling=lenient`."""
    return _prefers(scope, _LENIENT)


def _prefers(scope: Any, preference: bytes) -> bool:
    preferences = [value.lower().replace(b" ", b"") for name, value in scope["headers"] if name == b"prefer"]
    return any(preference in value.split(b",") for value in preferences)


async def send_in_form(
    stream: Replay, form: TableForm, bounds: Bounds, cap: int | None, receive: Receive, send: Send
) -> None:
    """Send the replay, from the head of the answer to its end."""
    headers = [
        (b"x-request-id", stream.request_id.encode()),
        (b"content-type", form.content_type.encode()),
        (b"cache-control", b"no-cache"),
        (b"vary", b"accept"),
        (b"x-accel-buffering", b"no"),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await stream.outlet.deliver(form.opening(bounds))
    stream.begin(Span(from_sequence=bounds.start), bounds.end, cap)
    broken = asyncio.ensure_future(stream.broken.wait())
    left = asyncio.ensure_future(client_left(receive))
    try:
        # returning before the last chunk breaks the transfer off, so that nobody takes a part for the whole
        await asyncio.wait((broken, left), return_when=asyncio.FIRST_COMPLETED)
    finally:
        broken.cancel()
        left.cancel()
