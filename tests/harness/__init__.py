"""A real server process and plain clients for it, shared by every suite that tests over the wire."""

from tests.harness.client import Client, Response
from tests.harness.server import Server, StartFailed
from tests.harness.sse import EventStream, Frame, StreamBroken

__all__ = ["Client", "EventStream", "Frame", "Response", "Server", "StartFailed", "StreamBroken"]
