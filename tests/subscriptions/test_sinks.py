"""Sinks: nothing on this machine, in its network or in between is ever reached, whatever it is called."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aviso_server.errors import InvalidRequest
from aviso_server.subscriptions.sinks import NotSent, SinkClient, SinkRules, check_headers, is_public
from tests.harness.patience import PATIENCE
from tests.subscriptions.receiver import Receiver, Reply

NOT_PUBLIC = [
    *("127.0.0.1", "127.8.8.8", "0.0.0.0", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1"),
    *("169.254.169.254", "100.64.0.1", "100.100.100.200", "192.0.0.192", "198.18.0.1", "224.0.0.1", "255.255.255.255"),
    *("192.0.2.1", "203.0.113.7", "240.0.0.1", "192.88.99.1"),
    *("::1", "::", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1", "100::1", "fec0::1"),
    *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:10.0.0.1", "::ffff:0:0"),
    *("::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1"),
    *("2002:7f00:1::", "2002:a9fe:a9fe::1", "2001:0:4136:e378:8000:63bf:80ff:fffe", "2001::1"),
]
PUBLIC = [
    "8.8.8.8",
    "93.184.216.34",
    "2606:4700::1111",
    "2a00:1450:4001:82a::200e",
    "::ffff:8.8.8.8",
    "2002:808:808::1",
]


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))
    host = f"[{address}]" if ":" in address else address
    for scheme in ("https", "http"):
        with pytest.raises(InvalidRequest):
            SinkRules().check(f"{scheme}://{host}/hook")


@pytest.mark.parametrize("address", PUBLIC)
def test_addresses_that_are_public(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))
    host = f"[{address}]" if ":" in address else address
    assert SinkRules().check(f"https://{host}/hook").port == 443
    with pytest.raises(InvalidRequest, match="https"):
        SinkRules().check(f"http://{host}/hook")


@given(st.ip_addresses(v=4))
def test_an_address_inside_another_is_judged_as_itself(address: ipaddress.IPv4Address) -> None:
    number = int(address)
    wrapped = [
        ipaddress.IPv6Address(f"::ffff:{address}"),
        ipaddress.IPv6Address(int(ipaddress.IPv6Address("64:ff9b::")) | number),
        ipaddress.IPv6Address(int(ipaddress.IPv6Address("2002::")) | number << 80),
    ]
    assert {is_public(each) for each in wrapped} == {is_public(address)}


@pytest.mark.parametrize(
    "url",
    [
        "https://2130706433/",  # 127.0.0.1 as a number
        "https://0x7f000001/",
        "https://017700000001/",
        "https://0177.0.0.1/",
        "https://0x7f.1/",
        "https://127.1/",
        "https://127.0.0.1./",
        "https://[::ffff:7f00:1]/",
        "https://[fe80::1%25eth0]/",
        "https://①②⑦.0.0.1/",
        "https://localhost\\@example.org/",
        "https://user:secret@example.org/",
        "https://example.org/#here",
        "https://example.org:22/",
        "https://example.org:25/",
        "https://example.org:99999/",
        "https:///nowhere",
        "https://",
        "ftp://example.org/",
        "file:///etc/passwd",
        "gopher://example.org/",
        "//example.org/",
        "https://exa mple.org/",
        "https://example.org/\r\nhost: other",
        "https://example.org/" + "x" * 2048,
        "",
    ],
)
def test_addresses_in_disguise(url: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        SinkRules().check(url)
    assert refused.value.field == "sink"


@pytest.mark.parametrize(
    ("entry", "url", "allowed"),
    [
        ("127.0.0.1", "http://127.0.0.1:9/", True),
        ("127.0.0.0/8", "http://127.3.2.1/", True),
        ("10.1.0.0/16", "http://10.2.0.1/", False),
        ("hooks.internal", "http://hooks.internal/", True),
        ("hooks.internal", "http://evil.hooks.internal/", False),
        ("hooks.internal:8080", "http://hooks.internal:8080/", True),
        ("hooks.internal:8080", "http://hooks.internal:8081/", False),
        ("*.internal", "http://a.b.internal/", True),
        ("*.internal", "http://internal/", False),
        ("*.internal", "http://notinternal/", False),
        ("::1", "http://[::1]:9000/", True),
        ("10.0.0.0/8", "http://[::ffff:10.1.2.3]/", True),
    ],
)
def test_what_the_operator_lists_may_be_called(entry: str, url: str, allowed: bool) -> None:
    rules = SinkRules([entry])
    if allowed:
        assert rules.check(url).url == url
    else:
        with pytest.raises(InvalidRequest):
            rules.check(url)


@pytest.mark.parametrize("entry", ["", "a b", "http://x", "host:port", "10.0.0.0/99", "-x.org"])
def test_a_list_that_cannot_be_read(entry: str) -> None:
    with pytest.raises(ValueError, match="is no host"):
        SinkRules([entry])


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "x"},
        {"content-length": "3"},
        {"Webhook-Signature": "v1,x"},
        {"CE-Type": "x"},
        {"Transfer-Encoding": "chunked"},
        {"a b": "x"},
        {"x": "a\r\nhost: b"},
        {"x": "é"},
        {"": "x"},
        {"x": "y" * 5000},
        {f"x-{n}": "y" for n in range(17)},
    ],
)
def test_headers_that_may_not_be_sent(headers: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest):
        check_headers(headers)


def answering(*answers: Sequence[str]) -> Callable[[str, int], object]:
    """A resolver that gives these answers one after the other, and the last for ever."""
    left = list(answers)

    async def resolve(host: str, port: int) -> Sequence[str]:
        return left.pop(0) if len(left) > 1 else left[0]

    return resolve


def send(client: SinkClient, url: str, key: str = "one") -> int:
    async def run() -> int:
        try:
            answer = await client.send(key, client.rules.check(url), b"POST", [], b"{}")
            return answer.status
        finally:
            client.close()

    return asyncio.run(run())


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_a_name_that_means_an_address_inside_is_not_called(address: str, receiver: Receiver) -> None:
    client = SinkClient(SinkRules(), 5, resolve=answering([address]))  # type: ignore[arg-type]  # a plain function
    with pytest.raises(NotSent) as refused:
        send(client, f"https://sink.example:{receiver.port}/")
    assert refused.value.refused
    assert receiver.posts == []


def test_one_address_inside_spoils_the_answer(receiver: Receiver) -> None:
    client = SinkClient(SinkRules(), 5, resolve=answering(["93.184.216.34", "127.0.0.1"]))  # type: ignore[arg-type]  # as above
    with pytest.raises(NotSent) as refused:
        send(client, f"https://sink.example:{receiver.port}/")
    assert refused.value.refused


def test_the_name_is_looked_up_once_and_the_answer_is_what_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS that changes its answer between the check and the connection: there is nothing between them."""
    looked_up: list[str] = []
    real = socket.getaddrinfo

    def watched(host: str | bytes | None, *rest: Any, **more: Any) -> Any:
        looked_up.append(str(host))
        return real(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", watched)
    client = SinkClient(SinkRules(), 2, resolve=answering(["192.0.2.77"], ["127.0.0.1"]))  # type: ignore[arg-type]  # as above
    with pytest.raises(NotSent):
        send(client, "https://sink.example/")
    assert "sink.example" not in looked_up


def hang_names(monkeypatch: pytest.MonkeyPatch, over: threading.Event, asked: list[str]) -> None:
    """Have lookups of names in .example hang until it is over, and note them."""
    real = socket.getaddrinfo

    def hanging(host: str | bytes | None, *rest: Any, **more: Any) -> Any:
        if str(host).endswith(".example"):
            asked.append(str(host))
            over.wait(PATIENCE)
            raise socket.gaierror("nobody knows it")
        return real(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", hanging)


def test_names_that_hang_keep_nobody_else_waiting(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred sinks whose names nobody answers for, some of them the same, and one that is well."""
    over, asked = threading.Event(), list[str]()
    hang_names(monkeypatch, over, asked)
    client = SinkClient(SinkRules(["*.example", "localhost"]), PATIENCE)

    async def run() -> None:
        sinks = [client.rules.check(f"http://slow{n % 50}.example/") for n in range(100)]
        waiting = [asyncio.create_task(client.send(f"{n}", sink, b"POST", [], b"{}")) for n, sink in enumerate(sinks)]
        await asyncio.sleep(0.1)
        well = client.rules.check(f"http://localhost:{receiver.port}/")
        answer = await client.send("well", well, b"POST", [], b"{}")
        assert answer.status == 200
        assert not any(task.done() for task in waiting), "the others still wait"
        over.set()
        failed = await asyncio.gather(*waiting, return_exceptions=True)
        assert {str(each) for each in failed} == {"its name cannot be looked up"}
        client.close()

    try:
        asyncio.run(run())
    finally:
        over.set()
    assert len(asked) == 50, "a name is looked up once at a time"


def test_no_more_names_are_looked_up_at_a_time_than_there_are_places(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More names hang than are looked up at a time: threads stay few, the next name waits, what needs none does not."""
    monkeypatch.setattr("aviso_server.subscriptions.sinks._LOOKUPS", 20)
    over = threading.Event()
    hang_names(monkeypatch, over, [])
    client = SinkClient(SinkRules(["*.example", "localhost", "127.0.0.1"]), PATIENCE)

    async def send_to(host: str, key: str = "") -> int:
        sink = client.rules.check(f"http://{host}:{receiver.port}/")
        return (await client.send(key or host, sink, b"POST", [], b"{}")).status

    async def run() -> None:
        assert await send_to("localhost", "connected") == 200
        waiting = [asyncio.create_task(send_to(f"slow{number}.example")) for number in range(300)]
        await asyncio.sleep(0.1)
        looking = [thread for thread in threading.enumerate() if thread.name.startswith("look up slow")]
        assert len(looking) == 20
        assert await send_to("127.0.0.1") == 200, "an address needs no place"
        assert await send_to("localhost", "connected") == 200, "a connection needs no place"
        late = asyncio.create_task(send_to("localhost", "new"))
        await asyncio.sleep(0.1)
        assert not late.done(), "a new connection to a name waits for a place"
        over.set()
        assert await late == 200
        failed = await asyncio.gather(*waiting, return_exceptions=True)
        assert {str(each) for each in failed} == {"its name cannot be looked up"}
        client.close()

    try:
        asyncio.run(run())
    finally:
        over.set()


def test_every_new_connection_looks_again(receiver: Receiver) -> None:
    """The name meant something that is listed, and now something that is not."""
    client = SinkClient(
        SinkRules(["127.0.0.1"]),
        5,
        resolve=answering(["127.0.0.1"], ["127.0.0.2"]),  # type: ignore[arg-type]  # as above
    )

    async def run() -> None:
        # over plain HTTP a name must be listed; the rules of addresses hold for it all the same if it is not
        sink = client.rules.check(f"http://127.0.0.1:{receiver.port}/")
        sink = type(sink)(sink.url, False, "sink.example", receiver.port, "/", False)
        assert (await client.send("one", sink, b"POST", [], b"{}")).status == 200
        client.forget("one")
        with pytest.raises(NotSent) as refused:
            await client.send("one", sink, b"POST", [], b"{}")
        assert refused.value.refused
        client.close()

    asyncio.run(run())
    assert len(receiver.posts) == 1


def test_a_redirect_is_not_followed(receiver: Receiver) -> None:
    with Receiver(lambda got: Reply(302, (("Location", receiver.url),))) as first:
        assert send(SinkClient(SinkRules(["127.0.0.1"]), 5), first.url) == 302
    assert receiver.posts == []


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"", "closed"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 100_000, "too long|not HTTP"),
        (b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", "protocol|informational"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", "no answer"),
    ],
)
def test_answers_that_are_none(said: bytes, reason: str) -> None:
    async def run() -> None:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(said)
            if b"content-length: 5" not in said:
                writer.close()

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client = SinkClient(SinkRules(["127.0.0.1"]), 1)
        with pytest.raises(NotSent, match=reason):
            await client.send("one", client.rules.check(f"http://127.0.0.1:{port}/"), b"POST", [], b"")
        client.close()
        server.close()

    asyncio.run(run())


