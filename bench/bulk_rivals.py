"""Rivals of the bulk load's check: plain Python on all cores, and DuckDB with the rules as SQL."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from aviso_server.errors import InvalidRequest
from tests.spark.load.bad_rows import MARS

__all__ = ["duck", "plain"]

_MEMBERS = {"event_type", "identifier", "payload", "time"}
_PIECE = 32 * 1024 * 1024

Piece = tuple[str, int, int, str, str]


def plain(files: Sequence[Path], folder: Path, reader: str) -> tuple[int, int]:
    """Rows and refused rows, as one would write it: a pool of processes, a loop over lines, refused rows to a file."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces: list[Piece] = []
    for file in files:
        for start in range(0, file.stat().st_size, _PIECE):
            pieces.append((str(file), start, start + _PIECE, reader, str(folder / f"{len(pieces)}.jsonl")))
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        counts = pool.map(_check, pieces, chunksize=1)
        pool.close()
        pool.join()  # so that their CPU time is known
    return sum(rows for rows, _ in counts), sum(refused for _, refused in counts)


def _check(piece: Piece) -> tuple[int, int]:
    path, start, end, reader, target = piece
    loads: Callable[[bytes], Any] = orjson.loads if reader == "orjson" else partial(json.loads, parse_constant=_refuse)
    rows = refused = 0
    with Path(path).open("rb") as content, Path(target).open("w") as faults:
        if start:
            content.seek(start - 1)
            content.readline()
        while content.tell() < end and (line := content.readline()):
            rows += 1
            try:
                _check_row(loads(line))
            except (ValueError, InvalidRequest, RecursionError) as error:
                refused += 1
                fault = {"raw": line.decode(errors="backslashreplace"), "reason": str(error)}
                faults.write(json.dumps(fault) + "\n")
    return rows, refused


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _check_row(row: Any) -> None:
    if not isinstance(row, dict):
        raise ValueError("not an object")
    if not row.keys() <= _MEMBERS:
        raise ValueError("unknown member")
    if row.get("event_type", "mars") != "mars":
        raise ValueError("another event type")
    identifier = row.get("identifier")
    if not isinstance(identifier, dict):
        raise ValueError("no identifier")
    MARS.check(identifier, row.get("payload"))


# The rules of this one event type, as far as these rows need them; dates and numbers have more notations than these.
_RULES = {
    "class": "octet_length({}::BLOB) BETWEEN 1 AND 2",
    "expver": "true",
    "domain": "lower({}) IN ('a', 'b', 'g')",
    "date": "try_strptime({}, ['%Y%m%d', '%Y-%m-%d']) IS NOT NULL",
    "time": "regexp_full_match({}, '([01]?[0-9]|2[0-3])|([01]?[0-9]|2[0-3]):[0-5][0-9]|([01][0-9]|2[0-3])[0-5][0-9]')",
    "stream": "length({}) > 0",
    "step": "try_cast({} AS BIGINT) BETWEEN 0 AND 100000 AND regexp_full_match({}, '[+-]?[0-9]+')",
}


def duck(files: Sequence[Path], folder: Path) -> tuple[int, int]:
    """Rows and refused rows; DuckDB reads lines, takes their JSON apart and writes the refused ones as Parquet."""
    import duckdb

    folder.mkdir(parents=True, exist_ok=True)
    values = [f"json_extract_string(i, '$.{name}') AS f_{name}" for name in _RULES]
    kinds = [f"json_type(i, '$.{name}') AS k_{name}" for name in _RULES]
    rules = [
        f"k_{name} IN ('VARCHAR', 'UBIGINT', 'BIGINT', 'DOUBLE', 'BOOLEAN') AND ({rule.replace('{}', f'f_{name}')})"
        for name, rule in _RULES.items()
    ]
    names = ", ".join(f"'{name}'" for name in _RULES)
    listed = ", ".join(f"'{file}'" for file in files)
    lines = (
        f"read_csv([{listed}], columns={{'line': 'VARCHAR'}}, delim='\\x01', quote='', escape='', header=false, "
        "auto_detect=false, new_line='\\n', store_rejects=true, rejects_limit=0)"
    )
    connection = duckdb.connect()
    connection.execute(f"SET threads={os.cpu_count()}")
    query = f"""
        WITH parsed AS (SELECT line, CASE WHEN json_valid(line) THEN line::JSON END AS j FROM {lines}),
        parts AS (SELECT line, j, j -> '$.identifier' AS i FROM parsed),
        fields AS (SELECT line, j, i, {", ".join([*values, *kinds])} FROM parts),
        judged AS (
            SELECT line, coalesce(
                json_type(j) = 'OBJECT' AND json_type(i) = 'OBJECT'
                AND list_has_all(['event_type', 'identifier', 'payload', 'time'], json_keys(j))
                AND coalesce(json_extract_string(j, '$.event_type'), 'mars') = 'mars'
                AND list_has_all([{names}], json_keys(i)) AND {" AND ".join(rules)}
                AND coalesce(json_type(j, '$.payload'), 'NULL') <> 'NULL', false) AS good
            FROM fields
        )
        SELECT line, good FROM judged
    """
    target = folder / "refused.parquet"
    connection.execute(
        f"CREATE TEMP TABLE judged AS SELECT CASE WHEN NOT good THEN line END AS line, good FROM ({query})"
    )
    connection.execute(f"COPY (SELECT line FROM judged WHERE NOT good) TO '{target}' (FORMAT parquet)")
    # what is not UTF-8 does not even become a line
    unreadable = _number(connection.execute("SELECT count(*) FROM reject_errors").fetchone())
    read, good = (
        _number(connection.execute(f"SELECT count(*) FROM judged {only}").fetchone()) for only in ("", "WHERE good")
    )
    return read + unreadable, read + unreadable - good


def _number(row: tuple[Any, ...] | None) -> int:
    assert row is not None
    return int(row[0])
