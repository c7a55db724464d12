"""Notifications per second, a thousand per request, against one per request on the same server."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count

import msgspec

from bench import workload
from bench.load import server_seconds
from bench.machine import Bench, Target
from bench.table import Row, alternate, compare

__all__ = ["run"]

SINGLE = 64  # connections with one notification per request
BATCHES = 4  # connections with batches
SIZE = 1000
AIM = 5.0
_KEYS = count()


class Rate(msgspec.Struct, frozen=True):
    """What was published."""

    per_second: float
    server_seconds: float  # CPU time per notification


def run(bench: Bench, quick: bool) -> list[Row]:
    """Batches, and batches with keys, beside single publishes; in_memory and sqlite."""
    bodies = workload.write(workload.bodies(), bench.directory / "bodies")
    seconds = 1.0 if quick else 3.0
    items = [json.loads(body) for body in workload.bodies(SIZE)]
    batch = json.dumps(items).encode()
    rows = []
    for kind in ("in_memory", "sqlite"):
        target = bench.server(workload.configuration(kind), kind)

        def alone(target: Target = target) -> Rate:
            found = bench.run(target, publishers=SINGLE, bodies=bodies, seconds=seconds)
            if found.refused:
                raise RuntimeError(f"{found.refused} publishes were refused")
            return Rate(found.publishes_per_second, found.server_seconds / found.requests)

        measures: dict[str, Callable[[], Rate]] = {
            "single": alone,
            "batch": partial(_batches, target, batch, seconds, False),
            "keyed": partial(_batches, target, batch, seconds, True),
        }
        for measure in measures.values():
            measure()  # warm up
        results = alternate(2 if quick else 5, measures)
        for name, words in (("batch", ""), ("keyed", ", each batch with a key")):
            ours, theirs = results[name], results["single"]
            rows.append(
                compare(
                    "batch",
                    f"{kind}, {SIZE:,} per request{words}",
                    "notifications/s",
                    [each.per_second for each in ours],
                    "one per request",
                    [each.per_second for each in theirs],
                    at_least=AIM if (kind, name) == ("sqlite", "batch") else None,
                    cpu=([each.server_seconds for each in ours], [each.server_seconds for each in theirs]),
                )
            )
        bench.stop_all()
    return rows


def _batches(target: Target, batch: bytes, seconds: float, keyed: bool) -> Rate:
    cpu, began = server_seconds(target.pid), time.monotonic()
    with ThreadPoolExecutor(BATCHES) as threads:
        sent = sum(threads.map(partial(_send, target, batch, began + seconds), [keyed] * BATCHES))
    published = sent * SIZE
    return Rate(published / (time.monotonic() - began), (server_seconds(target.pid) - cpu) / published)


def _send(target: Target, batch: bytes, until: float, keyed: bool) -> int:
    """Send the batch again and again; how often."""
    head = f"POST /api/v1/notifications HTTP/1.1\r\nHost: 127.0.0.1:{target.port}\r\n".encode()
    head += b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(batch)
    sent = 0
    with socket.create_connection(("127.0.0.1", target.port)) as connection:
        while time.monotonic() < until:
            key = b"Idempotency-Key: %d\r\n" % next(_KEYS) if keyed else b""
            connection.sendall(head + key + b"\r\n" + batch)
            answer = _answer(connection)
            if b'"refused":0' not in answer or b'"replayed":0' not in answer:
                raise RuntimeError(f"a batch was not stored: {answer[:300]!r}")
            sent += 1
    return sent


def _answer(connection: socket.socket) -> bytes:
    received = bytearray()
    while (end := received.find(b"\r\n\r\n")) < 0:
        received += connection.recv(1 << 18)
    found = received.lower().find(b"content-length: ")
    length = int(received[found + 16 : received.index(b"\r\n", found)])
    while len(received) < end + 4 + length:
        received += connection.recv(1 << 18)
    return bytes(received)