def test_a_long_answer_is_cut_and_a_slow_one_ends() -> None:
    async def run() -> None:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            while not writer.is_closing():
                writer.write(b"x" * 65_536)
                await writer.drain()

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client = SinkClient(SinkRules(["127.0.0.1"]), 30)
        answer = await client.send("one", client.rules.check(f"http://127.0.0.1:{port}/"), b"POST", [], b"")
        assert answer.status == 200
        assert len(answer.body) <= 2 * 65_536
        assert len(answer.text) == 1024
        client.close()
        server.close()

    asyncio.run(run())


def test_a_connection_that_was_closed_while_nobody_used_it_is_replaced(receiver: Receiver) -> None:
    async def run() -> None:
        seen = 0

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal seen
            await reader.readuntil(b"\r\n\r\n")
            seen += 1
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
            await reader.read(1)  # the next request comes, and is not answered
            writer.close()

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client = SinkClient(SinkRules(["127.0.0.1"]), 10)
        sink = client.rules.check(f"http://127.0.0.1:{port}/")
        for _ in range(3):
            assert (await client.send("one", sink, b"POST", [], b"")).status == 204
        assert seen == 3
        client.close()
        server.close()

    asyncio.run(run())


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    file = folder / "both.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", str(file), "-out", str(folder / "cert.pem"), "-days", "2", "-subj", "/CN=sink.example"),
            *("-addext", "subjectAltName=DNS:sink.example"),
        ],
        check=True,
        capture_output=True,
    )
    file.write_bytes(file.read_bytes() + (folder / "cert.pem").read_bytes())
    return file


@pytest.mark.parametrize(
    ("name", "trusted", "works"),
    [("sink.example", True, True), ("sink.example", False, False), ("other.example", True, False)],
)
def test_certificates_are_verified(certificate: Path, name: str, trusted: bool, works: bool) -> None:
    async def run() -> int:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

        server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        client = SinkClient(
            SinkRules(["127.0.0.1"]),
            10,
            certificate.parent / "cert.pem" if trusted else None,
            answering(["127.0.0.1"]),  # type: ignore[arg-type]  # as above
        )
        try:
            return (await client.send("one", client.rules.check(f"https://{name}:{port}/"), b"POST", [], b"{}")).status
        finally:
            client.close()
            server.close()

    if works:
        assert asyncio.run(run()) == 200
    else:
        with pytest.raises(NotSent, match="certificate"):
            asyncio.run(run())
