"""Cutting a stream into frames does not depend on how it was cut into chunks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aviso_server.commands.notifications import Frame, frames

TEXT = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]))


@given(st.lists(TEXT, max_size=5), st.lists(st.integers(1, 40), min_size=1))
def test_any_chunks_give_the_same_frames(texts: list[str], sizes: list[int]) -> None:
    stream = b"".join(f"event: replay\ndata: {text}\n\n".encode() for text in texts)
    chunks, turn = [], 0
    while stream:
        size = sizes[turn % len(sizes)]
        chunks.append(stream[:size])
        stream, turn = stream[size:], turn + 1
    assert list(frames(chunks)) == [Frame("replay", text.encode()) for text in texts]


def test_an_unfinished_frame_is_dropped() -> None:
    assert list(frames([b"event: a\ndata: 1\n\nevent: b\ndata: 2\n"])) == [Frame("a", b"1")]


def test_comments_and_empty_chunks_do_not_matter() -> None:
    assert list(frames([b": hello\nevent:a\n", b"", b"data:1\ndata:2\n", b"", b"\n"])) == [Frame("a", b"1\n2")]
