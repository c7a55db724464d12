"""Log records: one JSON object per line, readable lines on a terminal, and to a collector if one is named."""

from aviso_server.logs.setup import configure
from aviso_server.logs.tally import RECORDS

__all__ = ["RECORDS", "configure"]
