"""A server that plays a script: for the answers that a healthy aviso-server never gives."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Script:
    """One answer for every request, and the requests that came."""

    def __init__(self, chunks: list[bytes], status: int = 200, content_type: str = "text/event-stream") -> None:
        self.chunks = chunks
        self.status = status
        self.content_type = content_type
        self.requests: list[tuple[str, Any]] = []


@contextmanager
def serving(script: Script) -> Iterator[str]:
    """The address of a server on a free port that answers by the script."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            script.requests.append((self.path, json.loads(body) if body else None))
            self.send_response(script.status)
            self.send_header("Content-Type", script.content_type)
            self.end_headers()
            for chunk in script.chunks:
                self.wfile.write(chunk)
                self.wfile.flush()

        do_GET = do_POST  # noqa: N815 - the library wants this name

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library wants this name
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def frame(event: str, **body: Any) -> bytes:
    """A frame as it goes over the wire."""
    return f"event: {event}\ndata: {json.dumps(body, separators=(',', ':'), ensure_ascii=False)}\n\n".encode()


def notification(sequence: int, payload: Any = None, **identifier: str) -> bytes:
    """A stored notification as a frame."""
    return frame(
        "replay",
        data={"identifier": identifier, "payload": payload},
        id=f"tide@{sequence}",
        time="2031-04-05T06:07:08Z",
    )


STARTED = frame("replay-control", type="replay_started", from_sequence=0)
COMPLETED = frame("replay-control", type="replay_completed")
CLOSING = frame("connection-closing", reason="end_of_stream")
