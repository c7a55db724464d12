"""Publishing rows that were taken: in order, once each, whatever happens on the way."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from aviso_server.errors import PipelineError
from aviso_server.spark.load.blocks import Block, CheckTask, check_text_block, lines_and_bytes_before, part_path
from aviso_server.spark.load.inputs import find_inputs
from aviso_server.spark.load.load_report import Published
from aviso_server.spark.load.row_checks import Checker, Wanted
from aviso_server.spark.load.sending import ItemPart, LoadLedger, Unsent, publish_all
from pyspark_aviso.options import read_options
from tests.harness import Server
from tests.spark.load.bad_rows import DEFINITION, MARS, good_row, is_good, write_rows
from tests.spark.proxy import Proxy

CONFIGURATION: dict[str, Any] = {
    "application": {"host": "127.0.0.1", "port": 0, "base_url": "http://localhost:8000"},
    "notification_backend": {"kind": "sqlite", "sqlite": {"path": "log"}},
    "limits": {"max_body_bytes": 2000},
    "notification_schema": {"mars": DEFINITION},
}


class Killed(Exception):
    """Stands for the end of the process."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(CONFIGURATION, tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def server(running: Server) -> Server:
    running.client.wipe_all()
    return running


def published(server: Server) -> list[int]:
    """The numbers of the rows that the server has, in its order."""
    stream = server.client.replay("mars", {"class": "*"})
    return [frame.data["data"]["payload"]["size"] for frame in stream.frames if frame.kind == "notification"]


class Load:
    """A load without Spark: blocks are checked one after the other."""

    def __init__(self, url: str, file: Path, work: Path, batch: int = 50, size: int = 20_000) -> None:
        self.options = read_options({"url": url, "retries": "3"})
        self.ledger = LoadLedger(work / "ledger", "http://server", "mars")
        self.file = file
        self.work = work
        self.batch = batch
        self.size = size

    def run(self, kill_after: int | None = None) -> Published:
        (given,) = find_inputs([str(self.file)], BytesIO(), self.work / "stdin")
        task = CheckTask(MARS, Wanted(given=True), time.time_ns(), str(self.work), True)
        blocks: list[Block] = []
        for start, rows in self._cut():
            checker = Checker(MARS, task.wanted, task.latest)
            blocks.append(check_text_block(given, 0, start, [rows], checker, task))

        def told(so_far: Published) -> None:
            if kill_after is not None and so_far.published >= kill_after:
                raise Killed

        parts = [
            ItemPart(given.name, part_path(self.work, "items", 0, block.start), lines, size)
            for block, (lines, size) in zip(blocks, lines_and_bytes_before(blocks), strict=True)
        ]
        return publish_all(self.options, "mars", parts, self.ledger, self.batch, told)

    def _cut(self) -> Iterator[tuple[int, list[bytes]]]:
        """Blocks of lines with where they begin, as Spark gives them."""
        start = offset = 0
        rows: list[bytes] = []
        for row in self.file.read_bytes().removesuffix(b"\n").split(b"\n"):
            if rows and offset - start >= self.size:
                yield start, rows
                start, rows = offset, []
            rows.append(row)
            offset += len(row) + 1
        yield start, rows


def good(first: int, last: int) -> list[int]:
    return [number for number in range(first, last + 1) if is_good(number)]


def test_rows_arrive_in_order_and_bad_ones_do_not(server: Server, tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.ndjson", 0, 999)
    load = Load(server.url, tmp_path / "rows.ndjson", tmp_path / "work")
    expected = good(0, 999)
    assert load.run() == Published(published=len(expected))
    assert published(server) == expected
    assert load.run() == Published(before=len(expected)), "the ledger knows that all is done"
    assert published(server) == expected


@pytest.mark.parametrize("keep_ledger", [True, False])
def test_an_interrupted_load_goes_on_without_doubles(server: Server, tmp_path: Path, keep_ledger: bool) -> None:
    write_rows(tmp_path / "rows.ndjson", 0, 999)
    expected = good(0, 999)
    with pytest.raises(Killed):
        Load(server.url, tmp_path / "rows.ndjson", tmp_path / "work").run(kill_after=300)
    there = len(published(server))
    assert 300 <= there < len(expected)
    work = tmp_path / ("work" if keep_ledger else "other")
    done = Load(server.url, tmp_path / "rows.ndjson", work, batch=70).run()
    assert done == Published(published=len(expected) - there, before=there)
    assert published(server) == expected


def test_what_was_added_to_a_file_is_published_and_what_was_changed_too(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "rows.ndjson"
    write_rows(file, 100, 199)
    Load(server.url, file, tmp_path / "work").run()
    with file.open("ab") as more:
        more.write(json.dumps(good_row(999)).encode() + b"\n")
    assert Load(server.url, file, tmp_path / "work").run() == Published(published=1, before=76)
    assert published(server) == [*good(100, 199), 999]
    file.write_bytes(file.read_bytes().replace(b'"size": 999', b'"size": 998'))
    assert Load(server.url, file, tmp_path / "work").run() == Published(published=1, before=76)
    assert published(server) == [*good(100, 199), 999, 998]


def test_the_same_rows_can_be_published_again_on_purpose(server: Server, tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.ndjson", 100, 199)
    load = Load(server.url, tmp_path / "rows.ndjson", tmp_path / "work")
    load.run()
    load.ledger.forget("once more")
    assert Load(server.url, tmp_path / "rows.ndjson", tmp_path / "work").run() == Published(published=76)
    assert published(server) == good(100, 199) * 2


def test_rows_that_only_the_server_refuses_are_kept_with_their_lines(server: Server, tmp_path: Path) -> None:
    rows = [good_row(number) for number in range(124, 130)]
    rows[2]["payload"]["large"] = "x" * 3000
    file = tmp_path / "rows.ndjson"
    file.write_bytes(b"\n" + b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    load = Load(server.url, file, tmp_path / "work", size=100)
    assert load.run() == Published(published=5, refused=1)
    assert published(server) == [124, 125, 127, 128, 129]
    (refused,) = load.ledger.refused({str(file)})
    assert (refused.file, refused.line, refused.code) == (str(file), 4, "INVALID_NOTIFICATION_REQUEST")
    assert "bytes" in refused.reason
    assert json.loads(refused.raw)["payload"]["size"] == 126
    assert Load(server.url, file, tmp_path / "work").run() == Published(before=5, refused=1)


def test_a_busy_server_and_lost_answers_do_no_harm(server: Server, tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.ndjson", 0, 399)
    with Proxy(server) as proxy:
        proxy.fail_with = [503]
        proxy.lose_answers = 2
        done = Load(proxy.url, tmp_path / "rows.ndjson", tmp_path / "work").run()
    assert done.published + done.before == len(good(0, 399))
    assert published(server) == good(0, 399)


@pytest.mark.parametrize("status", [401, 403])
def test_a_server_that_says_no_ends_it(server: Server, tmp_path: Path, status: int) -> None:
    write_rows(tmp_path / "rows.ndjson", 0, 99)
    with Proxy(server) as proxy:
        proxy.fail_with = [status]
        with pytest.raises(Unsent, match=f"status {status}"):
            Load(proxy.url, tmp_path / "rows.ndjson", tmp_path / "work").run()
    assert published(server) == []


def test_a_server_without_the_route_is_recognised(server: Server, tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.ndjson", 0, 99)
    with Proxy(server, single=True) as proxy, pytest.raises(PipelineError, match="takes no batches"):
        Load(proxy.url, tmp_path / "rows.ndjson", tmp_path / "work").run()
