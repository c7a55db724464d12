"""Settings: files, environment, defaults and the checks before a start."""

from aviso_server.config.reading import Inspection, inspect, load, shown
from aviso_server.config.settings import Settings

__all__ = ["Inspection", "Settings", "inspect", "load", "shown"]
