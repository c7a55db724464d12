"""What the cells of a table stand for in an identifier."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

from aviso_server.errors import InvalidRequest
from aviso_server.model.geometry import ShapeError, polygon_from_wkb, polygon_text

__all__ = ["cell_value"]


def cell_value(name: str, value: Any) -> Any:
    """The JSON value of a cell; InvalidRequest if it has none."""
    if isinstance(value, bytes):
        try:
            return polygon_text(polygon_from_wkb(value))
        except ShapeError as error:
            raise InvalidRequest(f"Field '{name}': {error}", field=name) from None
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, str | bool | int | float | list):
        return value
    raise InvalidRequest(f"Field '{name}': a column of type {type(value).__name__} cannot be published", field=name)
