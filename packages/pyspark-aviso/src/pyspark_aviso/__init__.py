"""The `aviso` data source for Spark: notifications of an aviso server as a table.

Spark looks for a `DefaultSource` in every installed package called `pyspark_…`, so `format("aviso")` and `USING aviso`
work where this package is installed. `register` makes it known to a session by hand.
"""

from __future__ import annotations

from typing import Any

__all__ = ["AvisoSource", "DefaultSource", "__version__", "register"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import Spark only for those who use it: the options and errors do without."""
    if name not in ("AvisoSource", "DefaultSource", "register"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pyspark_aviso import source

    return getattr(source, "AvisoSource" if name == "DefaultSource" else name)
