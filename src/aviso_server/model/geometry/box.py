"""The box of a stored notification, out of its identifier."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from aviso_server.model.geometry import ShapeError, parse_point_cloud, parse_polygon
from aviso_server.model.notification import Box

__all__ = ["box_of"]


def box_of(identifier: Mapping[str, Any], shapes: Sequence[str]) -> Box | None:
    """The box around the field `polygon` or else the first of these fields, as a publish has it; None without one."""
    for name in sorted(shapes, key=lambda name: (name != "polygon", name)):
        try:
            if isinstance(value := identifier.get(name), str):
                return parse_polygon(value, sys.maxsize).box
            if isinstance(value, list):
                return parse_point_cloud(value, sys.maxsize).box
        except ShapeError:
            continue
    return None
