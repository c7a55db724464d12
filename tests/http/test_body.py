"""Bodies that come compressed: all of them is read, or nothing."""

from __future__ import annotations

import asyncio
import gzip
import threading
import zlib
from collections.abc import Callable
from typing import Any

import brotli
import pytest
import zstandard

from aviso_server.http.request import ENCODINGS, read_body
from aviso_server.http.response import HttpError

LIMIT = 8_388_608
TEXT = b"".join(b"%d notifications, " % number for number in range(20_000))
SKIPPABLE = b"\x5a\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"aside"
PACK: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstandard.compress,
}
JOINS = ("gzip", "deflate", "zstd")  # a stream of brotli is always one


def read(body: bytes, encoding: str, limit: int = LIMIT) -> bytes:
    async def receive() -> Any:
        return {"type": "http.request", "body": body}

    headers = [(b"content-encoding", encoding.encode())]
    return asyncio.run(read_body(headers, receive, limit))


def refused(body: bytes, encoding: str, limit: int = LIMIT) -> HttpError:
    with pytest.raises(HttpError) as refusal:
        read(body, encoding, limit)
    return refusal.value


def test_every_encoding_is_tried_here() -> None:
    assert set(PACK) == set(ENCODINGS)


@pytest.mark.parametrize("encoding", PACK)
@pytest.mark.parametrize("text", [b"", b"{}", TEXT, TEXT[:65_536], TEXT[:65_535], b"0" * LIMIT], ids=len)
def test_what_was_packed_comes_out(encoding: str, text: bytes) -> None:
    assert read(PACK[encoding](text), encoding) == text


@pytest.mark.parametrize("encoding", JOINS)
def test_everything_that_was_joined_comes_out(encoding: str) -> None:
    pack = PACK[encoding]
    assert read(pack(b"[1,") + pack(TEXT) + pack(b"") + pack(b"2]"), encoding) == b"[1," + TEXT + b"2]"


def test_frames_of_zstd_of_every_kind() -> None:
    checked = zstandard.ZstdCompressor(write_checksum=True, write_content_size=False).compress(TEXT)
    assert read(SKIPPABLE + checked + SKIPPABLE + zstandard.compress(b"0" * 300_000), "zstd") == TEXT + b"0" * 300_000


@pytest.mark.parametrize("encoding", PACK)
@pytest.mark.parametrize("text", [b"{}", TEXT], ids=len)
def test_a_part_is_refused(encoding: str, text: bytes) -> None:
    whole = PACK[encoding](text)
    steps = range(0, len(whole), 1 + len(whole) // 200)
    for size in [*steps, len(whole) - 1]:
        assert refused(whole[:size], encoding).status == 400, size


@pytest.mark.parametrize("encoding", PACK)
@pytest.mark.parametrize("tail", [b"x", b"\x00" * 9, b"{}" * 40])
@pytest.mark.parametrize("text", [b"{}", TEXT], ids=len)
def test_what_follows_is_refused(encoding: str, tail: bytes, text: bytes) -> None:
    assert refused(PACK[encoding](text) + tail, encoding).status == 400


@pytest.mark.parametrize("encoding", JOINS)
def test_what_follows_an_empty_part_is_refused(encoding: str) -> None:
    pack = PACK[encoding]
    for tail in (b"x", pack(b"")[:-1], pack(b"") * 64):
        assert refused(pack(b"{}") + pack(b"") + tail, encoding).status == 400


@pytest.mark.parametrize("encoding", PACK)
def test_one_byte_too_many(encoding: str) -> None:
    assert refused(PACK[encoding](b"0" * 300_001), encoding, 300_000).status == 413
    assert len(read(PACK[encoding](b"0" * 300_000), encoding, 300_000)) == 300_000


@pytest.mark.parametrize("encoding", ["lz4", "gzip, gzip", "gzip,br", "x" * 5000, "é"])
def test_an_encoding_that_nobody_knows(encoding: str) -> None:
    refusal = refused(gzip.compress(b"{}"), encoding)
    assert refusal.status == 415
    assert "gzip, deflate, br, zstd" in str(refusal.message)
    assert len(str(refusal.message)) < 300


@pytest.mark.parametrize("encoding", ["identity", "IDENTITY", "", " gzip ", "GZip", "x-gzip"])
def test_ways_to_write_an_encoding(encoding: str) -> None:
    packed = b"{}" if "identity" in encoding.lower() or not encoding else gzip.compress(b"{}")
    assert read(packed, encoding) == b"{}"


@pytest.mark.parametrize(
    ("encoding", "body", "size"),
    [
        *[(encoding, pack(b"[]," * 2_700_000), 8_100_000) for encoding, pack in PACK.items()],
        ("zstd", zstandard.compress(b"")[:6] + bytes(3 * 2_000_000) + b"\x01\x00\x00", 0),  # blocks of nothing
    ],
    ids=[*PACK, "zstd of nothing"],
)
def test_what_takes_long_to_unpack_is_unpacked_beside_the_loop(encoding: str, body: bytes, size: int) -> None:
    """The loop takes other turns all the while."""
    assert size == 0 or len(body) < 20_000
    threads: set[str] = set()

    async def run() -> int:
        turns = 0
        done = asyncio.Event()

        async def receive() -> Any:
            return {"type": "http.request", "body": body}

        async def others() -> None:
            nonlocal turns
            while not done.is_set():
                turns += 1
                threads.update(thread.name for thread in threading.enumerate())
                await asyncio.sleep(0)

        waiting = asyncio.create_task(others())
        await asyncio.sleep(0)
        headers = [(b"content-encoding", encoding.encode())]
        assert len(await read_body(headers, receive, LIMIT)) == size
        done.set()
        await waiting
        return turns

    assert asyncio.run(run()) > 10
    assert any(name.startswith("asyncio") for name in threads)
