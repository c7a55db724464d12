"""Read server-sent events, as the command line and Spark do with the server's answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

__all__ = ["Frame", "frames"]


class Frame(NamedTuple):
    """One event of a stream: its name and its data as sent."""

    event: str
    data: bytes


def frames(chunks: Iterable[bytes]) -> Iterator[Frame]:
    """Yield the complete frames of a stream, however it was cut into chunks; drop an unfinished last one.

    Lines end with LF only: other line separators may stand unescaped inside JSON text.
    """
    rest: list[bytes] = []
    tail = b""
    for chunk in chunks:
        if b"\n\n" not in tail + chunk:
            rest.append(chunk)
            tail = chunk[-1:] or tail
            continue
        *complete, last = b"".join([*rest, chunk]).split(b"\n\n")
        rest, tail = [last], last[-1:]
        for block in complete:
            yield _frame(block)


def _frame(block: bytes) -> Frame:
    event, data = "", []
    for line in block.split(b"\n"):
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"event":
            event = value.decode("utf-8", "replace")
        elif name == b"data":
            data.append(value)
    return Frame(event, b"\n".join(data))
