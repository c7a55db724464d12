"""`aviso-server serve`: run the server."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

import click

from aviso_server.commands.terminal import fail, load_settings
from aviso_server.errors import LogInUse, LogUnavailable

__all__ = ["serve"]

_TERMINATED = 128 + signal.SIGTERM


@click.command()
@click.option("--config", "file", type=click.Path(path_type=Path), help="Read only this file (and the environment).")
@click.option("--host", help="Listen on this address, whatever the configuration says.")
@click.option("--port", type=click.IntRange(0, 65535), help="Listen on this port; 0 takes a free one.")
@click.option(
    "--ready-file", "ready", type=click.Path(path_type=Path), help="Write host, port and pid here while listening."
)
@click.option(
    "--local-broker",
    "broker",
    type=click.Path(path_type=Path, file_okay=False),
    help="Start a NATS broker with its data in this folder, and keep notifications on it. For trying things out.",
)
def serve(file: Path | None, host: str | None, port: int | None, ready: Path | None, broker: Path | None) -> None:
    """Run the server until it is told to stop.

    Without --config the usual places are read: configuration/config.yaml, /etc/aviso_server/config.yaml and
    ~/.aviso_server/config.yaml, or only the file that AVISOSERVER_CONFIG_FILE names. Variables AVISOSERVER_... win,
    and options over them. With --host or --port and no application.base_url events name that address as their source.

    \b
    Examples:
      aviso-server serve
      aviso-server serve --config examples/config.yaml
      aviso-server serve --port 8080
      aviso-server serve --local-broker data/nats

    \b
    Exit codes: 0 stopped as asked, 1 the configuration cannot be used or the server failed, 2 wrong usage.
    """
    options = {"application.host": host, "application.port": None if port is None else str(port)}
    given = {key: value for key, value in options.items() if value is not None}
    with ExitStack() as stack:
        stack.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, _terminate))
        if ready is not None:
            _clear_ready_file(ready)
        if broker is not None:
            section = "notification_backend"
            given |= {f"{section}.kind": "jetstream", f"{section}.jetstream.nats_url": _start_broker(broker, stack)}
        settings = load_settings(file, given)
        # The server is imported late: it is heavy, and the other commands do without it.
        from aviso_server.server.lifecycle import run

        code = run(settings, ready)
    raise SystemExit(code)


def _terminate(number: int, frame: FrameType | None) -> None:
    # raises, so that a broker that was started along is stopped too
    click.echo("aviso-server: stopped by SIGTERM", err=True)
    raise SystemExit(_TERMINATED)


def _clear_ready_file(ready: Path) -> None:
    from aviso_server.server.lifecycle import clear_ready_file

    try:
        clear_ready_file(ready)
    except OSError as error:
        fail(f"--ready-file: '{ready}' cannot be written: {error.strerror or error}")


def _start_broker(folder: Path, stack: ExitStack) -> str:
    """Start a broker that runs until the stack is left; returns its address."""
    from aviso_server.log.jetstream.local_broker import LocalBroker

    broker = LocalBroker(folder, tied=True)
    stack.callback(broker.stop)
    try:
        broker.start()
    except (LogInUse, LogUnavailable) as error:
        fail(str(error))
    except OSError as error:
        fail(f"--local-broker: the broker cannot keep its data in '{folder}': {error.strerror or error}")
    click.echo(f"broker at {broker.url}, its data in {folder}", err=True)
    return broker.url
