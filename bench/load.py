"""The load generator for machines without a C compiler: the options and answers of `load.c`, only slower.

It takes as much of a core as the server does, so it may be what limits a run; the table says so.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import select
import socket
import sys
import time
from pathlib import Path
from typing import Any

MARK = b'"specversion"'
STAMPED = re.compile(rb'"t":"(\d{19})')
STAMP_LENGTH = 5 + 19
OPENED = b"event: heartbeat"
PLACE = b"#" * 19
OPENING = 128
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


class Connection:
    """A publisher or a watcher."""

    def __init__(self, port: int, watches: bool) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.watches = watches
        self.opened = False
        self.busy = False
        self.due = 0
        self.rest = b""


class Run:
    """One run: opens the watchers, publishes, counts."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.poll = select.epoll()
        self.connections: dict[int, Connection] = {}
        self.bodies = requests(options.bodies, "/api/v1/notification", options.port) if options.bodies else []
        self.filters = requests(options.filters, "/api/v1/watch", options.port) if options.filters else []
        self.opened = self.published = self.answered = self.refused = self.delivered = self.lost = 0
        self.acks: list[int] = []
        self.latencies: list[int] = []
        self.last_delivery = 0

    def connect(self, watches: bool) -> Connection:
        connection = Connection(self.options.port, watches)
        self.connections[connection.socket.fileno()] = connection
        self.poll.register(connection.socket, select.EPOLLIN)
        return connection

    def open_watchers(self) -> None:
        started, give_up = 0, time.monotonic() + 60
        while self.opened < self.options.watchers:
            while started < self.options.watchers and started - self.opened < OPENING:
                self.connect(True).socket.sendall(self.filters[started % len(self.filters)])
                started += 1
            self.turn(1.0)
            if self.lost or time.monotonic() > give_up:
                raise SystemExit(f"load: only {self.opened} of {self.options.watchers} watchers could be opened")

    def publish(self, connection: Connection, due: int) -> None:
        body = self.bodies[self.published % len(self.bodies)]
        self.published += 1
        connection.busy, connection.due = True, due
        connection.socket.sendall(body.replace(PLACE, b"%019d" % due, 1))

    def turn(self, timeout: float) -> list[Connection]:
        """Take in what has come; the publishers that are free again."""
        free = []
        for number, _ in self.poll.poll(timeout):
            connection = self.connections[number]
            data = connection.socket.recv(1 << 18)
            if connection.watches:
                self.receive(connection, data)
            elif self.is_answer(connection, data):
                free.append(connection)
        return free

    def is_answer(self, connection: Connection, data: bytes) -> bool:
        if not data:
            raise SystemExit("load: a publisher lost its connection")
        connection.rest += data
        head, end, body = connection.rest.partition(b"\r\n\r\n")
        length = LENGTH.search(head)
        if not end or len(body) < (int(length[1]) if length else 0):
            return False
        self.refused += head[9:12] != b"200"
        self.acks.append(time.monotonic_ns() - connection.due)
        self.answered += 1
        connection.rest, connection.busy = b"", False
        return True

    def receive(self, connection: Connection, data: bytes) -> None:
        if not data:
            self.poll.unregister(connection.socket)
            self.lost += 1
            return
        data = connection.rest + data
        if not connection.opened:
            connection.opened = OPENED in data
            self.opened += connection.opened
            connection.rest = b"" if connection.opened else data[-len(OPENED) :]
            return
        now = time.monotonic_ns()
        if self.options.stamped:
            stamps = STAMPED.findall(data)
            self.latencies += [now - int(stamp) for stamp in stamps]
            found, tail = len(stamps), STAMP_LENGTH - 1
        else:
            found, tail = data.count(MARK), len(MARK) - 1
        connection.rest = data[-tail:]
        if found:
            self.delivered += found
            self.last_delivery = now

    def measure(self) -> dict[str, Any]:
        options = self.options
        publishers = [self.connect(False) for _ in range(options.publishers)]
        server, cpu = server_seconds(options.pid), time.process_time()
        start = due = time.monotonic_ns()
        stop, gap = start + int(options.seconds * 1e9), int(1e9 / options.rate) if options.rate else 0
        finished = start
        if not gap:
            for publisher in publishers:
                self.publish(publisher, start)
        while True:
            wait = max(0.0, min(0.1, (due - time.monotonic_ns()) / 1e9)) if gap and due < stop else 0.1
            free = self.turn(wait)
            now = time.monotonic_ns()
            finished = now if free else finished
            if not gap and now < stop:
                for publisher in free:
                    self.publish(publisher, now)
            # what could not go out in time keeps the time it was due
            for publisher in publishers:
                if gap and due <= now and due < stop and not publisher.busy:
                    self.publish(publisher, due)
                    due += gap
            if now < stop or self.answered < self.published or (gap and due < stop):
                continue
            missing = self.answered * max(options.deliveries, 0) - self.delivered
            if missing <= 0 or now > stop + options.drain * 1e9:
                break
        missing = max(missing, 0) if options.deliveries > 0 else 0
        end = finished if options.deliveries <= 0 else time.monotonic_ns() if missing else self.last_delivery
        seconds = (end - start) / 1e9
        return {
            "requests": self.answered,
            "refused": self.refused,
            "request_seconds": (finished - start) / 1e9,
            "ack_p50_us": quantile(self.acks, 0.5),
            "ack_p99_us": quantile(self.acks, 0.99),
            "deliveries": self.delivered,
            "missing": missing,
            "lost": self.lost,
            "seconds": seconds,
            "delivery_p50_us": quantile(self.latencies, 0.5),
            "delivery_p99_us": quantile(self.latencies, 0.99),
            "load_cpu": (time.process_time() - cpu) / seconds,
            "server_seconds": server_seconds(options.pid) - server,
        }


