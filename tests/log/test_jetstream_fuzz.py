"""Whatever arrives from a broker: no crash and no stall; what is malformed is reported, what is sound gets through."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from itertools import accumulate

import nats.errors
from hypothesis import example, given, settings, target
from hypothesis import strategies as st

from aviso_server.log.jetstream.client import Parser
from aviso_server.log.jetstream.wire import identify_by, notification_of, readable
from aviso_server.model.notification import Notification

IDENTIFY = identify_by({"mars": ("class", "step"), "area": ("polygon", "date")})
DELIVERED = b"$JS.ACK.MARS.c.1.%d.%d.7.0"
SECONDS = 3.0  # far more than any of these examples needs

names = st.sampled_from(
    [
        b"aviso_identifier",
        b"aviso_topic",
        b"spatial_bbox",
        b"spatial_geometry",
        b"spatial_point_cloud",
        b"Nats-Stream",
        b"Nats-Sequence",
        b"Nats-Msg-Id",
        b"",
    ]
)
values = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [b"{}", b'{"polygon":null}', b'{"point_cloud":null}', b"[[1,2],[3,4],[5,6],[1,2]]", b"1,2,3,4", b"1,2", b"nan"]
    ),
    st.text(max_size=20).map(str.encode),
)
lines = st.tuples(names, st.sampled_from([b": ", b":", b" ", b""]), values).map(b"".join)
starts = st.sampled_from([b"NATS/1.0\r\n", b"NATS/1.0 100 Idle\r\n", b"NATS/1.0\r\naviso_identifier: ", b"", b"\r\n"])
header_blocks = st.tuples(
    starts, st.lists(lines, max_size=6).map(b"\r\n".join), st.sampled_from([b"\r\n\r\n", b""])
).map(b"".join)
subjects = st.one_of(
    st.sampled_from([b"mars.od.1", b"mars", b"mars.%5F", b"area.%5Fpolygon.1", b"mars.%20.%", b"mars.\xff"]),
    st.binary(min_size=1, max_size=20).map(lambda text: b"".join(text.split()) or b"x"),
)
bodies = st.one_of(st.binary(max_size=60), st.sampled_from([b"null", b"{", b"[" * 2000, b'"\xed\xa0\x80"', b"1e999"]))


def follow(pieces: Sequence[bytes]) -> tuple[list[tuple[int, Notification]], int, str]:
    """Feed a parser: what was delivered, how many failures were reported, and why the connection was ended."""
    deliveries: list[tuple[int, Notification]] = []
    reported = 0

    class Client:
        """What the parser wants of a client."""

        async def _process_msg(self, *_: object) -> None: ...
        async def _process_err(self, _: str) -> None: ...
        async def _process_ping(self) -> None: ...
        async def _process_pong(self) -> None: ...
        async def _process_info(self, _: object) -> None: ...

    def report(*_: object) -> None:
        nonlocal reported
        reported += 1

    async def run() -> str:
        asyncio.get_running_loop().set_exception_handler(report)
        parser = Parser(Client())
        parser.consumers[b"7"] = (lambda number, one: deliveries.append((number, one)), IDENTIFY)
        parser.handlers[b"7"] = lambda subject, reply, headers, body: None
        for piece in pieces:
            try:
                await parser.parse(piece)
            except nats.errors.ProtocolError as error:
                return str(error)
        return ""

    began = time.process_time()
    ended = asyncio.run(run())
    assert time.process_time() - began < SECONDS
    return deliveries, reported, ended


def message(subject: bytes, headers: bytes, body: bytes, number: int, reply: bytes = DELIVERED) -> bytes:
    where = reply % (number + 100, number) if b"%d" in reply else reply
    sizes = b"%d %d" % (len(headers), len(headers) + len(body))
    return b"HMSG %b 7 %b %b\r\n%b%b\r\n" % (subject, where, sizes, headers, body)


@settings(deadline=None)
@given(subject=subjects, headers=header_blocks, body=bodies)
def test_every_message_is_a_notification_or_is_left_out(subject: bytes, headers: bytes, body: bytes) -> None:
    found = notification_of(5, 6, subject, headers, body, IDENTIFY)
    assert (found.sequence, found.time) == (5, 6)
    assert len(readable([found])) == bool(found.identifier)


@settings(deadline=None)
@given(messages=st.lists(st.tuples(subjects, header_blocks, bodies), min_size=1, max_size=5))
def test_a_malformed_message_keeps_nothing_after_it_away(messages: list[tuple[bytes, bytes, bytes]]) -> None:
    sent = b"".join([message(*each, number) for number, each in enumerate(messages, 1)])
    found, reported, ended = follow([sent])
    assert [number for number, _ in found] == [*range(1, len(messages) + 1)]
    assert (reported, ended) == (0, "")


@settings(deadline=None)
@given(reply=st.binary(min_size=1, max_size=30).map(lambda text: b"".join(text.split()) or b"x"))
@example(reply=b"$JS.ACK.MARS.c.1.x.y.z.0")
def test_a_reply_that_is_no_delivery_is_reported(reply: bytes) -> None:
    if b"%d" in reply:
        return
    sound = message(b"mars.od.1", b"NATS/1.0\r\n\r\n", b"1", 1)
    found, reported, ended = follow([message(b"mars.od.1", b"NATS/1.0\r\n\r\n", b"1", 1, reply) + sound])
    assert found[-1][1].sequence == 101
    assert (len(found) - 1, reported, ended) in ((0, 1, ""), (1, 0, ""))


@settings(max_examples=300, deadline=None)  # time is measured as CPU time, above
@given(data=st.data())
def test_damage_on_the_wire_takes_nothing_back_that_came_before_it(data: st.DataObject) -> None:
    sound = [message(b"mars.od.%d" % number, b"NATS/1.0\r\n\r\n", b"%d" % number, number) for number in range(1, 9)]
    sent = b"".join(sound) + b"PING\r\nINFO {}\r\n+OK\r\n"
    place = data.draw(st.integers(0, len(sent) - 1))
    damaged = sent[:place] + data.draw(st.binary(max_size=3)) + sent[place + data.draw(st.integers(0, 3)) :]
    cut = data.draw(st.integers(0, len(damaged)))
    found, _, ended = follow([damaged[:cut], damaged[cut:]])
    target(float(len(found)))
    before = len([end for end in accumulate(map(len, sound)) if end <= place])
    assert [(number, one.payload) for number, one in found[:before]] == [
        (number, b"%d" % number) for number in range(1, before + 1)
    ]
    if damaged == sent:
        assert (len(found), ended) == (8, "")


@settings(deadline=None)
@given(
    pieces=st.lists(st.one_of(st.binary(max_size=50), st.sampled_from([b"MSG ", b"HMSG a 7 1 ", b"\r\n", b"INFO "])))
)
@example(pieces=[b"MSG a 7 99999999999\r\n"])
@example(pieces=[b"MSG a 7 -5\r\n"])
@example(pieces=[b"HMSG a 7 9 5\r\n12345\r\n"])
@example(pieces=[b"INFO nonsense\r\n"])
@example(pieces=[b"x" * 5000 + b"\r\n"])
@example(pieces=[b"x" * 60_000] * 20)
def test_noise_ends_the_connection_or_waits_for_its_end(pieces: list[bytes]) -> None:
    _, _, ended = follow(pieces)
    noise = b"".join(pieces)
    if b"\r\n" not in noise:
        assert bool(ended) == (len(noise) > 1024 * 1024)
