"""Reads tables of the archive as other tools do: a program of its own, with nothing of ours.

    python outside_reader.py quick|spark

Each line of input is JSON with a `folder`, and the snippets of `aviso-server pipeline table` if they are to run. Each
line of output is JSON: by tool, a digest of the notifications that it sees and their number.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

WANTED = ("sequence", "identifier", "payload")


Answer = Callable[[str, dict[str, str]], dict[str, Any]]


def digest(rows: Iterable[Iterable[Any]]) -> list[Any]:
    found = sorted(tuple(row) for row in rows)
    return [hashlib.sha256(json.dumps(found).encode()).hexdigest(), len(found)]


def printed(code: str, names: dict[str, Any]) -> int:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, names)
    return int(out.getvalue())


def quick() -> Answer:
    duckdb, geopandas, polars, pyogrio, *extensions = map(
        import_module,
        ("duckdb", "geopandas", "polars", "pyogrio", "duckdb_extension_delta", "duckdb_extension_spatial"),
    )
    from deltalake import DeltaTable

    def extension(place: int) -> str:
        package: Any = extensions[place]
        (file,) = Path(package.__path__[0]).rglob("*.duckdb_extension")
        return f"LOAD '{file}';"

    base = duckdb.connect()
    base.execute(extension(0) + "SET enable_geoparquet_conversion = false")
    spatial = duckdb.connect()
    spatial.execute(extension(1))
    columns = ", ".join(WANTED)

    def answer(folder: str, snippets: dict[str, str]) -> dict[str, Any]:
        rows = DeltaTable(folder).to_pyarrow_dataset()  # noqa: F841  # DuckDB looks for the name
        found = {
            "duckdb": base.execute(f"SELECT {columns} FROM delta_scan('{folder}')").fetchall(),
            "duckdb-python": duckdb.sql(f"SELECT {columns} FROM rows").fetchall(),
            "polars": polars.scan_delta(folder).select(WANTED).collect().rows(),
            "pandas": DeltaTable(folder).to_pandas(columns=list(WANTED)).itertuples(index=False),
        }
        files = [str(Path(folder) / name) for name in DeltaTable(folder).file_uris()]
        shapes: list[Any] = []
        near: list[int] = []
        by_area: list[Any] = []
        for file in files:
            shapes += geopandas.read_parquet(file)[[*WANTED]].itertuples(index=False)
            near += geopandas.read_parquet(file, bbox=(0, 0, 1, 1))["sequence"].tolist()
            by_area += spatial.execute(
                f"SELECT sequence FROM '{file}' WHERE ST_Intersects(polygon, ST_MakeEnvelope(0, 0, 1, 1))"
            ).fetchall()
        found["geopandas"] = shapes
        told: dict[str, Any] = {tool: digest(rows) for tool, rows in found.items()}
        told["near"] = sorted(near)
        told["by_area"] = sorted(row[0] for row in by_area)
        told["crs"] = str(geopandas.read_parquet(files[0]).crs)
        told["gdal"] = "Parquet" in pyogrio.list_drivers()
        told["ran"] = {
            tool: printed(snippets[tool], {})
            for tool in ("duckdb-python", "polars", "pandas", "geopandas")
            if tool in snippets
        }
        if "duckdb" in snippets:  # its own server of extensions cannot be reached
            words = snippets["duckdb"].replace("INSTALL delta; LOAD delta;", extension(0))
            told["ran"]["duckdb"] = duckdb.connect().execute(words).fetchone()[0]
        return told

    return answer


def spark() -> Answer:
    names: dict[str, Any] = {}

    def answer(folder: str, snippets: dict[str, str]) -> dict[str, Any]:
        ran: dict[str, int] = {}
        if "spark" in snippets:
            ran["spark"] = printed(snippets["spark"], names)
            for statement in snippets["spark-sql"].split(";"):
                if statement.strip():
                    rows = names["spark"].sql(statement)
            ran["spark-sql"] = rows.first()[0]
        session = names["spark"]
        name = Path(folder).name
        session.sql(f"REFRESH TABLE {name}")
        return {
            "spark": digest(session.read.format("delta").load(folder).select(*WANTED).collect()),
            "spark-sql": digest(session.sql(f"SELECT {', '.join(WANTED)} FROM {name}").collect()),
            "box": [list(row) for row in session.sql(f"SELECT min(bbox.xmin), max(bbox.ymax) FROM {name}").collect()],
            "first_version": session.sql(f"SELECT count(*) FROM {name} VERSION AS OF 0").first()[0],
            "ran": ran,
        }

    return answer


if __name__ == "__main__":
    ask = {"quick": quick, "spark": spark}[sys.argv[1]]()
    for line in sys.stdin:
        question = json.loads(line)
        print(json.dumps(ask(question["folder"], question.get("open", {}))), flush=True)