def replay(options: argparse.Namespace) -> dict[str, Any]:
    """One replay to its end."""
    server, cpu, start = server_seconds(options.pid), time.process_time(), time.monotonic_ns()
    connection = socket.create_connection(("127.0.0.1", options.port))
    connection.sendall(requests(options.filters, "/api/v1/replay", options.port)[0])
    rest, events, size, first = b"", 0, 0, 0
    while data := connection.recv(1 << 20):
        size += len(data)
        over = data.endswith(b"0\r\n\r\n")
        data = rest + data
        events += data.count(MARK)
        first = first or (time.monotonic_ns() if events else 0)
        rest = data[-(len(MARK) - 1) :]
        if over:
            break
    seconds = (time.monotonic_ns() - start) / 1e9
    return {
        "deliveries": events,
        "bytes": size,
        "seconds": seconds,
        "first_us": (first - start) // 1000 if first else 0,
        "load_cpu": (time.process_time() - cpu) / seconds,
        "server_seconds": server_seconds(options.pid) - server,
    }


def requests(file: Path, path: str, port: int) -> list[bytes]:
    """Each line of the file as a complete HTTP request."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    lines = file.read_bytes().splitlines()
    return [head.encode() + b"Content-Length: %d\r\n\r\n" % len(line) + line for line in lines if line]


def quantile(nanoseconds: list[int], share: float) -> int:
    """A quantile in microseconds."""
    return sorted(nanoseconds)[int(share * len(nanoseconds))] // 1000 if nanoseconds else 0


def server_seconds(pid: int) -> float:
    """CPU seconds of the server so far, all its threads."""
    if not pid:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Do what the command line says and print one line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=["run", "replay"])
    for name, default in (("port", 0), ("pid", 0), ("publishers", 0), ("watchers", 0), ("deliveries", -1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, seconds in (("seconds", 3.0), ("rate", 0.0), ("drain", 10.0)):
        parser.add_argument(f"--{name}", type=float, default=seconds)
    for name in ("bodies", "filters"):
        parser.add_argument(f"--{name}", type=Path)
    for name in ("stamped", "hold"):
        parser.add_argument(f"--{name}", action="store_true")
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if options.mode == "replay":
        print(json.dumps(replay(options)))
        return
    run = Run(options)
    run.open_watchers()
    if options.hold:
        print("ready", flush=True)
        sys.stdin.read()
        return
    print(json.dumps(run.measure()))


if __name__ == "__main__":
    main()
