"""Plots as inline SVG: no scripts, colours from the page, and words for those who do not see them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

__all__ = ["bars", "lines", "ranking"]

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
