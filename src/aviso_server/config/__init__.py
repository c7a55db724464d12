"""Settings: files, environment, defaults and the checks before a start."""

from aviso_server.config.load import Inspection, inspect, load
from aviso_server.config.redact import shown
from aviso_server.config.settings import Settings, StreamAuth

__all__ = ["Inspection", "Settings", "StreamAuth", "inspect", "load", "shown"]
