"""A map of the world as inline SVG: the land, and the cells that were touched."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from aviso_server.insight.charts import picture

__all__ = ["SHADES", "world_map"]

SHADES = 6
"""How many shades tell few from many."""

_SCALE = 2.6  # pixels in a degree


def world_map(title: str, cells: Sequence[Sequence[int]], highest: int) -> str:
    """The cells, darker where more notifications touch them; by powers, so that few are seen beside many."""
    shades: list[list[str]] = [[] for _ in range(SHADES)]
    for lat, lon, count in cells:
        share = math.log1p(count) / math.log1p(highest)
        path = f"M{(lon + 180) * _SCALE:.1f} {(89 - lat) * _SCALE:.1f}h{_SCALE}v{_SCALE}h-{_SCALE}z"
        shades[min(SHADES - 1, int(share * SHADES))].append(path)
    drawn = "".join(
        f'<path class="cell" opacity="{0.3 + 0.7 * (number + 1) / SHADES:.2f}" d="{"".join(paths)}"/>'
        for number, paths in enumerate(shades)
        if paths
    )
    words = f"{title}: {len(cells):,} cells of one degree, at most {highest:,} notifications in one"
    sea = f'<rect class="sea" width="{360 * _SCALE:.0f}" height="{180 * _SCALE:.0f}"/>'
    return picture(words, f'{sea}<path class="land" d="{_land()}"/>{drawn}', round(360 * _SCALE), round(180 * _SCALE))


@cache
def _land() -> str:
    """The outlines of the land as one path."""
    text = (files("aviso_server") / "web" / "vendor" / "land-110m.json").read_text(encoding="utf-8")
    world = json.loads(text)
    arcs = [_absolute(arc, world["transform"]) for arc in world["arcs"]]
    path = []
    for shape in world["objects"]["land"]["geometries"]:
        polygons = shape["arcs"] if shape["type"] == "MultiPolygon" else [shape["arcs"]]
        path += [_ring(ring, arcs) for polygon in polygons for ring in polygon]
    return "".join(path)


def _absolute(arc: Iterable[Sequence[int]], transform: dict[str, Any]) -> list[tuple[float, float]]:
    """The points of an arc; stored are small steps from one to the next."""
    (wide, high), (west, south) = transform["scale"], transform["translate"]
    x = y = 0
    points = []
    for step in arc:
        x, y = x + step[0], y + step[1]
        points.append((x * wide + west, y * high + south))
    return points


def _ring(numbers: Iterable[int], arcs: Sequence[Sequence[tuple[float, float]]]) -> str:
    points: list[tuple[float, float]] = []
    for number in numbers:
        arc = arcs[number] if number >= 0 else arcs[~number][::-1]
        points += arc[1:] if points else arc
    path, before = [], points[0][0] + 360
    for lon, lat in points:
        # where a ring jumps over the date line it goes on at the other edge of the map
        path.append(f"{'M' if abs(lon - before) > 180 else 'L'}{(lon + 180) * _SCALE:.1f} {(90 - lat) * _SCALE:.1f}")
        before = lon
    return "".join(path) + "z"
