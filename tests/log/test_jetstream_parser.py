"""What a broker sends, in whatever pieces it arrives: every delivery once, in order, as the notification it means."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aviso_server.log.jetstream.client import Parser
from aviso_server.log.jetstream.wire import identify_by, message_of
from aviso_server.model.json_text import compact
from aviso_server.model.notification import Box, Draft, Notification
from tests.log.scenario import block

IDENTIFY = identify_by({"mars": ("class", "step")})
PLAIN = "$JS.ACK.MARS.follower.1.%d.%d.%d.0"
WITH_DOMAIN = "$JS.ACK.hub.ABCDEF.MARS.follower.1.%d.%d.%d.0"
WITH_TOKEN = "$JS.ACK.hub.ABCDEF.MARS.follower.1.%d.%d.%d.0.x7"
DRAFTS = [
    Draft("mars", "mars.od.1", compact({"class": "od", "step": "1"}), compact({"a": "HMSG 1 2\\r\\n"})),
    Draft("mars", "mars.od.2", b"{}", b"null"),
    Draft("mars", "mars.o d.3", compact({"class": "o d"}), b"1"),
    Draft("mars", "mars.Zürich.4", compact({"class": "Zürich"}), compact("Zürich")),
    Draft("mars", "mars.od.5", compact({"class": "od"}), b"2", Box(-10.5, 0.0, 20.0, 30.0)),
    Draft("mars", "mars", compact({"class": "od"}), b"3"),
]
EXTRA = [b"", b"Nats-Batch-Id: 1\r\nNats-Batch-Sequence: 2\r\n", b"Nats-Msg-Id: x\r\n"]


def delivered(draft: Draft, number: int, reply: str, extra: bytes = b"", subscription: int = 7) -> bytes:
    """How a consumer delivers it, as its `number`-th delivery."""
    message = message_of(draft)
    head = block(message) + extra + b"\r\n"
    where = (reply % (number + 100, number, number + 1000)).encode()
    sizes = b"%d %d" % (len(head), len(head) + len(message.body))
    return b"HMSG %b %d %b %b\r\n%b%b\r\n" % (message.subject.encode(), subscription, where, sizes, head, message.body)


def expected(draft: Draft, number: int) -> tuple[int, Notification]:
    return number, Notification(number + 100, number + 1000, draft.topic, draft.identifier, draft.payload, draft.box)


def parsed(pieces: Sequence[bytes]) -> tuple[list[tuple[int, Notification]], list[bytes]]:
    """What subscription 7 was given: deliveries, and the headers of everything else."""
    deliveries: list[tuple[int, Notification]] = []
    others: list[bytes] = []

    async def run() -> None:
        parser = Parser(None)
        parser.consumers[b"7"] = (lambda number, one: deliveries.append((number, one)), IDENTIFY)
        parser.handlers[b"7"] = lambda subject, reply, headers, body: others.append(headers)
        parser.handlers[b"8"] = lambda subject, reply, headers, body: None
        for piece in pieces:
            await parser.parse(piece)

    asyncio.run(run())
    return deliveries, others


deliveries = st.tuples(
    st.sampled_from(DRAFTS), st.sampled_from([PLAIN, WITH_DOMAIN, WITH_TOKEN]), st.sampled_from(EXTRA)
)


@given(data=st.data())
def test_deliveries_are_the_same_however_they_are_cut(data: st.DataObject) -> None:
    chosen: list[tuple[Draft, str, bytes]] = data.draw(st.lists(deliveries, max_size=8))
    sent = b"".join([delivered(draft, number, reply, extra) for number, (draft, reply, extra) in enumerate(chosen, 1)])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=6)))
    pieces = [sent[start:end] for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    assert parsed(pieces)[0] == [expected(draft, number) for number, (draft, *_) in enumerate(chosen, 1)]


def test_one_byte_at_a_time() -> None:
    sent = b"".join([delivered(draft, number, PLAIN) for number, draft in enumerate(DRAFTS, 1)])
    found, _ = parsed([sent[place : place + 1] for place in range(len(sent))])
    assert found == [expected(draft, number) for number, draft in enumerate(DRAFTS, 1)]


@pytest.mark.parametrize("body", [b"text", b"", b'"HMSG a 7 b 1 2\r\n"', b'{"b":1, "a":2}'])
def test_messages_of_others_are_deliveries_too(body: bytes) -> None:
    sent = b"MSG mars.od.4 7 $JS.ACK.MARS.c.1.9.1.5.0 %d\r\n%b\r\n" % (len(body), body)
    [(number, one)], others = parsed([sent])
    assert (number, one.sequence, one.time, one.topic) == (1, 9, 5, "mars.od.4")
    assert one.values() == {"class": "od", "step": "4"}
    assert others == []


def test_what_is_no_delivery_goes_to_the_handler() -> None:
    status = b"NATS/1.0 409 Consumer Deleted\r\n\r\n"
    sent = b"HMSG _INBOX.x 7 %d %d\r\n%b\r\n" % (len(status), len(status), status)
    elsewhere = delivered(DRAFTS[0], 1, PLAIN, subscription=8)
    deliveries, others = parsed([elsewhere + sent + delivered(DRAFTS[0], 1, PLAIN)])
    assert deliveries == [expected(DRAFTS[0], 1)]
    assert others == [status]
