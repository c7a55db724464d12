"""The report: one page of HTML that needs nothing else; and the tables of insight for other programs.

Plots are inline SVG: no scripts, colours from the page, and words for those who do not see them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from aviso_server.insight.answers import answer
from aviso_server.insight.counts import HOUR, Reader, State
from aviso_server.model.times import event_time

__all__ = ["bars", "export", "lines", "ranking", "report", "world_map"]

_WIDTH = 960
_HEIGHT = 180
_ROW = 26


def bars(
    title: str, points: Sequence[tuple[int, int]], step: int, span: tuple[int, int], labels: tuple[str, str]
) -> str:
    """Counts over time: pairs of a time and a count, a step apart where there are any; the span has an open end."""
    if not points:
        return ""
    (first, end), highest = span, max(count for _, count in points)
    width = _WIDTH * step / (end - first)
    rects = []
    for time, count in points:
        height = max(1.0, count / highest * (_HEIGHT - 24))
        x = (time - first) / step * width
        rects.append(
            f'<rect x="{x:.1f}" y="{_HEIGHT - height:.1f}" width="{max(0.6, width * 0.9):.1f}" height="{height:.1f}"/>'
        )
    words = f"{title}: from {labels[0]} to {labels[1]}, at most {highest:,}"
    return _figure(words, "".join(rects), labels, f"{highest:,}")


def lines(
    title: str,
    series: Sequence[tuple[str, Sequence[tuple[int, float]]]],
    span: tuple[int, int],
    labels: tuple[str, str],
    top: str,
    bottom: str,
) -> str:
    """Several values over time, each as a line with its name."""
    points = [point for _, each in series for point in each]
    if not points:
        return ""
    first, end = span
    low, high = min(value for _, value in points), max(value for _, value in points)
    parts = []
    for number, (name, each) in enumerate(series):
        places = [
            f"{(time - first) / (end - first) * _WIDTH:.1f},"
            f"{_HEIGHT - 4 - (value - low) / max(1, high - low) * (_HEIGHT - 28):.1f}"
            for time, value in each
        ]
        if len(places) == 1:
            x, y = places[0].split(",")
            places.append(f"{float(x) + 8},{y}")
        parts.append(
            f'<polyline class="line{number}" points="{" ".join(places)}"><title>{escape(name)}</title></polyline>'
        )
    legend = "".join(
        f'<tspan class="line{number}" dx="10">{escape(name)}</tspan>' for number, (name, _) in enumerate(series)
    )
    names = ", ".join(name for name, _ in series)
    words = f"{title} ({names}): from {labels[0]} to {labels[1]}, between {bottom} and {top}"
    extra = f'<text x="{_WIDTH - 160}" y="14">{legend}</text>'
    return _figure(words, "".join(parts) + extra, labels, top, bottom)


def ranking(title: str, rows: Sequence[tuple[str, int]]) -> str:
    """Names with their counts as bars, one below the other."""
    if not rows:
        return ""
    highest = max(count for _, count in rows)
    parts = []
    for place, (name, count) in enumerate(rows):
        y = place * _ROW
        shown = name if len(name) <= 28 else f"{name[:27]}…"
        parts.append(
            f'<text x="220" y="{y + 17}" text-anchor="end">{escape(shown)}</text>'
            f'<rect x="232" y="{y + 4}" width="{max(1.0, count / highest * 600):.1f}" height="{_ROW - 8}"/>'
            f'<text x="{240 + count / highest * 600:.1f}" y="{y + 17}">{count:,}</text>'
        )
    words = f"{title}: " + ", ".join(f"{name} {count:,}" for name, count in rows)
    return picture(words, "".join(parts), _WIDTH, len(rows) * _ROW)


def picture(words: str, content: str, width: int, height: int) -> str:
    """An SVG with a title that says what is to be seen."""
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(words, quote=True)}">'
        f"<title>{escape(words)}</title>{content}</svg>"
    )


def _figure(words: str, content: str, labels: Iterable[str], top: str, bottom: str = "") -> str:
    start, end = labels
    axis = (
        f'<line class="axis" x1="0" x2="{_WIDTH}" y1="{_HEIGHT}" y2="{_HEIGHT}"/>'
        f'<text x="0" y="14">{escape(top)}</text><text x="0" y="{_HEIGHT - 4}">{escape(bottom)}</text>'
        f'<text x="0" y="{_HEIGHT + 18}">{escape(start)}</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT + 18}" text-anchor="end">{escape(end)}</text>'
    )
    return picture(words, content + axis, _WIDTH, _HEIGHT + 24)


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


_SHOWN_VALUES = 12
_SEEN_VALUES = 20

_STYLE = """
:root{color-scheme:light dark;--paper:light-dark(#eef2f5,#0c1319);--panel:light-dark(#fff,#141d26);
--ink:light-dark(#13202c,#e4ebf1);--soft:light-dark(#52616f,#9db0bf);--line:light-dark(#d5dde4,#283541);
--accent:light-dark(#0b5cad,#7ab8f5);--hot:light-dark(#c2410c,#ff9d5c);--third:light-dark(#17693b,#6ad19a);
--sea:light-dark(#dfe9f1,#0f1a24);--land:light-dark(#fbfaf6,#22303d);--coast:light-dark(#a9b9c6,#4a5d6e)}
*{box-sizing:border-box}body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
header,main,footer{max-width:68rem;margin:0 auto;padding:1.2rem}h1{font-size:1.6rem;margin:.4rem 0}
h2{font-size:1.25rem;margin:0 0 .3rem}h3{font-size:1rem;margin:1.6rem 0 .4rem}p{margin:.2rem 0}.soft{color:var(--soft)}
section{background:var(--panel);border:1px solid var(--line);border-radius:12px;padding:1.2rem;margin-bottom:1.2rem}
svg{display:block;width:100%;height:auto;margin:.4rem 0}svg text{fill:var(--soft);font:13px system-ui,sans-serif}
svg rect{fill:var(--accent)}svg .axis{stroke:var(--line)}svg polyline{fill:none;stroke-width:2;stroke:var(--accent)}
svg polyline.line1{stroke:var(--hot)}svg polyline.line2{stroke:var(--third)}svg tspan.line0{fill:var(--accent)}
svg tspan.line1{fill:var(--hot)}svg tspan.line2{fill:var(--third)}svg rect.sea{fill:var(--sea)}
svg .land{fill:var(--land);stroke:var(--coast);stroke-width:.5}svg .cell{fill:var(--hot)}
table{border-collapse:collapse;width:100%;font-size:.9rem}th,td{text-align:left;padding:.25rem .6rem .25rem 0;
border-bottom:1px solid var(--line);overflow-wrap:anywhere}td.n{text-align:right;font-variant-numeric:tabular-nums}
details>summary{cursor:pointer;color:var(--accent);margin-top:.6rem}nav a{color:var(--accent);margin-right:1rem}
"""


def report(reader: Reader, states: Sequence[State], days: int, made: int, title: str) -> str:
    """The page about so many days up to the newest notification of each stream; `made` is now in nanoseconds."""
    shown = [state for state in states if state.days]
    links = "".join(f'<a href="#{number}">{escape(each.event_type)}</a>' for number, each in enumerate(shown))
    sections = "".join(_section(reader, each, days, number) for number, each in enumerate(shown))
    body = sections or "<section><p>Nothing has been published yet.</p></section>"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        f'<header><h1>{escape(title)}</h1><p class="soft">Made {_moment(event_time(made))} from the archive, '
        f'about {days} days. All times are UTC.</p><nav aria-label="Event types">{links}</nav></header>'
        f"<main>{body}</main></body></html>\n"
    )


def _section(reader: Reader, state: State, days: int, number: int) -> str:
    end = state.days[-1].last_time
    start = max(0, end - (days * 24 - 1) * HOUR)

    def ask(name: str) -> dict[str, Any]:
        return answer(reader, state.stream, name, start, end, None) or {}

    hours, fields, seen = ask("hours"), ask("fields"), ask("seen")
    labels = _moment(hours["from"]), _moment(hours["to"])
    step = 1 if hours["step"] == "hour" else 24
    span = _hour(hours["from"]) // step * step, _hour(hours["to"])
    total = sum(row["count"] for row in hours["rows"])
    points = [(_hour(row["time"]), row["count"]) for row in hours["rows"]]
    parts = [
        f'<section id="{number}"><h2>{escape(state.event_type)}</h2>',
        (
            f"<p>{total:,} notifications from {labels[0]} to {labels[1]}; {state.count:,} ever, "
            f"the first at {_moment(event_time(state.days[0].first_time))}, the last at {_moment(event_time(end))}. "
            f'<span class="soft">Up to sequence {state.through:,}.</span></p>'
        ),
        f"<h3>Notifications per {hours['step']}</h3>",
        bars(f"Notifications per {hours['step']}", points, step, span, labels),
        *_delay_parts(ask("delays"), span, labels),
        *_map_parts(ask("coverage")),
    ]
    for each in fields["fields"]:
        values = each["values"]
        if "bins" in each:
            rows = [(f"{part['from']:g} to {part['to']:g}", part["count"]) for part in each["bins"]]
        else:
            rows = [(value["value"], value["count"]) for value in values[:_SHOWN_VALUES]]
        other = each["other"] + sum(value["count"] for value in values) - sum(count for _, count in rows)
        title = f"Values of {each['field']}"
        chart = ranking(title, [*rows, ("other", other)] if other else rows)
        parts.append(f"<h3>{escape(title)}</h3>{chart}")
    parts.append(_seen_table(seen["fields"]))
    return "".join([*parts, "</section>"])


def _delay_parts(delays: Mapping[str, Any], span: tuple[int, int], labels: tuple[str, str]) -> list[str]:
    parts = []
    for name, title in (("run", "Delay since date and time"), ("valid", "Delay since date, time and step")):
        found = delays.get(name)
        if not found:
            continue
        quantiles = ", ".join(f"{key} %: {_duration(value)}" for key, value in found["percentiles"].items())
        rows = [(_hour(row["time"]), row["percentiles"]) for row in found["rows"]]
        series = [(f"{key} %", [(hour, each[key]) for hour, each in rows]) for key in ("5", "50", "95")]
        low = _duration(min(each["5"] for _, each in rows))
        high = _duration(max(each["95"] for _, each in rows))
        parts += [
            f"<h3>{title}</h3><p>Of {found['count']:,} notifications so many percent came within: {quantiles}.</p>",
            lines(title, series, span, labels, high, low),
        ]
    return parts


def _map_parts(coverage: Mapping[str, Any]) -> list[str]:
    if not coverage.get("cells"):
        return []
    return ["<h3>Where</h3>", world_map("Coverage", coverage["cells"], coverage["highest"])]


def _seen_table(fields: Sequence[Mapping[str, Any]]) -> str:
    rows = "".join(
        f"<tr><td>{escape(each['field'])}</td><td>{escape(value['value'])}</td><td class='n'>{value['count']:,}</td>"
        f"<td>{_moment(value['first'])}</td><td>{_moment(value['last'])}</td></tr>"
        for each in fields
        for value in each["values"][:_SEEN_VALUES]
    )
    if not rows:
        return ""
    heads = "".join(f'<th scope="col">{head}</th>' for head in ("Field", "Value", "Count", "First seen", "Last seen"))
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    return f"<details><summary>First and last seen</summary>{table}</details>"


def _hour(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) // 3600


def _moment(text: str) -> str:
    return text[:16].replace("T", " ")


def _duration(seconds: int) -> str:
    """Seconds as people say them."""
    sign, size = ("−" if seconds < 0 else ""), abs(seconds)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if size >= 2 * length:
            return f"{sign}{size / length:.1f} {unit}"
    return f"{sign}{size} s"


def export(reader: Reader, states: Sequence[State], days: int, folder: Path) -> list[Path]:
    """Write hours, fields, delays, coverage and seen, as far as there are any; the files that were written.

    Every table has the event type in front. Times are timestamps in UTC.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[pa.Table]] = {}
    for state in states:
        if not state.days:
            continue
        last = state.days[-1].last_time // HOUR
        first = last - days * 24 + 1
        for name in ("hours", "fields", "delays", "cells"):
            table = reader.table(state, name, first, last)
            if table is not None and table.num_rows:
                found.setdefault(name, []).append(_labelled(state, table))
    written = []
    if "cells" in found:
        cells = pa.concat_tables(found.pop("cells")).group_by(["event_type", "lat", "lon"])
        found["coverage"] = [cells.aggregate([("count", "sum")]).rename_columns(["event_type", "lat", "lon", "count"])]
    if "fields" in found:
        found["seen"] = [_seen(pa.concat_tables(found["fields"]))]
    for name, tables in found.items():
        path = folder / f"{name}.parquet"
        draft = path.with_name(f".{path.name}")
        pq.write_table(_timed(pa.concat_tables(tables)), draft, compression="zstd")
        written.append(draft.replace(path))
    return written


def _labelled(state: State, table: pa.Table) -> pa.Table:
    return table.add_column(0, "event_type", pa.repeat(state.event_type, table.num_rows))


def _seen(fields: pa.Table) -> pa.Table:
    named = fields.filter(pc.is_valid(fields["value"]))
    grouped = named.group_by(["event_type", "field", "value"])
    table = grouped.aggregate([("count", "sum"), ("first_time", "min"), ("last_time", "max")])
    return table.rename_columns(["event_type", "field", "value", "count", "first_time", "last_time"])


def _timed(table: pa.Table) -> pa.Table:
    """Hours and nanoseconds as timestamps: in microseconds, which every program can read."""
    for name in ("hour", "first_time", "last_time"):
        if name in table.column_names:
            place = table.column_names.index(name)
            micros = pc.multiply(table[name], HOUR // 1000) if name == "hour" else pc.divide(table[name], 1000)
            table = table.set_column(place, name, micros.cast(pa.timestamp("us", "UTC")))
    return table
