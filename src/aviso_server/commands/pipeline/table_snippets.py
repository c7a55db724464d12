"""`aviso-server pipeline table`: how to open a stream's table from other tools."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aviso_server.commands.pipeline.place import Place, archive_options, existing, find
from aviso_server.commands.terminal import fail, json_option, print_json
from aviso_server.errors import PipelineError
from aviso_server.model.json_text import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aviso_server.lake.table import Snapshot

__all__ = ["TOOLS", "snippets", "table"]

DELTA_PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"  # of the newest Spark that Delta has a runtime for

_SPARK = """\
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.config("spark.jars.packages", "{package}")
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .getOrCreate()
)
rows = spark.read.format("delta").load({place})
print(rows.count())
"""
_SPARK_SQL = """\
CREATE TABLE IF NOT EXISTS {name} USING delta LOCATION {literal};
SELECT count(*) FROM {name};
"""
_DUCKDB = """\
INSTALL delta; LOAD delta;
SET enable_geoparquet_conversion = false;
SELECT count(*) FROM delta_scan({literal});
"""
_DUCKDB_PYTHON = """\
import duckdb
from deltalake import DeltaTable

rows = DeltaTable({place}).to_pyarrow_dataset()
print(duckdb.sql("SELECT count(*) FROM rows").fetchone()[0])
"""
_POLARS = """\
import polars

rows = polars.scan_delta({place})
print(rows.select(polars.len()).collect().item())
"""
_PANDAS = """\
from deltalake import DeltaTable

rows = DeltaTable({place}).to_pandas()
print(len(rows))
"""
_GEOPANDAS = """\
import geopandas
from deltalake import DeltaTable

rows = DeltaTable({place}).to_pandas()
shapes = geopandas.GeoSeries.from_wkb(rows[{shape}], crs="OGC:CRS84")
rows = geopandas.GeoDataFrame(rows, geometry=shapes)
print(len(rows))
"""

TOOLS: Mapping[str, str] = {
    "spark": _SPARK,
    "spark-sql": _SPARK_SQL,
    "duckdb": _DUCKDB,
    "duckdb-python": _DUCKDB_PYTHON,
    "polars": _POLARS,
    "pandas": _PANDAS,
    "geopandas": _GEOPANDAS,
}
"""The words for each tool; each says how many notifications there are."""


@click.command()
@click.argument("stream")
@click.option("--tool", type=click.Choice(list(TOOLS)), help="Only for this one, ready to be run.  [default: all]")
@archive_options
@json_option
def table(stream: str, tool: str | None, file: Path | None, path: str | None, spark: str | None, as_json: bool) -> None:
    """Print how to open the table of a stream from Spark, DuckDB, polars, pandas and geopandas.

    STREAM is a stream or an event type. What a tool reads is what a replay gives, whatever the server does meanwhile.

    \b
    Examples:
      aviso-server pipeline table mars
      aviso-server pipeline table mars --tool polars | python

    \b
    Exit codes: 0 done, 1 there is no such table or it cannot be read, 2 wrong usage.
    """
    from aviso_server.lake.table import Tables

    place = existing(find(file, path, spark=spark))
    name = next((each.base for each in place.settings.event_types if stream == each.name), stream)
    try:
        tables = Tables(place.path)
        known = tables.streams()
        own = tables.of(name)
        snapshot = own.snapshot()
    except PipelineError as error:
        fail(str(error))
    if snapshot.version < 0:
        there = f"; there is {', '.join(map(printable, known))}" if known else ""
        fail(f"there is no table of '{printable(stream)}' in {place.path}{there}")
    found = snippets(_address(place, own.folder), name, snapshot)
    if tool is not None and tool not in found:
        fail(f"the table of '{printable(stream)}' has no shapes")
    if as_json:
        print_json({"stream": name, "table": _address(place, own.folder), "version": snapshot.version, "open": found})
        return
    for each, text in found.items():
        if tool is None:
            click.echo(f"# {each}\n{text}")
        elif tool == each:
            click.echo(text, nl=False)


def snippets(address: str, stream: str, snapshot: Snapshot) -> dict[str, str]:
    """Return what to run in each tool to open a table, without tools that its columns are not for."""
    shapes = [name for name, kind in snapshot.columns.items() if kind == "binary"]
    words: dict[str, Any] = {
        "package": DELTA_PACKAGE,
        "place": repr(address),
        "literal": "'" + address.replace("'", "''") + "'",
        "name": re.sub(r"\W", "_", f"t_{stream}" if stream[:1].isdigit() else stream, flags=re.ASCII),
        "shape": repr("polygon" if "polygon" in shapes else shapes[0] if shapes else ""),
    }
    return {tool: text.format(**words) for tool, text in TOOLS.items() if shapes or "{shape}" not in text}


def _address(place: Place, folder: str) -> str:
    from aviso_server.lake.storage import is_local, local_path

    return str(local_path(folder).absolute()) if is_local(place.path) else folder
