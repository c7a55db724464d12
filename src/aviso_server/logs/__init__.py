"""Log records: one JSON object per line, readable lines on a terminal, and to a collector if one is named."""

from aviso_server.logs.otlp import NOT_INSTALLED
from aviso_server.logs.recent import RECENT, RecentRecord
from aviso_server.logs.setup import configure, finish
from aviso_server.logs.tally import RECORDS

__all__ = ["NOT_INSTALLED", "RECENT", "RECORDS", "RecentRecord", "configure", "finish"]
