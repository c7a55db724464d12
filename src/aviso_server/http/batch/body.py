"""What a batch request says: its options, and its notifications as an array or line by line."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

import orjson

from aviso_server.errors import InvalidRequest, MalformedRequest, RequestError
from aviso_server.http.body import header
from aviso_server.model.json_value import loads

__all__ = ["LINES", "read_items", "read_options"]

LINES = ("application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines")
"""The media types of a body with one notification per line; anything else is an array."""

_ALL_OR_NOTHING = "all_or_nothing"


def read_options(scope: Any) -> bool:
    """Whether all are to be stored or none, as the query says."""
    whole = False
    for name, value in parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True):
        if name != _ALL_OR_NOTHING:
            raise InvalidRequest(f"Unknown parameter '{name}'; accepted: {_ALL_OR_NOTHING}", field=name)
        if value not in ("true", "false"):
            raise InvalidRequest(f"Parameter '{name}' must be true or false; got '{value}'", field=name)
        whole = value == "true"
    return whole


def read_items(scope: Any, body: bytes) -> list[Any]:
    """The notifications as decoded JSON, in order; a line that cannot be read is there as the reason why.

    MalformedRequest if the body is no array and no lines were announced.
    """
    media_type = (header(scope, b"content-type") or b"").partition(b";")[0].strip().lower().decode("latin-1")
    if media_type in LINES:
        return [_line(line) for line in body.split(b"\n") if line and not line.isspace()]
    try:
        items = orjson.loads(body)
    except ValueError as error:
        raise MalformedRequest("INVALID_JSON", "Invalid JSON in request body", str(error)) from None
    if not isinstance(items, list):
        raise MalformedRequest(
            "INVALID_REQUEST_SHAPE",
            "Invalid request body: it must be a JSON array of notifications, or one per line with the Content-Type "
            f"{LINES[0]}",
        )
    return items


def _line(line: bytes) -> Any | RequestError:
    try:
        return loads(line)
    except MalformedRequest as error:
        return error.with_traceback(None)  # which leads to all lines, and would keep them
