"""`aviso-server pipeline`: what Spark does for a server, by hand."""

from __future__ import annotations

import click

from aviso_server.commands.pipeline.archive_commands import archive, compact, migrate, status
from aviso_server.commands.pipeline.archive_reports import lateness, replay, report
from aviso_server.commands.pipeline.audit_command import audit
from aviso_server.commands.pipeline.load_command import load
from aviso_server.commands.pipeline.table_snippets import table

__all__ = ["pipeline"]


@click.group()
def pipeline() -> None:
    """Archive notifications with Spark, and look into the archive.

    A server with `archive.enabled` does all of this by itself. These commands are for archives that are kept
    elsewhere, and for looking.

    \b
    Examples:
      aviso-server pipeline status
      aviso-server pipeline archive --once --url http://127.0.0.1:8000 --path data/archive
      aviso-server pipeline replay mars class=od --from 2025-06-09
    """


for command in (archive, compact, status, audit, replay, load, lateness, report, migrate, table):
    pipeline.add_command(command)
