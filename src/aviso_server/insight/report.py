"""The report: one page of HTML that needs nothing else, with plots, a map and tables of what was published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from html import escape
from typing import Any

from aviso_server.insight.answers import answer
from aviso_server.insight.charts import bars, lines, ranking
from aviso_server.insight.reading import Reader
from aviso_server.insight.tables import HOUR, State
from aviso_server.insight.world import world_map
from aviso_server.model.timestamp import event_time

__all__ = ["report"]

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
        rows = [(value["value"], value["count"]) for value in each["values"][:_SHOWN_VALUES]]
        other = each["other"] + sum(value["count"] for value in each["values"][_SHOWN_VALUES:])
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
