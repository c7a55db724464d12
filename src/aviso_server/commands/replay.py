"""`aviso-server replay`: print the history of an event type."""

from __future__ import annotations

from typing import Any

import click
import httpx
import msgspec

from aviso_server.commands.client import DEFAULT_URL, connected, credentials, refusal, server_options
from aviso_server.commands.notifications import Event, as_line, history_options, read_identifier, read_limits
from aviso_server.commands.output import fail
from aviso_server.commands.progress import Progress
from aviso_server.model.event_stream import Frame, frames

__all__ = ["replay"]


@click.command()
@server_options
@history_options
def replay(
    event_type: str,
    fields: tuple[str, ...],
    url: str | None,
    token: str | None,
    user: str | None,
    start: str,
    end: str | None,
    filter_text: str | None,
    as_json: bool,
) -> None:
    """Print the stored notifications of EVENT_TYPE, oldest first.

    A start or an end is a sequence number (42 or mars@42) or a date (2025-06-09, 2025-06-09T13:15:00Z).
    A filter is given as KEY=VALUE, as JSON with --filter, or both; a value may be a constraint object.

    \b
    Examples:
      aviso-server replay mars class=od
      aviso-server replay mars class=od 'step={"gte": 6}' --from 2025-06-09 --json
      aviso-server replay mars --filter '{"class": "od"}' --from 100 --to 200

    \b
    Exit codes: 0 all of it was printed, 1 the server is away, refused or stopped early, 2 wrong usage.
    """
    request = {
        "event_type": event_type,
        "identifier": read_identifier(filter_text, fields),
        **read_limits(start, end),
    }
    with (
        connected(url or DEFAULT_URL, credentials(token, user)) as client,
        client.stream("POST", "/api/v1/replay", json=request) as response,
        Progress() as progress,
    ):
        _print(response, as_json, progress)


def _print(response: httpx.Response, as_json: bool, progress: Progress) -> None:
    if response.status_code != 200:
        response.read()
        fail(refusal(response))
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        fail(f"what answers at {response.url} is not an aviso server")
    completed = False
    last = "none"
    try:
        for frame in frames(response.iter_bytes()):
            if frame.event == "replay":
                event = msgspec.json.decode(frame.data, type=Event)
                last = event.id
                progress.advance(event.sequence)
                click.echo(frame.data if as_json else as_line(event))
            else:
                completed = _control(frame, last, progress) or completed
    except msgspec.DecodeError as error:
        fail(f"the server sent a frame that cannot be read: {error}; last notification: {last}")
    if not completed:
        fail(f"the stream ended before the replay was complete; last notification: {last}")


def _control(frame: Frame, last: str, progress: Progress) -> bool:
    body = msgspec.json.decode(frame.data, type=dict[str, Any]) if frame.data else {}
    if frame.event == "error":
        fail(f"the server reports: {body.get('message') or body.get('error')}; last notification: {last}")
    if body.get("type") == "notification_replay_limit_reached":
        fail(f"the server stops after {body.get('max_allowed')} notifications; go on with --from after {last}")
    if body.get("type") == "replay_started" and isinstance(body.get("end_sequence"), int):
        progress.expect(body["end_sequence"])
    return body.get("type") == "replay_completed"
