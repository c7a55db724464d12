"""Log records: one JSON object per line, readable lines on a terminal, and to a collector if one is named."""

from aviso_server.diagnostics.otlp import NOT_INSTALLED
from aviso_server.diagnostics.recent import RECENT, RecentRecord
from aviso_server.diagnostics.setup import configure, finish
from aviso_server.diagnostics.tally import RECORDS

__all__ = ["NOT_INSTALLED", "RECENT", "RECORDS", "RecentRecord", "configure", "finish"]
